"""250 texts that a model might find profitable: each is judged, earns nothing, and leaves the judge as it was."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator

import pytest

from roll.core.data.sample import Prompt, Sample
from roll.core.rewards.worker import RewardResult
from roll.graders.rules import MathRuleRewardWorker

TRUTH = "17"
LIMIT_S = 3.0


def boxed(text: str) -> str:
    return f"\\boxed{{{text}}}"


def towers() -> Iterator[str]:
    for height in (3, 4, 5, 8, 20, 39):
        yield boxed("9^{" * height + "9" + "}" * height)
        yield "^".join(["9"] * height)
        yield "**".join(["9"] * height)
    for base in ("2", "x", r"\pi", "0.5", "-3", r"\frac{1}{2}"):
        yield boxed(f"({base})^{{10^{{10^{{10}}}}}}")


def factorials() -> Iterator[str]:
    for marks in (1, 2, 3, 10, 100):
        yield boxed("99999999" + "!" * marks)
        yield boxed("(" * 20 + "9" * 20 + ")!" * 20)
        yield boxed(r"\Gamma(10^{" + "9" * marks + "})")
    for n, k in ((10**9, 5 * 10**8), (10**30, 10**29), (10**100, 10**99)):
        yield boxed(rf"\binom{{{n}}}{{{k}}}")
    yield boxed("(10^{10})!!")


def deep() -> Iterator[str]:
    for depth in (39, 100, 1000, 20_000):
        for left, right in ("()", "{}", "[]"):
            yield boxed(left * depth + "17" + right * depth)
        for command in (r"\sqrt{", r"\frac{1}{", r"\text{", r"\left("):
            yield boxed(command * depth + "18" + "}" * depth)
        yield boxed("-" * depth + "18")
        yield boxed("|" * depth + "18" + "|" * depth)


def long() -> Iterator[str]:
    for count in (5_000, 200_000):
        for unit in (
            "9",
            "x",
            "1+",
            "1,",
            "x^2+",
            r"\cdot ",
            "\\",
            "$",
            "{",
            "}",
            "answer is ",
            r"\boxed{",
            "\n",
            " ",
            "=",
            "\u202e",
        ):
            yield unit * count
            yield boxed(unit * count)


def sums() -> Iterator[str]:
    for top in ("10^{9}", r"\infty"):
        for body in (r"\sin(i)", r"\frac{1}{i}", "i^{i}", "i!"):
            yield boxed(rf"\sum_{{i=1}}^{{{top}}} {body}")
            yield boxed(rf"\prod_{{i=1}}^{{{top}}} {body}")
            yield boxed(rf"\int_0^{{{top}}} {body} di")


def code() -> Iterator[str]:
    for text in (
        *("__import__('os').system('true')", "exec('x=1')", "().__class__.__mro__", "exit()", "quit()", "raise SystemExit"),
        *("1 if 1 else 2", "open('/etc/passwd').read()", "{{7*7}}", "${7*7}", "`id`", "$(id)", "; true", "\x00"),
        *("'; DROP TABLE", "<script>", "%s%s%s%n", "\ud800", "\x1b[2J", "\r17\r18", "NaN", "nan", "inf", "-inf", "None", "True"),
    ):
        yield text
        yield boxed(text)


def nearly() -> Iterator[str]:
    for text in (
        *("16=17", r"x=16=17", r"16 \neq 17", "17, 18", "17;18", r"\{17,18\}", r"17 \text{ or } 18", r"\pm 17", "-17", "17!"),
        *(r"17\text{ is wrong}", r"17\text{ not}", r"\not 17", r"\neg 17", r"\phantom{17}", "17x", "x", "[17,18]", "(17,18)"),
        *(r"17 \boxed{18}", r"18 \boxed{17}", "17+1", "17^2", r"\sqrt{17}", r"\frac{17}{2}", "17.1", "1 7", "17, 17"),
        *("seventeen", r"\text{17 is not it}", "17_", "_17", r"\overline{17}", r"17 \pmod 5 + 1", "17<18", "18>17", r"17\cdot 0"),
    ):
        yield boxed(text)


def rubble() -> Iterator[str]:
    """Pieces of LaTeX in no order."""
    rng = random.Random(0)
    pieces = [
        *(r"\boxed{", r"\frac", "{", "}", "(", ")", "[", "]", "$", "$$", r"\[", r"\]", r"\text{", r"\sqrt", "^", "_", "&", r"\\"),
        *("x", "1", "9", "=", ",", "+", "-", "!", "%", r"\sum", r"\begin{pmatrix}", r"\end{pmatrix}", r"\left", r"\right", "\n"),
    ]
    for _ in range(40):
        yield "".join(rng.choices(pieces, k=60))


FAMILIES = (towers, factorials, deep, long, sums, code, nearly, rubble)
TEXTS = [text for family in FAMILIES for text in family()]


def sample(text: str) -> Sample:
    prompt = Prompt("math/0/1", [1], "?", "math", "math", TRUTH)
    return Sample(prompt, 0, [2], [0.0], [], "stop", response_text=text)


def test_there_are_250() -> None:
    assert len(set(TEXTS)) >= 250


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_they_earn_nothing_and_break_nothing(family: Callable[[], Iterator[str]]) -> None:
    texts = list(family())

    async def main() -> tuple[list[RewardResult], RewardResult]:
        worker = MathRuleRewardWorker({"timeout_s": LIMIT_S, "max_concurrency": 2, "reward_args": {}})
        await worker.start()
        try:
            results = await worker.compute_rewards([sample(text) for text in texts])
            return results, (await worker.compute_rewards([sample(TRUTH)]))[0]
        finally:
            await worker.close()

    results, after = asyncio.run(main())
    wrong = {text[:60]: result for text, result in zip(texts, results, strict=True) if result != RewardResult(value=0.0)}
    assert wrong == {}
    assert after == RewardResult(value=1.0)
