"""Reads the recorded steps of a run (`batches.jsonl`), one at a time. Any number of files, of any size."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from pathlib import Path
from typing import NamedTuple

import yaml

from roll.core.data.sample import SampleGroup
from roll.core.errors import PackingError
from roll.core.record.batch_log import BATCHES
from roll.core.record.journal import journal_parts
from roll.topologies.packing import unpacked

_STEP = re.compile(rb'\{"step": (\d+), ')
_BEGUN = re.compile(rb'\{"from": (\d+)\}')
_VERSION = re.compile(rb'\{"version": (\d+), "weights": "([0-9a-f]+)"\}')
LINE_HEAD = 96
"""Bytes that say which row a line is."""


class _Place(NamedTuple):
    file: Path
    start: int


class Recording:
    """The recorded steps of a run. Raises `ValueError` if there are none."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.weights: dict[int, str] = {}
        """Version -> the digest of its weights (`weights_digest`)."""
        self.begun: set[int] = set()
        """Numbers of the steps after which the run began, or went on from a checkpoint."""
        self._places: dict[int, _Place] = {}
        for part in journal_parts(run_dir / BATCHES) if run_dir.is_dir() else ():
            self._index(part.path)
        if not self._places:
            raise ValueError(f"{run_dir} has recorded no step: {_why_none(run_dir)}")

    @property
    def steps(self) -> list[int]:
        return sorted(self._places)

    def check(self, first: int, last: int) -> None:
        """Raises `ValueError` unless the steps from `first` to `last` are all there."""
        missing = [step for step in range(first, last + 1) if step not in self._places]
        if missing or first > last:
            there = f"steps {_ranges(self.steps)} are"
            why = "the oldest files went (rollout_log_limit_gb), or it was recorded in part" if missing else "none is left"
            lacking = _ranges(missing) or f"{first} to {last}"
            raise ValueError(f"{self.run_dir} has not recorded step {lacking}: {there} ({why})")

    def parts(self, step: int) -> list[list[SampleGroup]]:
        """Returns the groups of a step, by lease, in order. Raises `PackingError`."""
        place = self._places[step]
        with place.file.open("rb") as file:
            file.seek(place.start)
            row = json.loads(file.readline())
        try:
            return [[unpacked(b64decode(group, validate=True)) for group in part] for part in row["parts"]]
        except (PackingError, ValueError) as error:
            raise PackingError(f"{place.file}: step {step} cannot be read: {error}") from error

    def _index(self, path: Path) -> None:
        """Rows of a step that a resumed run took again stand behind those that it took first."""
        with path.open("rb") as file:
            start = 0
            for line in file:
                if (found := _STEP.match(line[:LINE_HEAD])) and line.endswith(b"\n"):
                    self._places[int(found[1])] = _Place(path, start)
                elif found := _BEGUN.match(line[:LINE_HEAD]):
                    self.begun.add(int(found[1]))
                elif found := _VERSION.match(line[:LINE_HEAD]):
                    self.weights[int(found[1])] = found[2].decode()
                start += len(line)


def _why_none(run_dir: Path) -> str:
    config = run_dir / "config.yaml"
    if not config.is_file():
        return "it is no folder of a run"
    written = yaml.safe_load(config.read_text()) or {}
    if "sft" in written or "dpo" in written:
        return "it is a run on rows of files, and its seed decides every step"
    logged = written.get("rollout_log_per_step")
    if logged == "all":
        return "it has trained none yet, or batches.jsonl is gone"
    return f"rollout_log_per_step is {logged}; samples.jsonl has rounded log-probs of some groups"


def _ranges(numbers: list[int]) -> str:
    """2, 4 to 7."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1] = [found[-1][0], number]
        else:
            found.append([number])
    return ", ".join(f"{each[0]} to {each[-1]}" if len(each) > 1 else f"{each[0]}" for each in found)
