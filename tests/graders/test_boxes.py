"""Boxes and counts: honest answers earn what the formula says, hostile ones nothing."""

import asyncio
import itertools
import json
import random
import time

import pytest

from roll.core.data.sample import Prompt, Sample
from roll.graders.boxes import Box, BoxIoURewardWorker, CountRewardWorker, boxes_of, overlap, paired

CONFIG = {"timeout_s": 5.0, "max_concurrency": 2}
ONE, TWO = "[0, 0, 10, 10]", "[[0, 0, 10, 10], [20, 20, 30, 40]]"


def graded(cls, response, truth, **arguments):
    sample = Sample(Prompt("a/0/1", [1], "?", "a", "a", truth, {}), 0, [2], [0.0], [], "stop", response_text=response)
    return asyncio.run(cls({**CONFIG, "reward_args": arguments}).result(sample))


HONEST = [
    (ONE, ONE, 1.0),
    ("The dog is at [0, 0, 10, 5].", ONE, 0.5),
    ("<answer>[0, 0, 10, 5]</answer>", ONE, 0.5),
    ("I first thought [0,0,1,1], but: [5, 0, 15, 10]", ONE, 1 / 3),
    ("<answer>[0,0,1,1]</answer> no: <answer>[0, 0, 10, 10]</answer>", ONE, 1.0),
    ('```json\n[{"bbox_2d": [0, 0, 10, 10], "label": "dog"}]\n```', ONE, 1.0),
    ('<answer>```json\n{"bbox_2d": [0.0, 0.0, 10.0, 10.0]}\n```</answer>', ONE, 1.0),
    ("[[20, 20, 30, 40], [0, 0, 10, 10]]", TWO, 1.0),
    (ONE, TWO, 0.5),
    ("[[0, 0, 10, 10], [20, 20, 30, 40], [50, 50, 60, 60]]", TWO, 2 / 3),
    ("[[0, 0, 10, 10], [0, 0, 10, 10]]", ONE, 0.5),
    ("[11, 0, 20, 10]", ONE, 0.0),
    ("<answer>[]</answer>", "[]", 1.0),
    ("[]", "[]", 1.0),
    ("<answer>[0, 0, 10, 10]", ONE, 1.0),  # not closed: no tag
    ("[]", ONE, 0.0),
    (ONE, "[]", 0.0),
]
HOSTILE = [
    "", "no box", "[0, 0, 10]", "[0, 0, 10, 10, 10]", "[10, 10, 0, 0]", "[0, 0, 0, 0]",
    "[NaN, 0, 10, 10]", "[0, 0, Infinity, 10]",
    "[0, 0, 1e999, 10]", "[0, 0, 1e300, 1e300]", "[-1e300, -1e300, 1e300, 1e300]", '["0", "0", "10", "10"]',
    "[true, false, 10, 10]",
    "[0, 0, 10, 10", "<answer>[[[[0, 0, 10, 10]]]]</answer>",
    "[null]", "[[0, 0, 10, 10], null]", '[{"bbox_2d": "[0, 0, 10, 10]"}]', "[" * 100_000,
    "<answer>" + "[]" * 2000 + "</answer>", "[1," * 50_000, "<answer>" * 20_000, "<answer>[0, 0, 10]",
    "[0, 0, 10, 10]</answer><answer>x</answer>",
    "<answer>it is [0, 0, 10, 10]</answer>", "<answer>[0,0,10,10] or [5,5,9,9]</answer>", json.dumps([[0, 0, 10, 10]] * 101),
    "[0, 0, 10, 10] " + "x" * 9000, "[９, ０, 10, 10]", "(0, 0, 10, 10)", "[0,0,10,10].__class__[0]",
    '{"bbox_2d": [0, 0, 10, 10]}'.replace("[", "(").replace("]", ")"),
]  # fmt: skip


@pytest.mark.parametrize(("response", "truth", "reward"), HONEST)
def test_honest_boxes_earn_their_overlap(response, truth, reward):
    result = graded(BoxIoURewardWorker, response, truth)
    assert result.value == pytest.approx(reward, abs=1e-12) and result.parts["format"] == 1


def test_hostile_answers_earn_nothing_and_take_no_time():
    assert len(HONEST) == 17 and len(HOSTILE) == 32
    for response in HOSTILE:
        started = time.process_time()
        result = graded(BoxIoURewardWorker, response, ONE)
        assert (result.value, result.parts["format"]) == (0.0, 0), response[:60]
        assert time.process_time() - started < 5, response[:60]


def test_many_boxes_do_not_pay():
    """A hundred boxes in a grid earn less than one that is half right."""
    grid = [[x, y, x + 10, y + 10] for x, y in itertools.product(range(0, 100, 10), repeat=2)]
    assert graded(BoxIoURewardWorker, json.dumps(grid), ONE).value == pytest.approx(0.01)
    assert graded(BoxIoURewardWorker, json.dumps(grid), ONE, threshold=0.5).value == pytest.approx(2 / 101)


def test_a_threshold_counts_pairs():
    assert graded(BoxIoURewardWorker, "[0, 0, 10, 5]", ONE, threshold=0.5).value == 1.0
    assert graded(BoxIoURewardWorker, "[0, 0, 10, 4.9]", ONE, threshold=0.5).value == 0.0
    assert graded(BoxIoURewardWorker, ONE, TWO, threshold=0.5).value == pytest.approx(2 / 3)
    for bad in (0, 2, "0.5", True):
        with pytest.raises(ValueError, match="threshold"):
            graded(BoxIoURewardWorker, ONE, ONE, threshold=bad)


def test_overlaps_are_those_of_counted_squares_and_pairs_are_greedy():
    chance = random.Random(0)

    def drawn():
        x, y = chance.randrange(8), chance.randrange(8)
        return Box(x, y, x + chance.randrange(1, 6), y + chance.randrange(1, 6))

    def squares(box):
        return set(itertools.product(range(int(box.left), int(box.right)), range(int(box.top), int(box.bottom))))

    for _ in range(200):
        one, other = drawn(), drawn()
        both, either = squares(one) & squares(other), squares(one) | squares(other)
        assert overlap(one, other) == pytest.approx(len(both) / len(either), abs=1e-12) == overlap(other, one)
        found, true = [drawn() for _ in range(4)], [drawn() for _ in range(3)]
        overlaps = [each for each, _, _ in paired(found, true)]
        assert overlaps == sorted(overlaps, reverse=True) and len(overlaps) <= 3
        best = max(overlap(a, b) for a in found for b in true)
        assert overlaps[:1] == ([pytest.approx(best)] if best > 0 else [])


def test_a_ground_truth_without_boxes_is_an_error_and_the_solution_is_right():
    assert boxes_of(ONE) == [Box(0, 0, 10, 10)]
    assert graded(BoxIoURewardWorker, ONE, "somewhere").value is None
    for truth in (ONE, TWO, "[]"):
        worker = BoxIoURewardWorker({**CONFIG, "reward_args": {}})
        assert graded(BoxIoURewardWorker, worker.solution(truth), truth).value == 1.0


COUNTS = [
    ("<answer>3</answer>", 1.0, True), ("I see <answer> 3\n</answer>", 1.0, True), ('{"count": 3}', 1.0, True),
    ('```json\n{"count": 3}\n```', 1.0, True), ("<answer>4</answer><answer>3</answer>", 1.0, True),
    ("<answer>2</answer>", 0.0, True),
    ("<answer>0</answer>", 0.0, True), ('{"count": 99}', 0.0, True),
    ("3", 0.0, False), ("", 0.0, False), ("<answer>1 2 3</answer>", 0.0, False), ("<answer>3 or 4</answer>", 0.0, False),
    ("<answer>3.0</answer>", 0.0, False), ("<answer>-3</answer>", 0.0, False), ("<answer>３</answer>", 0.0, False),
    ('{"count": "3"}', 0.0, False), ('{"count": true}', 0.0, False), ('{"count": 3} {"count": 4}', 0.0, False),
    ("<answer>" + "9" * 5000 + "</answer>", 0.0, False), ("<answer>3", 0.0, False), ("[3]", 0.0, False),
    ("{" * 90_000, 0.0, False),
    ('{"count": NaN}', 0.0, False),
]  # fmt: skip


def test_counts():
    assert sum(formed for *_, formed in COUNTS) == 8 and len(COUNTS) == 23
    for response, reward, formed in COUNTS:
        result = graded(CountRewardWorker, response, "3")
        assert (result.value, bool(result.parts["format"])) == (reward, formed), response[:60]
    assert [graded(CountRewardWorker, f"<answer>{n}</answer>", "4", partial=True).value for n in (4, 3, 6, 8, 99)] == [
        1,
        0.75,
        0.5,
        0,
        0,
    ]
    assert graded(CountRewardWorker, "<answer>1</answer>", "many").value is None
    with pytest.raises(ValueError, match="partial"):
        graded(CountRewardWorker, "", "3", partial="yes")
