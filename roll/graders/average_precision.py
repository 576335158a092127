"""COCO's average precision of the boxes found in one image, by pycocotools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

from roll.graders.boxes import Labelled

PRECISIONS = {"map": slice(None), "map50": slice(0, 1), "map75": slice(5, 6)}
"""Score -> its part of COCO's ten thresholds, 0.5 to 0.95."""


def check_installed() -> None:
    if find_spec("pycocotools") is None:
        raise ValueError("it needs pycocotools, which is not installed: pip install 'roll[detection]'")


def precisions(found: Sequence[Labelled], true: Sequence[Labelled]) -> dict[str, float]:
    """COCO's average precision of one image. Detections of labels that are not true are none to it."""
    evaluation, coco = _pycocotools()
    numbers = {label: i for i, label in enumerate(dict.fromkeys(each.label for each in true))}
    run = evaluation(coco(true, numbers), coco([each for each in found if each.label in numbers], numbers), "bbox")
    run.params.maxDets = run.params.maxDets[-1:]
    run.params.areaRng, run.params.areaRngLbl = run.params.areaRng[:1], run.params.areaRngLbl[:1]
    run.evaluate()
    run.accumulate()
    return {name: float(run.eval["precision"][chosen].mean()) for name, chosen in PRECISIONS.items()}


@cache
def _pycocotools() -> tuple[Any, Any]:
    """Returns its evaluation, and the maker of the annotations that it compares."""
    from pycocotools import coco, cocoeval

    for module in (coco, cocoeval):  # they say on stdout what they are about to do, for each answer
        vars(module)["print"] = lambda *_: None

    def annotations(boxes: Sequence[Labelled], numbers: Mapping[str, int]) -> Any:
        made = coco.COCO()
        rows = [
            {"id": i, "image_id": 1, "category_id": numbers[label], "iscrowd": 0, "score": 1.0, "area": box.area,
             "bbox": [box.left, box.top, box.right - box.left, box.bottom - box.top]}
            for i, (box, label) in enumerate(boxes, 1)
        ]  # fmt: skip
        categories = [{"id": number, "name": label} for label, number in numbers.items()]
        made.dataset = {"images": [{"id": 1}], "categories": categories, "annotations": rows}
        made.createIndex()
        return made

    return cocoeval.COCOeval, annotations
