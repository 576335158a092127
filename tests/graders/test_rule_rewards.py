"""Rewards by rule: letters of multiple-choice questions, and instructions that can be verified."""

import asyncio
import json
import time
from typing import Any

import pytest

from roll.core.data.sample import Prompt, Sample
from roll.core.rewards.worker import RewardResult, RewardWorker
from roll.graders.answers import choice_of, right_choice
from roll.graders.instructions import IFEVAL, OPEN_INSTRUCT, GeneralRuleRewardWorker, follows, instructions_of
from roll.graders.rules import CrossThinkQARuleRewardWorker, GeneralValRuleRewardWorker, MultipleChoiceBoxedRuleRewardWorker

CONFIG: dict[str, Any] = {"timeout_s": 5.0, "max_concurrency": 2}


def result(
    cls: type[RewardWorker], response: str, truth: str, row: dict[str, Any] | None = None, **arguments: Any
) -> RewardResult:
    prompt = Prompt("a/0/1", [1], "?", "a", "a", truth, row or {})
    sample = Sample(prompt, 0, [2] * 250, [0.0] * 250, [], "stop", response_text=response)

    async def main() -> RewardResult:
        worker = cls({**CONFIG, "reward_args": arguments})
        return await worker.result(sample)

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("response", "letter", "boxed"),
    [
        (r"so \boxed{B}", "B", True),
        (r"\boxed{A}, no, \boxed{\text{C}}", "C", True),
        (r"\boxed{(D)}", "D", True),
        (r"\boxed{B. the second}", "B", True),
        (r"\boxed{B. The Answer Of A}", "B", True),
        (r"<think>\boxed{B}</think> the answer is C.", "C", False),
        ("The answer is: (B)", "B", False),
        ("the answer is **A**", "A", False),
        (r"\boxed{A, B}", "", True),
        (r"\boxed{A or B}", "", True),
        (r"\boxed{ABCD}", "", True),
        (r"\boxed{А}", "", True),  # a Cyrillic letter
        (r"\boxed{B", "", True),
        ("The answer is Albany", "", False),
        ("All of them", "", False),
        ("", "", False),
    ],
)
def test_the_letter_of_an_answer(response: str, letter: str, boxed: bool) -> None:
    choice = choice_of(response)
    assert (choice.letter, choice.boxed) == (letter, boxed)


def test_the_letter_of_a_reference() -> None:
    assert [right_choice(text) for text in ("B", "(C)", "D. four", r"\boxed{A}")] == ["B", "C", "D", "A"]
    with pytest.raises(ValueError, match="no letter"):
        right_choice("four")


BOXED, SAID, WRONG, NOTHING = r"\boxed{B}", "The answer is B.", r"\boxed{C}", "I do not know."


@pytest.mark.parametrize(
    ("cls", "arguments", "rewards"),
    [
        (MultipleChoiceBoxedRuleRewardWorker, {}, [1, 0, 0, 0]),
        (GeneralValRuleRewardWorker, {}, [1, 1, 0, 0]),
        (CrossThinkQARuleRewardWorker, {}, [1, 0.5, -0.5, -1]),
        (CrossThinkQARuleRewardWorker, {"reward_type": "strict"}, [1, -1, -1, -1]),
        (CrossThinkQARuleRewardWorker, {"reward_type": "loose", "response_length_penalty_coef": 1.0}, [0.75, 0.75, -1.25, -1.25]),
    ],
)
def test_rewards_of_multiple_choice(cls: type[RewardWorker], arguments: dict[str, Any], rewards: list[float]) -> None:
    assert [result(cls, text, "B", **arguments).value for text in (BOXED, SAID, WRONG, NOTHING)] == rewards
    solution = cls({**CONFIG, "reward_args": arguments}).solution("(B)")
    assert result(cls, solution, "B", **arguments).value == rewards[0], "the reference answer earns what a right one does"


def test_what_a_worker_does_not_read_is_refused() -> None:
    for cls in (MultipleChoiceBoxedRuleRewardWorker, CrossThinkQARuleRewardWorker, GeneralRuleRewardWorker):
        with pytest.raises(ValueError, match=r"reward_args\.reward_kind is not read"):
            cls({**CONFIG, "reward_args": {"reward_kind": 1}})
    for cls in (CrossThinkQARuleRewardWorker, GeneralRuleRewardWorker):
        with pytest.raises(ValueError, match="'hard' is none of"):
            cls({**CONFIG, "reward_args": {"reward_type": "hard"}})


JOY = "one. two! three?"
CASES = [
    ("keywords:existence", {"keywords": ["Joy", "sea"]}, "SEA and joy", "sea only"),
    ("keywords:frequency", {"keyword": "ha", "frequency": 3, "relation": "at least"}, "ha Ha ha", "ha ha"),
    ("keywords:forbidden_words", {"forbidden_words": ["cat"]}, "category", "a Cat."),
    ("keywords:letter_frequency", {"letter": "z", "let_frequency": 2, "let_relation": "less than"}, "z", "zZ"),
    ("length_constraints:number_sentences", {"num_sentences": 3, "relation": "at least"}, JOY, "one. two, 3.5!"),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "a\n***\nb", "a *** *** b"),
    ("length_constraints:number_words", {"num_words": 3, "relation": "less than"}, "one two", "one two three"),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "so"},
        'a\n\n"So, it',
        "so\n\na",
    ),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[name] [town]", "[name"),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "a\np.s. b", "a P.S."),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* a\n- b", "* a\n**b**"),
    ("detectable_format:constrained_response", {}, "My answer is no.", "no"),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, "*a* and **b c**", "*a* and **"),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "Section", "num_sections": 2},
        "Section 1 a Section 2",
        "Section",
    ),
    ("detectable_format:json_format", {}, '```json\n{"a": 1}\n```', "{a: 1}"),
    ("detectable_format:title", {}, "<<of joy>>\n", "<<>>"),
    ("combination:two_responses", {}, "a ****** b", "a ****** a"),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Say it."}, "say it. it", "it"),
    ("startend:end_checker", {"end_phrase": "The end."}, 'so. the end."', "The end. Or not"),
    ("startend:quotation", {}, '"a"', '"'),
    ("change_case:capital_word_frequency", {"capital_frequency": 2, "capital_relation": "at least"}, "A BIG one", "A big one"),
    ("change_case:english_capital", {}, "ALL, 1", "All"),
    ("change_case:english_lowercase", {}, "all, 1", "All"),
    ("punctuation:no_comma", {}, "a b", "a, b"),
    ("verify_keywords", {"keyword_list": ["a"]}, "A", "b"),
    ("verify_keyword_frequency", {"word": "a", "N": 2}, "A a ab", "a a a"),
    ("validate_forbidden_words", {"forbidden_words": ["a"]}, "ab", "b a"),
    ("verify_letter_frequency", {"letter": "e", "N": 1}, "eE", "ee"),
    ("verify_paragraph_count", {"N": 2}, "a * * * b", "a * * *"),
    ("validate_word_constraint", {"N": 20, "quantifier": "around"}, "a " * 18, "a " * 17),
    ("verify_sentence_constraint", {"N": 3, "quantifier": "at most"}, JOY, JOY + " four."),
    ("validate_paragraphs", {"N": 2, "first_word": "So", "i": 1}, "So\n\nb", "a\n\nSo"),
    ("verify_postscript", {"postscript_marker": "P.S."}, "P.S. a", "P.S."),
    ("validate_placeholders", {"N": 1}, "[a]", "a"),
    ("verify_bullet_points", {"N": 1}, "- a", "- a\n- b"),
    ("validate_title", {}, "<<a>>", "<a>"),
    ("validate_choice", {"options": ["yes", "no"]}, "yes", "ye"),
    ("validate_highlighted_sections", {"N": 1}, "*a*", "a*"),
    ("validate_sections", {"N": 2, "section_splitter": "PART"}, "PART a PART b", "PART a"),
    ("validate_json_format", {}, "[1]", "[" * 100_000),
    ("validate_repeat_prompt", {"original_prompt": "Say it."}, "Say it. a", "say it."),
    ("validate_two_responses", {}, "a******b", "a"),
    ("validate_uppercase", {}, "A", "a"),
    ("validate_lowercase", {}, "a", "A"),
    ("validate_frequency_capital_words", {"N": 1, "quantifier": "at most"}, "A b", "A B"),
    ("validate_end", {"end_phrase": "end"}, "the end", "the end."),
    ("validate_quotation", {}, '"a"', "a"),
    ("validate_no_commas", {}, "a", ","),
]


@pytest.mark.parametrize(("name", "arguments", "yes", "no"), CASES, ids=[case[0] for case in CASES])
def test_each_instruction(name: str, arguments: dict[str, Any], yes: str, no: str) -> None:
    # Data sets give each instruction the arguments of all, most of them null.
    given = {"num_words": None, "unread": 1, **arguments}
    assert (follows(yes, name, given), follows(no, name, given), follows("", name, given)) == (True, False, False)


def test_every_instruction_is_tested() -> None:
    languages = {"language:response_language", "validate_response_language"}
    assert {case[0] for case in CASES} | languages == set(IFEVAL) | set(OPEN_INSTRUCT)


def test_the_language_of_a_response() -> None:
    pytest.importorskip("langdetect")
    german = "Das ist ein Satz, den man auf Deutsch schreibt."
    for name in ("language:response_language", "validate_response_language"):
        assert follows(german, name, {"language": "de"}) and not follows(german, name, {"language": "en"})
        assert not follows("123", name, {"language": "de"})


def test_where_instructions_stand() -> None:
    ids, kwargs = ["startend:quotation", "keywords:existence"], [{}, {"keywords": ["a"]}]
    expected = list(zip(ids, kwargs, strict=True))
    assert instructions_of({"instruction_id_list": ids, "kwargs": kwargs}, "") == expected
    assert instructions_of({}, json.dumps([{"instruction_id": ids, "kwargs": kwargs}])) == expected
    (only,) = instructions_of({}, json.dumps({"func_name": "validate_title", "N": None}))
    assert only[0] == "validate_title"
    with pytest.raises(ValueError, match="no instruction_id_list"):
        instructions_of({}, "{}")


def test_rewards_of_instructions() -> None:
    row = {"instruction_id_list": ["startend:quotation", "punctuation:no_comma"], "kwargs": [{}, {}]}
    both, one = '<think>,</think>\n"a"', '"a, b"'
    loosely = 'Sure, here it is:\n"a"'
    for kind, rewards in (("strict", [1, 0, 0]), ("soft", [1, 0.5, 0]), ("loose", [1, 0, 1])):
        texts = (both, one, loosely)
        assert [result(GeneralRuleRewardWorker, text, "", row, reward_type=kind).value for text in texts] == rewards
    wrong = result(GeneralRuleRewardWorker, "a", '{"func_name": "validate_rhyme"}')
    assert "'validate_rhyme' is no instruction" in (wrong.error or "")
    lacking = result(GeneralRuleRewardWorker, "a", '{"func_name": "validate_end"}')
    assert "validate_end lacks end_phrase" in (lacking.error or "")


@pytest.mark.parametrize(
    "unit", ["[", "*", "**", "***", "\n", " ", "<<", "<<>", "{", "******", ". ", "a", "A ", "\\boxed{", "-\n", "p.s", '"']
)
def test_no_text_takes_long(unit: str) -> None:
    """200,000 characters against all the patterns: each is searched in proportion to its length."""
    text = unit * (200_000 // len(unit))
    begin = time.process_time()
    for name, arguments, _, _ in CASES:
        follows(text, name, arguments)
    assert choice_of(text).letter in ("", "A")
    assert time.process_time() - begin < 5.0
