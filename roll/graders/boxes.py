"""Rewards by a rule for what is seen: boxes around objects, and how many there are.

An answer is what stands between the last `<answer>` and its `</answer>`, which then is nothing but that; without such tags it is
JSON: the last list of boxes in the response, or the one object of a count. Everything else is no answer, and earns 0."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from roll.core.data.sample import Sample
from roll.core.rewards.worker import Grade, RewardWorker

MOST_BOXES = 100
"""An answer with more is none."""
READ = 1 << 13
"""Characters at the end of a response that are read."""
LARGEST = 1e6
"""Coordinates beyond it are none."""
NAMES = ("bbox_2d", "bbox", "box")
"""Keys of an object that has a box, the first as Qwen's models write it."""
_TAGGED = re.compile(r"<answer>((?:(?!</?answer>).)*)</answer>", re.DOTALL)
_LIST = re.compile(r"\[[^\[\]]*(?:\[[^\[\]]*\][^\[\]]*)*\]")
_FENCE = re.compile(r"\A\s*```(?:json)?\s*(.*?)\s*```\s*\Z", re.DOTALL)


class Box(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float

    @property
    def area(self) -> float:
        return (self.right - self.left) * (self.bottom - self.top)


class Labelled(NamedTuple):
    box: Box
    label: str


def overlap(one: Box, other: Box) -> float:
    """Intersection over union: |A∩B| / (|A| + |B| - |A∩B|)."""
    width = min(one.right, other.right) - max(one.left, other.left)
    height = min(one.bottom, other.bottom) - max(one.top, other.top)
    shared = max(width, 0.0) * max(height, 0.0)
    return shared / (one.area + other.area - shared) if shared else 0.0


def paired(found: Sequence[Box], true: Sequence[Box]) -> list[tuple[float, int, int]]:
    """Pairs as overlap and places, each box in one at most: greedily, the pair that overlaps most first, of equal ones the
    earlier. Boxes that overlap with none are in no pair."""
    overlaps = ((overlap(a, b), i, j) for i, a in enumerate(found) for j, b in enumerate(true))
    taken, pairs = (set[int](), set[int]()), list[tuple[float, int, int]]()
    for pair in sorted((each for each in overlaps if each[0] > 0), key=lambda each: (-each[0], *each[1:])):
        _, i, j = pair
        if i not in taken[0] and j not in taken[1]:
            taken[0].add(i)
            taken[1].add(j)
            pairs.append(pair)
    return pairs


def boxes_of(text: str) -> list[Box] | None:
    """`[x1, y1, x2, y2]`, a list of such lists, or of objects with one (`NAMES`); None if it is none of these."""
    value = json_of(text)
    if isinstance(value, dict) or (isinstance(value, list) and value and not isinstance(value[0], list | dict)):
        value = [value]
    if not isinstance(value, list) or len(value) > MOST_BOXES:
        return None
    boxes = [box_of(each) for each in value]
    return None if None in boxes else [box for box in boxes if box is not None]


def box_of(value: object) -> Box | None:
    """A box with an area; None for anything else."""
    if isinstance(value, dict):
        value = next((value[name] for name in NAMES if name in value), None)
    if not isinstance(value, list) or len(value) != 4 or not all(type(each) in (int, float) for each in value):
        return None
    if not all(abs(each) <= LARGEST for each in value) or not (value[0] < value[2] and value[1] < value[3]):
        return None
    return Box(*map(float, value))


def _answer(response: str) -> tuple[str, bool]:
    """Returns the last tagged answer, else the end of the response; and whether it is tagged."""
    tagged = _TAGGED.findall(response[-READ:])
    return (tagged[-1], True) if tagged else (response[-READ:], False)


def json_of(text: str) -> Any:
    """Returns None for a text that is no JSON."""
    fenced = _FENCE.match(text)
    try:
        return json.loads(fenced[1] if fenced else text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return None


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


class BoxIoURewardWorker(RewardWorker):
    """Reward for overlaps (IoU) of the boxes found with those of the ground truth, paired greedily (`paired`): their sum, divided
    by the larger number of boxes, `sum(IoU) / max(found, true)`; so one box earns its IoU, and boxes too many or too few cost.

    `reward_args`: `threshold`, above 0 and at most 1: then a pair counts from this overlap on, and the reward is
    `2 * pairs / (found + true)` (F1). Both are 1 where there is nothing to be found, and `[]` is said."""

    reads = frozenset({"threshold"})

    def __init__(self, config: Mapping[str, object]) -> None:
        super().__init__(config)
        threshold = self.reward_args.get("threshold")
        if threshold is not None and (type(threshold) not in (int, float) or not 0 < threshold <= 1):
            raise ValueError(f"reward_args.threshold: {threshold!r} must be a number > 0 and <= 1, e.g. 0.5")
        self._threshold: float | None = threshold

    async def grade(self, sample: Sample) -> Grade:
        true, (answer, tagged) = boxes_of(sample.prompt.ground_truth), _answer(sample.response_text)
        if true is None:
            raise ValueError(f"the ground truth {sample.prompt.ground_truth[:80]!r} is no list of boxes: [x1, y1, x2, y2]")
        lists = [answer] if tagged else (_LIST.findall(answer) or [""])[-1:]
        found = boxes_of(lists[-1])
        if found is None:
            return 0.0, {"format": False}
        if not found and not true:
            return 1.0, {"format": True}
        overlaps = [each for each, _, _ in paired(found, true)]
        if self._threshold is None:
            return math.fsum(overlaps) / max(len(found), len(true)), {"format": True}
        return 2 * sum(each >= self._threshold for each in overlaps) / (len(found) + len(true)), {"format": True}

    def solution(self, ground_truth: str) -> str:
        return f"<answer>{ground_truth}</answer>"


class CountRewardWorker(RewardWorker):
    """1 for the right number: `<answer>3</answer>`, or a response that is `{"count": 3}` alone.

    `reward_args`: `partial: true` pays a wrong number n for the true t by its distance, `max(0, 1 - |n - t| / max(t, 1))`."""

    reads = frozenset({"partial"})

    def __init__(self, config: Mapping[str, object]) -> None:
        super().__init__(config)
        partial = self.reward_args.get("partial", False)
        if not isinstance(partial, bool):
            raise ValueError(f"reward_args.partial is {partial!r}; it must be true or false")
        self._partial = partial

    async def grade(self, sample: Sample) -> Grade:
        true, (answer, tagged) = _whole(sample.prompt.ground_truth), _answer(sample.response_text)
        if true is None:
            raise ValueError(f"the ground truth {sample.prompt.ground_truth[:80]!r} is no whole number")
        found = _whole(answer) if tagged else None
        if not tagged and isinstance(said := json_of(sample.response_text), dict) and type(said.get("count")) is int:
            found = said["count"]
        if found is None:
            return 0.0, {"format": False}
        distance = min(abs(found - true) / max(true, 1), 1.0) if self._partial else float(found != true)
        return 1.0 - distance, {"format": True}

    def solution(self, ground_truth: str) -> str:
        return f"<answer>{ground_truth}</answer>"


def _whole(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text := text.strip()) else None
