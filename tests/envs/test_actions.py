"""Reading actions out of a policy's text."""

import random
import time

import numpy as np
import pytest
from gymnasium import spaces

from roll.core.configs.problems import ConfigError
from roll.envs.actions import ActionReader

TWO = spaces.Discrete(2)
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
    assert ActionReader(TWO, WAYS).read(text) == action


def test_a_bare_pattern_reads_the_whole_text() -> None:
    reader = ActionReader(TWO, WAYS, "(.*)", {"l": "Left", "r": "Right"})
    assert [reader.read(text) for text in ("l", " R\n", "Left", "lr", "")] == [0, 1, None, None, None]


@pytest.mark.parametrize("pattern", [r"<answer>(.*?)</answer>", "(.*)", r"^(.*)$", r"Action: (\w+)", r"\[(\w+)\]"])
def test_what_is_written_is_read_again(pattern: str) -> None:
    reader = ActionReader(TWO, WAYS, pattern, {"go left": "Left", "R": "Right"} if r"\w" not in pattern else None)
    assert [reader.read(reader.write(action)) for action in (0, 1)] == [0, 1]
    assert f"like this: {reader.write(0)}" in reader.how_to_answer


def test_a_pattern_that_cannot_be_filled_in_is_shown_as_it_is() -> None:
    assert r"as the group of [a-z]+ (\w+)" in ActionReader(TWO, WAYS, r"[a-z]+ (\w+)").how_to_answer


def test_a_long_text_is_read_from_its_end_in_bounded_time() -> None:
    started = time.perf_counter()
    assert ActionReader(TWO, WAYS).read("<answer>" * 500_000 + "<answer>Left</answer>") is None
    assert ActionReader(TWO, WAYS).read("x" * 5_000_000 + "<answer>Left</answer>") == 0
    assert time.perf_counter() - started < 10


PARTS = spaces.Dict({"move": spaces.Discrete(3, start=5), "say": spaces.Text(8), "bits": spaces.MultiBinary(2)})
SPACES = [
    spaces.Discrete(2000),
    spaces.MultiDiscrete([3, 2]),
    spaces.MultiDiscrete(np.array([[3, 2], [4, 4]]), start=np.array([[1, 1], [0, -2]])),
    spaces.MultiBinary(3),
    spaces.Tuple((spaces.Discrete(2), spaces.Text(5))),
    PARTS,
]


@pytest.mark.parametrize("pattern", [None, "(.*)"])
@pytest.mark.parametrize("space", SPACES, ids=str)
def test_every_action_of_several_parts_is_read_as_it_is_written(space: spaces.Space[object], pattern: str | None) -> None:
    reader, rng = ActionReader(space, action_pattern=pattern), random.Random(0)
    for _ in range(20):
        action = reader.draw(rng)
        read = reader.read(reader.write(action))
        assert space.contains(read) and reader.write(read) == reader.write(action)


@pytest.mark.parametrize(
    ("space", "text"),
    [
        (spaces.MultiDiscrete([3, 2]), "[2, 2]"),
        (spaces.MultiDiscrete([3, 2]), "[1]"),
        (spaces.MultiDiscrete([3, 2]), "[1.5, 0]"),
        (spaces.MultiDiscrete([3, 2]), "[true, 0]"),
        (spaces.MultiDiscrete([3, 2]), "[1, 1e400]"),
        (spaces.MultiDiscrete([3, 2]), f"[1, {10**30}]"),
        (spaces.MultiDiscrete([3, 2]), "[[1], 0]"),
        (spaces.MultiBinary(2), "[300, 0]"),
        (spaces.Discrete(2000), "2000"),
        (spaces.Discrete(2000), "true"),
        (spaces.Tuple((spaces.Discrete(2), spaces.Text(5))), "[1]"),
        (spaces.Tuple((spaces.Discrete(2), spaces.Text(5))), '[1, "too long"]'),
        (PARTS, '{"move": 5, "say": "go"}'),
        (PARTS, '{"move": 0, "say": "go", "bits": [0, 1]}'),
        (PARTS, "[" * 100_000),
        (PARTS, "9" * 10_000),
        (PARTS, "what?"),
    ],
)
def test_what_is_no_member_of_the_space_is_no_action(space: spaces.Space[object], text: str) -> None:
    assert ActionReader(space, action_pattern="(.*)").read(text) is None


def test_what_is_said_of_the_form_is_an_action() -> None:
    assert ActionReader(spaces.MultiDiscrete([3, 2], start=[1, 0])).how_to_answer == (
        "Your action is JSON: 2 whole numbers (1 to 3, 0 to 1). Write it like this: <answer>[1, 0]</answer>"
    )
    assert ActionReader(spaces.Discrete(100)).how_to_answer == (
        "Choose a number from 0 to 99. Write it like this: <answer>0</answer>"
    )


def test_a_text_is_an_action_as_a_whole_or_where_the_pattern_says() -> None:
    space = spaces.Text(5, min_length=0, charset="ab ")
    reader = ActionReader(space)
    assert reader.how_to_answer == "Write a text of 0 to 5 characters among ' ab'."
    assert [reader.read(text) for text in ("a b", " a\n", "", "abc", "a" * 6)] == ["a b", "a", "", None, None]
    marked = ActionReader(space, action_pattern="<say>(.*?)</say>")
    assert marked.how_to_answer.endswith("Write it like this: <say>...</say>")
    assert [marked.read(text) for text in ("hm <say>ab</say>", "ab")] == ["ab", None]
    long = ActionReader(spaces.Text(200_000))
    assert long.read("a" * 200_000) == "a" * 200_000, "a text is read whole, however long"


def test_an_action_without_a_word_is_not_drawn() -> None:
    reader, rng = ActionReader(TWO, WAYS, "(.*)", {"r": "Right"}), random.Random(0)
    assert {reader.draw(rng) for _ in range(20)} == {1} and reader.write(0) == ""


def test_names_are_for_single_actions() -> None:
    with pytest.raises(ConfigError, match=r"action_lookup = .*: names single actions, and the action space is MultiDiscrete"):
        ActionReader(spaces.MultiDiscrete([2, 2]), action_lookup={"a": "b"})
