"""Right answers in every usual form earn 1; what only looks right to a lenient reader earns 0, and so does what never ends."""

from __future__ import annotations

import asyncio

import pytest

from roll.core.data.sample import Prompt, Sample
from roll.core.rewards.worker import RewardResult
from roll.graders.math_answer import boxes
from roll.graders.math_grader import grade
from roll.graders.rules import MathRuleRewardWorker

RIGHT = [
    # numbers
    ("42", "42"),
    ("42", r"\boxed{42}"),
    ("42", "The answer is 42."),
    ("42", "**42**"),
    ("42", r"\[42\]"),
    ("42", r"\(42\)"),
    ("42", r"$$42$$"),
    ("42", r"so we get $x = 42$."),
    ("42", r"\boxed{x = 42}"),
    ("42", r"\boxed{a = b = 42}"),
    ("42", r"\boxed{f(2) = 42}"),
    ("42", r"\boxed{6 \cdot 7 = 42}"),
    ("42", "6*7 = 42"),
    ("42", "= 42"),
    ("42", r"\boxed{\boxed{42}}"),
    ("42", r"\boxed{x = \boxed{42}}"),
    ("42", r"\boxed{42} \boxed{42}"),
    ("42", r"It is not 7 but \boxed{42}"),
    ("42", r"\boxed{42.0}"),
    ("1234", r"\boxed{1,234}"),
    ("1234", r"\boxed{1{,}234}"),
    ("1234567", "1,234,567"),
    ("1000", r"\boxed{10^3}"),
    ("-7", r"\boxed{-7}"),
    ("-7", r"\boxed{- 7}"),
    ("-\\frac{1}{2}", r"\boxed{\frac{-1}{2}}"),
    # fractions, decimals, roots
    (r"\frac{1}{2}", r"\boxed{\frac12}"),
    (r"\frac{1}{2}", r"\boxed{\dfrac{1}{2}}"),
    (r"\frac{1}{2}", r"\boxed{\tfrac{2}{4}}"),
    (r"\frac{1}{2}", r"\boxed{1/2}"),
    (r"\frac{1}{2}", r"\boxed{0.5}"),
    (r"\frac{1}{2}", r"\boxed{.5}"),
    (r"\frac{1}{3}", r"\boxed{0.3333333333}"),
    ("0.333", r"\boxed{\frac{1}{3} = 0.333}"),
    ("3.14", r"\boxed{3.14}"),
    (r"2\sqrt{3}", r"\boxed{\sqrt{12}}"),
    (r"\frac{\sqrt{2}}{2}", r"\boxed{\frac{1}{\sqrt 2}}"),
    (r"\pi", r"\boxed{\pi}"),
    (r"\frac{\pi}{4}", r"\boxed{\pi/4}"),
    (r"\sqrt[3]{2}", r"\boxed{2^{1/3}}"),
    # percent, units, degrees, money
    (r"25\%", r"$25\%$"),
    ("25", r"$25\%$"),
    ("5", r"\boxed{5\text{ cm}}"),
    ("5", r"\boxed{5 \text{ cm}^2}"),
    ("5", r"\boxed{5\ \mathrm{cm}^2}"),
    ("5", r"\boxed{5\text{ m/s}}"),
    ("5", r"\boxed{5 \text{ square units}}"),
    (r"5\text{ cm}", r"\boxed{5}"),
    ("90", r"\boxed{90^\circ}"),
    (r"90^\circ", r"\boxed{90}"),
    ("90", r"\boxed{90\text{ degrees}}"),
    ("100", r"\boxed{\$100}"),
    ("100", "It costs $100"),
    # expressions and equations
    ("x^2+1", r"\boxed{1+x^2}"),
    ("x^2-1", r"\boxed{(x-1)(x+1)}"),
    ("abc", r"\boxed{cba}"),
    ("xy", r"\boxed{yx}"),
    ("x=42", r"\boxed{42}"),
    ("y=2x+1", r"\boxed{y=1+2x}"),
    (r"x>3", r"\boxed{3<x}"),
    # lists, sets, intervals, matrices
    ("1,2", r"\boxed{2, 1}"),
    ("1,2", r"\boxed{1 \text{ and } 2}"),
    ("1,2", r"\boxed{x=1 \text{ or } x=2}"),
    ("1,2", r"$1$ and $2$"),
    ("1,2", r"\boxed{1} and \boxed{2}"),
    (r"\{1,2\}", r"\boxed{\{2,1\}}"),
    ("1,1", r"\boxed{1,1}"),
    (r"\pm 3", r"\boxed{3,-3}"),
    ("(1,2)", r"\boxed{(1, 2)}"),
    ("(1,2)", r"\boxed{\left(1,2\right)}"),
    ("[0,1)", r"\boxed{[0,1)}"),
    (r"(-\infty,3]", r"\boxed{(-\infty, 3]}"),
    (r"(0,1)\cup(2,3)", r"\boxed{(0,1) \cup (2,3)}"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\boxed{\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}}"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\boxed{\begin{bmatrix}1\\2\end{bmatrix}}"),
    # text, choices, bases, spacing
    ("yes", r"\boxed{\text{yes}}"),
    ("yes", r"\boxed{yes}"),
    (r"\text{Yes}", r"\boxed{\text{yes}}"),
    (r"\text{even}", r"\boxed{\text{even}}"),
    ("A", r"\boxed{A}"),
    ("A", r"\boxed{\text{A}}"),
    ("A", r"\boxed{(A)}"),
    (r"\text{no solution}", r"\boxed{\text{no solution}}"),
    ("101_2", r"\boxed{101_2}"),
    ("101_2", r"\boxed{101_{2}}"),
    ("101_2", r"\boxed{101_{two}}"),
    ("101_2", r"\boxed{101}"),
    ("42", r"\boxed{\,42\,}"),
    ("42", r"\boxed{ 42 }"),
    ("42", r"\boxed{\displaystyle 42}"),
    ("42", r"\boxed{\mathbf{42}}"),
    ("42", r"\boxed{42}" + "\n"),
]

WRONG = [
    # words
    ("yes", r"\boxed{sey}"),
    ("yes", r"\boxed{eys}"),
    ("no", r"\boxed{on}"),
    ("even", r"\boxed{neve}"),
    ("north", r"\boxed{thorn}"),
    (r"\text{even}", r"\boxed{\text{odd}}"),
    ("A", r"\boxed{B}"),
    ("true", r"\boxed{\text{false}}"),
    # bases
    ("101_2", "101_3"),
    ("101_2", r"\boxed{101_3}"),
    ("101_2", r"\boxed{101_{3}}"),
    ("101_2", r"\boxed{101_{\text{three}}}"),
    ("101_2", r"the answer is $101_{10}$"),
    ("5", r"\boxed{101_2}"),
    # equations that are false
    ("42", r"\boxed{41=42}"),
    ("42", r"\boxed{x=41=42}"),
    ("42", r"\boxed{6 \cdot 6 = 42}"),
    ("42", r"$41=42$"),
    ("42", "41=42"),
    ("42", "41 = 42"),
    ("420", r"\boxed{419=420}"),
    ("42", r"\boxed{41 \equiv 42}"),
    ("42", r"\boxed{42=41}"),
    ("0.5", r"\boxed{0.3=0.5}"),
    # boxes
    ("42", r"\boxed{7 \boxed{42}}"),
    ("42", r"\boxed{\boxed{42} 7}"),
    ("42", r"\boxed{x + \boxed{42}}"),
    ("42", r"\boxed{7, \boxed{42}}"),
    ("42", r"\boxed{42} \boxed{43}"),
    ("42", r"\boxed{42} or \boxed{7}"),
    ("42", r"42 \boxed{???}"),
    ("42", r"\boxed{}"),
    ("42", r"\boxed{"),
    # remarks
    ("42", r"42\text{ is wrong, it's 7}"),
    ("42", r"\boxed{42\text{ is wrong, it's 7}}"),
    ("42", r"$42\text{ is wrong, it's 7}$"),
    ("42", r"\boxed{42\text{ is not it}}"),
    ("42", r"\boxed{42\mathrm{ is wrong}}"),
    ("42", r"\boxed{42\textbf{ not}}"),
    ("42", r"\boxed{n=42\text{ is false}}"),
    ("42", r"\boxed{42\text{ or rather 7}}"),
    ("42", r"\boxed{42\text{ minus } 1\text{ cm}}"),
    ("42", r"\boxed{42\text{ x}+1\text{ y}}"),
    ("42", r"\boxed{42\text{ 7}}"),
    ("42", r"\boxed{42 is wrong}"),
    ("42", r"\boxed{\text{not }42}"),
    # lists
    ("1,2", "1,2,1,2"),
    ("1,2", r"\boxed{1,2,1,2}"),
    ("1,2", r"\boxed{1,1,2}"),
    (r"\{1,2\}", r"\boxed{\{1,2,2\}}"),
    ("42", r"\boxed{42,43}"),
    ("42", r"\boxed{42\text{ or }43}"),
    ("42", r"\boxed{\{42,43\}}"),
    ("42", r"\boxed{42;43}"),
    ("42", r"\boxed{\pm 42}"),
    ("(1,2)", r"\boxed{(2,1)}"),
    ("(1,2)", r"\boxed{(1,2,1,2)}"),
    ("[0,1]", r"\boxed{(0,1)}"),
    ("1,2", r"\boxed{1}"),
    # struck out, hidden, undone
    ("42", r"\boxed{\not 42}"),
    ("42", r"\boxed{\neg 42}"),
    ("42", r"\boxed{\sim 42}"),
    ("42", r"\boxed{\phantom{42}}"),
    ("42", r"\boxed{\cancel{42}}"),
    ("42", r"\boxed{7 % 42" + "\n}"),
    ("42", r"\boxed{42!}"),
    ("42", r"\boxed{-42}"),
    ("42", r"\boxed{\frac{42}{0}}"),
    ("42", r"\boxed{4 2}"),
    ("42", r"\boxed{x}"),
    ("42", r"\boxed{42x}"),
    ("42", r"\boxed{41<42}"),
    ("42", r"\boxed{\infty}"),
    ("42", "I do not know"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\boxed{\begin{pmatrix} 1 & 2 \\ 4 & 3 \end{pmatrix}}"),
]

ENDLESS = [
    r"\boxed{9^{9^{9^{9}}}}",
    r"\boxed{9^{9^{9}}}",
    "9**9**9**9**9",
    "9^9^9^9^9",
    r"\boxed{(10^{9})!}",
    r"\boxed{99999999!!!!}",
    r"\boxed{\binom{10^{12}}{10^{11}}}",
    r"\boxed{\sum_{i=1}^{10^{9}} \lfloor \frac{10^{40}}{i} \rfloor}",
    r"\boxed{\prod_{i=1}^{10^{9}} \sin(i)}",
    r"\boxed{" + "9" * 5000 + "}",
    r"\boxed{" + "9" * 100_000 + "}",
    r"\boxed{" + "(" * 3000 + "1" + ")" * 3000 + "}",
    r"\boxed{" + r"\sqrt{" * 500 + "2" + "}" * 501,
    r"\boxed{" + r"\frac{1}{" * 300 + "2" + "}" * 301,
    r"\boxed{" + "x^{" * 200 + "2" + "}" * 201,
    r"\boxed{" + "+".join(f"x^{{{i}}}" for i in range(2000)) + "}",
    r"\boxed{(x+y+z+w)^{400}}",
    r"\boxed{\int_0^1 x^{x^{x^{x}}} dx}",
    "answer: " * 20_000,
    r"\boxed{" * 20_000,
    "$" * 50_000,
    "1/" * 30_000 + "1",
    "((((" * 20_000,
]


def graded(ground_truth: str, response: str) -> float:
    return grade({"response": response, "ground_truth": ground_truth})


@pytest.mark.parametrize(("ground_truth", "response"), RIGHT)
def test_right_in_every_form(ground_truth: str, response: str) -> None:
    assert graded(ground_truth, response) == 1.0


@pytest.mark.parametrize(("ground_truth", "response"), WRONG)
def test_what_only_looks_right(ground_truth: str, response: str) -> None:
    assert graded(ground_truth, response) == 0.0


def test_there_are_enough_of_each() -> None:
    assert len(set(RIGHT)) >= 60 and len(set(WRONG)) >= 60


def test_outermost_boxes() -> None:
    found = boxes(r"a \boxed{1} b \fbox{\boxed{2} \{ } } \boxed{3")
    assert [box.content for box in found] == ["1", r"\boxed{2} \{ }"]


def sample(response: str, ground_truth: str = "17") -> Sample:
    prompt = Prompt("math/0/1", [1], "?", "math", "math", ground_truth)
    return Sample(prompt, 0, [2], [0.0], [], "stop", response_text=response)


@pytest.mark.slow
def test_an_answer_without_end_is_wrong_and_no_failure_of_the_judge() -> None:
    """Each by itself, as each may cost a process; the judge goes on afterwards."""

    async def main() -> tuple[list[RewardResult], RewardResult]:
        worker = MathRuleRewardWorker({"timeout_s": 4.0, "max_concurrency": 2, "reward_args": {}})
        await worker.start()
        results = []
        try:
            for text in ENDLESS:
                results += await worker.compute_rewards([sample(text)])
            return results, (await worker.compute_rewards([sample("17")]))[0]
        finally:
            await worker.close()

    results, after = asyncio.run(main())
    assert {text[:40]: result for text, result in zip(ENDLESS, results, strict=True) if result.value != 0.0} == {}
    assert after == RewardResult(value=1.0)


def test_a_ground_truth_without_meaning_is_an_error() -> None:
    with pytest.raises(ValueError, match="is not a mathematical expression"):
        graded("", "42")
