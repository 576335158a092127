"""A reward by a rule for objects that are found, boxes with labels, as ROLL's files of models that see ask for it.

The rule is that of One RL to See Them All (arXiv:2505.18129): overlaps of greedy pairs from several thresholds on, COCO's average
precision, and a share for the form. Each row says how much each of them weighs."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from roll.core.data.sample import Sample
from roll.core.rewards.worker import Grade, RewardWorker
from roll.core.weights.folder_files import CONFIG, read_json
from roll.graders.average_precision import PRECISIONS, check_installed, precisions
from roll.graders.boxes import Box, Labelled, box_of, json_of, overlap, paired
from roll.prompts.row_images import SIZES

THRESHOLDS = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.99)
"""Overlaps from which on a pair may count."""
AVERAGE, DYNAMIC = "average", "dynamic"
VARIABLE = "DET_IOU_THRESHOLD"
BY_OVERLAP, BY_LABEL = "iou_max_iou_first", "iou_max_label_first"
SCORES = (BY_OVERLAP, BY_LABEL, *PRECISIONS)
"""Scores that a row's `det_reward_ratio` weighs."""
COMPLETENESS = "iou_completeness"
"""Share of completeness in the scores by overlap."""
EACH_BOX = 0.6
"""Factor of the accuracy for each box too many or too few."""
NOTHING = 1e-9
SIDE = 1000
"""Coordinates of the ground truth go so far, whatever the image's size."""
_ABSOLUTE = "qwen2_5_vl"
"""The `model_type` of models that write pixels of the image as they see it."""


def labelled(text: str) -> list[Labelled]:
    """The boxes between the first `<answer>` and its end: a list of objects with `bbox_2d` and `label`, also with Python's
    quotes, and without its end. Objects of another form are left out, and of several at one place all but the first."""
    content, closed, _ = text.partition("<answer>")[2].partition("</answer>")
    content = content.strip().lower().replace("[[", "[").replace("]]", "]")
    if not closed or not content:
        return []
    if not content.endswith("]"):
        content = content.rsplit("},", 1)[0] + "}]"
    found = json_of(content) or json_of(content.replace("'", '"').replace("\\", ""))
    boxes = dict[Box, Labelled]()
    for each in found if isinstance(found, list) else ():
        label = each.get("label") if isinstance(each, dict) else None
        if isinstance(label, str) and (box := box_of(each.get("bbox_2d"))) is not None:
            boxes.setdefault(box, Labelled(box, label))
    return list(boxes.values())


def scaled(found: Sequence[Labelled], width: float, height: float) -> list[Labelled]:
    """From pixels of an image of this size to parts of `SIDE`, cut off."""
    sizes = (width, height, width, height)
    return [
        Labelled(Box(*(float(int(x / size * SIDE)) for x, size in zip(box, sizes, strict=True))), label) for box, label in found
    ]


def by_overlap(found: Sequence[Labelled], true: Sequence[Labelled]) -> Callable[[float], list[float]]:
    """By threshold the pairs' overlaps: boxes that overlap most make a pair first. One of two labels is a pair, and worth 0."""
    pairs = paired([each.box for each in found], [each.box for each in true])
    worth = [(value, value if found[i].label == true[j].label else 0.0) for value, i, j in pairs]
    return lambda threshold: [paid for value, paid in worth if value >= threshold]


def by_label(found: Sequence[Labelled], true: Sequence[Labelled]) -> Callable[[float], list[float]]:
    """By threshold the pairs' overlaps: each true box takes what overlaps most with it, of its label and not yet taken."""
    near = [
        sorted(((overlap(one.box, box), -i) for i, one in enumerate(found) if one.label == label), reverse=True)
        for box, label in true
    ]

    def at(threshold: float) -> list[float]:
        taken = dict[int, float]()
        for candidates in near:
            value, i = next((each for each in candidates if each[1] not in taken), (0.0, 0))
            if value >= threshold:
                taken[i] = value
        return list(taken.values())

    return at


def weighed(pairs: Sequence[float], found: int, true: int, completeness: float) -> float:
    """Their overlap for each true box, and by the share `completeness` the mean of recall and precision."""
    complete = (len(pairs) / true + len(pairs) / found) / 2
    return (1 - completeness) * math.fsum(pairs) / true + completeness * complete


class DetectionRewardWorker(RewardWorker):
    """The weighted mean of accuracy and form, by the row's column `reward_model`: `accuracy_ratio` (1), `format_ratio` (0.1), and
    in `verifier_parm` the weights `det_reward_ratio`, and `det_verifier_normalized`: true, by which pixels become parts of 1000.
    `reward_args` may have these for rows without them; besides `iou_threshold`, one of `THRESHOLDS`, `average` of them, or
    `dynamic`, which needs `total_steps`; without it the variable `VARIABLE` says it, else it is the average."""

    reads = frozenset(
        {"iou_threshold", "total_steps", "accuracy_ratio", "format_ratio", "det_reward_ratio", "det_verifier_normalized"}
    )

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        check_installed()
        self._threshold = _threshold(self.reward_args.get("iou_threshold", os.environ.get(VARIABLE, AVERAGE)))
        self._steps = self.reward_args.get("total_steps", 0)
        if type(self._steps) is not int or (self._threshold == DYNAMIC and self._steps < 1):
            raise ValueError(f"iou_threshold {DYNAMIC} needs reward_args.total_steps, the run's max_steps; not {self._steps!r}")
        folder = Path(config.get("policy") or ".")
        known = (folder / CONFIG).is_file() and read_json(folder / CONFIG).get("model_type") == _ABSOLUTE
        self._pixels_of = folder if known else None
        self._processor: Any = None

    async def start(self) -> None:
        if self._pixels_of is not None:
            from roll.strategies.vision.families import family_of

            self._processor = getattr(family_of(self._pixels_of), "processor", None)

    async def grade(self, sample: Sample) -> Grade:
        truth, response, rule = sample.prompt.ground_truth, sample.response_text, self._rule(sample.prompt.row)
        true, found = labelled(truth if "<answer>" in truth else f"<answer>{truth}</answer>"), labelled(response)
        if not true:
            raise ValueError(f"the ground truth {truth[:80]!r} is no list of boxes with labels: bbox_2d and label of each")
        weights = rule.get("det_reward_ratio")
        shares = {name: _share(weights if isinstance(weights, Mapping) else {}, name) for name in (*SCORES, COMPLETENESS)}
        if not (total := math.fsum(shares[name] for name in SCORES)):
            raise ValueError(f"det_reward_ratio of its row is {weights!r}; it must weigh one of {', '.join(SCORES)}")
        formed = "\n<answer>\n" in response and response.count("\n</answer>") == 1 and bool(found)
        if found and rule.get("det_verifier_normalized") and self._pixels_of is not None:
            found = scaled(found, *self._seen(sample.prompt.row))
        penalty = EACH_BOX ** abs(len(found) - len(true))
        scores = dict.fromkeys(SCORES, 0.0)
        if found and penalty > NOTHING:
            thresholds = self._thresholds(sample)
            for name, pairs in ((BY_OVERLAP, by_overlap(found, true)), (BY_LABEL, by_label(found, true))):
                each = (weighed(pairs(t), len(found), len(true), shares[COMPLETENESS]) for t in thresholds)
                scores[name] = math.fsum(each) / len(thresholds)
            scores |= precisions(found, true)
        accuracy = penalty * math.fsum(shares[name] * scores[name] for name in SCORES) / total
        of_accuracy, of_form = _share(rule, "accuracy_ratio", 1.0, math.inf), _share(rule, "format_ratio", 0.1, math.inf)
        if not of_accuracy + of_form:
            raise ValueError("accuracy_ratio and format_ratio of its row are both 0: one of them must weigh")
        reward = (of_accuracy * accuracy + of_form * formed) / (of_accuracy + of_form)
        return reward, {"format": float(formed), "accuracy": accuracy, "size_penalty": penalty, **scores}

    def solution(self, ground_truth: str) -> str | None:
        """None for a model that writes pixels: the ground truth may be in parts of 1000."""
        content = ground_truth.partition("<answer>")[2].partition("</answer>")[0] or ground_truth
        return None if self._pixels_of is not None else f"\n<answer>\n{content.strip()}\n</answer>"

    def _rule(self, row: Mapping[str, Any]) -> dict[str, Any]:
        found = dict(self.reward_args)
        given = row.get("reward_model")
        for block in (given, given.get("verifier_parm") if isinstance(given, Mapping) else None):
            if isinstance(block, Mapping):
                found |= {name: value for name, value in block.items() if value is not None}
        return found

    def _thresholds(self, sample: Sample) -> Sequence[float]:
        if self._threshold == AVERAGE:
            return THRESHOLDS
        if isinstance(self._threshold, float):
            return (self._threshold,)
        share = (sample.versions[-1].version if sample.versions else 0) / self._steps
        return (0.85 if share <= 0.1 else 0.95 if share <= 0.25 else 0.99,)

    def _seen(self, row: Mapping[str, Any]) -> tuple[float, float]:
        """Width and height of the first image, as the model sees it."""
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

        if not row.get(SIZES):
            raise ValueError("det_verifier_normalized of its row is true, and the row has no image")
        width, height = row[SIZES][0]
        unit, size = self._processor.patch_size * self._processor.merge_size, self._processor.size
        height, width = smart_resize(height, width, unit, size["shortest_edge"], size["longest_edge"])
        return width, height


def _threshold(value: object) -> float | str:
    try:
        found = str(value) if value in (AVERAGE, DYNAMIC) else float(str(value))
    except ValueError:
        found = math.nan
    if found not in (*THRESHOLDS, AVERAGE, DYNAMIC):
        known = f"{AVERAGE}, {DYNAMIC}, {', '.join(map(str, THRESHOLDS))}"
        raise ValueError(f"iou_threshold (or the variable {VARIABLE}) is {value!r}; it must be one of {known}")
    return found


def _share(rule: Mapping[str, Any], name: str, default: float = 0.0, most: float = 1.0) -> float:
    value = rule.get(name)
    if value is None:
        return default
    if type(value) not in (int, float) or not 0 <= value <= most:
        raise ValueError(f"{name} of its row is {value!r}; it must be a number from 0 to {most:g}")
    return float(value)
