"""Reading actions out of a policy's text."""

import time

import pytest

from roll.envs.game import ActionReader

WAYS = ("Left", "Right")


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("<answer>Left</answer>", 0),
        ("<answer>\n RIGHT </answer>", 1),
        ("<think>left? no</think><answer>Left</answer> or rather <answer>Right</answer>", 1),
        ("<answer>Left</answer><answer></answer>", None),
        ("<answer>Left Right</answer>", None),
        ("Left", None),
        ("", None),
    ],
)
def test_the_last_answer_counts(text: str, action: int | None) -> None:
    assert ActionReader(WAYS).read(text) == action


def test_a_bare_pattern_reads_the_whole_text() -> None:
    reader = ActionReader(WAYS, "(.*)", {"l": "Left", "r": "Right"})
    assert [reader.read(text) for text in ("l", " R\n", "Left", "lr", "")] == [0, 1, None, None, None]


@pytest.mark.parametrize("pattern", [r"<answer>(.*?)</answer>", "(.*)", r"^(.*)$", r"Action: (\w+)", r"\[(\w+)\]"])
def test_what_is_written_is_read_again(pattern: str) -> None:
    reader = ActionReader(WAYS, pattern, {"go left": "Left", "R": "Right"} if r"\w" not in pattern else None)
    assert [reader.read(reader.write(action)) for action in (0, 1)] == [0, 1]
    assert f"like this: {reader.write(0)}" in reader.how_to_answer


def test_a_pattern_that_cannot_be_filled_in_is_shown_as_it_is() -> None:
    assert r"as the group of [a-z]+ (\w+)" in ActionReader(WAYS, r"[a-z]+ (\w+)").how_to_answer


def test_a_long_text_is_read_from_its_end_in_bounded_time() -> None:
    started = time.perf_counter()
    assert ActionReader(WAYS).read("<answer>" * 500_000 + "<answer>Left</answer>") is None
    assert ActionReader(WAYS).read("x" * 5_000_000 + "<answer>Left</answer>") == 0
    assert time.perf_counter() - started < 10
