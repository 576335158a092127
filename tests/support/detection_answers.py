"""Answers to questions for objects in an image, drawn by a seed: right ones, and wrong ones of many kinds."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

LABELS = ("cat", "dog", "traffic light", "Person")
WEIGHTS = ("iou_max_iou_first", "iou_max_label_first", "map", "map50", "map75")
THRESHOLDS = ("average", "0.5", "0.75", "0.95", "0.99", "dynamic")
Boxes = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Asked:
    kind: str
    response: str
    truth: str
    ratio: dict[str, float]
    threshold: str
    step: int
    """Of 100."""


def drawn(chance: random.Random) -> dict[str, Any]:
    x, y = chance.randrange(900), chance.randrange(900)
    box = [x, y, x + chance.randrange(5, 100), y + chance.randrange(5, 100)]
    return {"bbox_2d": box, "label": chance.choice(LABELS)}


def moved(each: dict[str, Any], most: int, chance: random.Random) -> dict[str, Any]:
    x, y = chance.randint(-most, most), chance.randint(-most, most)
    left, top, right, bottom = each["bbox_2d"]
    return each | {"bbox_2d": [left + x, top + y, right + x, bottom + y]}


def tagged(boxes: object, before: str = "Two things.\n") -> str:
    return f"{before}<answer>\n{boxes if isinstance(boxes, str) else json.dumps(boxes)}\n</answer>"


CHANGES: dict[str, Callable[[Boxes, random.Random], str]] = {
    "right": lambda b, c: tagged(b),
    "reordered": lambda b, c: tagged(c.sample(b, len(b))),
    "near": lambda b, c: tagged([moved(each, 2, c) for each in b]),
    "shifted": lambda b, c: tagged([moved(each, 15, c) for each in b]),
    "far": lambda b, c: tagged([moved(each, 200, c) for each in b]),
    "missing": lambda b, c: tagged(b[1:] or [drawn(c)]),
    "extra": lambda b, c: tagged([*b, *(drawn(c) for _ in range(c.randint(1, 3)))]),
    "extra before": lambda b, c: tagged([drawn(c), *b]),
    "many near": lambda b, c: tagged([moved(each, 6, c) for each in b for _ in range(4)]),
    "wrong label": lambda b, c: tagged([each | {"label": "zebra"} for each in b[:1]] + b[1:]),
    "labels exchanged": lambda b, c: tagged([each | {"label": b[i - 1]["label"]} for i, each in enumerate(b)]),
    "capitals": lambda b, c: tagged([each | {"label": each["label"].upper()} for each in b]),
    "floats": lambda b, c: tagged([each | {"bbox_2d": [x + 0.25 for x in each["bbox_2d"]]} for each in b]),
    "twice": lambda b, c: tagged([*b, *b]),
    "same place": lambda b, c: tagged([b[0] | {"label": "dog"}, *b]),
    "confidence": lambda b, c: tagged([each | {"confidence": 0.5} for each in b]),
    "Python's quotes": lambda b, c: tagged(str(b)),
    "cut off": lambda b, c: tagged(json.dumps(b)[: -c.randint(1, 30)]),
    "nested once": lambda b, c: tagged(f"[{json.dumps(b)}]"),
    "one line": lambda b, c: f"<answer>{json.dumps(b)}</answer>",
    "no tag": lambda b, c: json.dumps(b),
    "no end": lambda b, c: tagged(b).removesuffix("</answer>"),
    "two answers": lambda b, c: tagged(b[:1]) + tagged(b),
    "words inside": lambda b, c: tagged(f"These: {json.dumps(b)}"),
    "reversed": lambda b, c: tagged([each | {"bbox_2d": each["bbox_2d"][::-1]} for each in b[:1]] + b[1:]),
    "some malformed": lambda b, c: tagged([{"bbox_2d": [1, 2, 3]}, {"label": "cat"}, 7, "cat", {"bbox_2d": "1", "label": 2}, *b]),
    "texts": lambda b, c: tagged([each | {"bbox_2d": [str(x) for x in each["bbox_2d"]]} for each in b]),
    "no labels": lambda b, c: tagged([{"bbox_2d": each["bbox_2d"]} for each in b]),
    "an object": lambda b, c: tagged(b[0]),
    "empty list": lambda b, c: tagged("[]"),
    "empty": lambda b, c: tagged(""),
    "nothing": lambda b, c: "",
    "no JSON": lambda b, c: tagged("[{bbox_2d: 1,,}]"),
    "flood": lambda b, c: tagged([*b, *(drawn(c) for _ in range(60))]),
    "NaN": lambda b, c: tagged(json.dumps([b[0] | {"bbox_2d": [float("nan"), 0, 5, 5]}])),
}  # fmt: skip


def asked(count: int, seed: int = 7) -> Iterator[Asked]:
    """The kinds in turn."""
    chance, kinds = random.Random(seed), list(CHANGES)
    for number in range(count):
        kind = kinds[number % len(kinds)]
        boxes = list({tuple(each["bbox_2d"]): each for each in (drawn(chance) for _ in range(chance.randint(1, 6)))}.values())
        if chance.random() < 0.5:  # near one another, so that pairs compete
            boxes = [*boxes, moved(boxes[0], 10, chance) | {"label": chance.choice(LABELS)}]
            boxes = list({tuple(each["bbox_2d"]): each for each in boxes}.values())
        ratio = {name: round(chance.random(), 2) for name in chance.sample(WEIGHTS, chance.randint(1, 5))}
        ratio["iou_completeness"] = round(chance.random(), 2)
        threshold, step = chance.choice(THRESHOLDS), chance.randrange(60)
        yield Asked(kind, CHANGES[kind](boxes, chance), tagged(boxes, before=""), ratio, threshold, step)
