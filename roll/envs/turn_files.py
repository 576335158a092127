"""The turns of the groups that are being played: a journal for each group, in the folder `turns` of the run.

A row is one event of an episode (`EPISODE` names it and its attempt): what its environment began with, an answer of the policy
with what it was asked (a digest of the context), the environment's step, or `AGAIN`, which makes all rows of the episode before
it void. Rows are handed to the operating system, and not waited for on a disk: they outlive processes, not a machine."""

from __future__ import annotations

import base64
import json
import math
import shutil
import threading
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from urllib.parse import quote, unquote

from roll.core.configs.plain import JsonMapping, JsonObject
from roll.core.data.episode import PolicyAnswer
from roll.core.data.extras import NOTHING, Extras
from roll.core.data.sample import LOGPROBS, TOKENS, SampleGroup, VersionSpan, packed
from roll.core.record.callbacks import Callback, MetricsRow, Summary
from roll.core.record.checkpoint import CheckpointStore
from roll.core.record.journal import read_rows, write_atomically
from roll.core.record.run_progress import RunProgress
from roll.envs.folder_calls import FolderCalls
from roll.plan.turn_bytes import FOLDER

EPISODE, AGAIN = "episode", "again"
ATTEMPT = "attempt"
"""Metric of an episode that failed and was played again: how often. Seeds of its turns are others then."""
NO_ANSWER: JsonMapping = {"versions": ()}
CLEAR_S = 10.0
"""Time that a run's end waits for the removal of the folder."""


def to_json(answer: PolicyAnswer) -> JsonObject:
    return {
        "ids": base64.b64encode(packed(answer.token_ids, TOKENS).tobytes()).decode(),
        "logprobs": base64.b64encode(packed(answer.logprobs, LOGPROBS).tobytes()).decode(),
        "versions": [list(span) for span in answer.versions],
        "text": answer.text,
        "stopped": answer.stopped,
        "extras": None if answer.extras == NOTHING else answer.extras.to_json(),
    }


def from_json(row: JsonMapping) -> PolicyAnswer:
    ids, logprobs = (array(kind, base64.b64decode(row[name])) for name, kind in (("ids", TOKENS), ("logprobs", LOGPROBS)))
    extras = NOTHING if row["extras"] is None else Extras.from_json(row["extras"])
    return PolicyAnswer(ids, logprobs, [VersionSpan(*span) for span in row["versions"]], row["text"], row["stopped"], extras)


class TurnFiles:
    """The journals of a run's groups, by the uid of the group. A folder that hangs costs the record, and no wait."""

    def __init__(self, run_dir: Path) -> None:
        self._folder = run_dir / FOLDER
        self.calls = FolderCalls(run_dir)
        self._begun: dict[str, list[int]] = {}

    def path(self, uid: str) -> Path:
        return self._folder / f"{quote(uid, safe='')}.jsonl"

    def begun(self, uid: str) -> Sequence[int]:
        """Returns the versions of the first turns of a group's episodes that `forget_after` has left."""
        return self._begun.get(uid, ())

    def size(self, uid: str) -> int:
        with suppress(OSError):
            return self.calls(lambda: self.path(uid).stat().st_size)
        return 0

    def remove(self, uid: str) -> None:
        with suppress(OSError):
            self.calls(self.path(uid).unlink)

    def clear(self) -> None:
        with suppress(TimeoutError):
            self.calls(partial(shutil.rmtree, self._folder, ignore_errors=True), patience_s=CLEAR_S)

    def forget_after(self, version: int) -> None:
        """Removes turns that were sampled by later versions than that of the checkpoint which the run goes on from: their weights
        are gone, and other versions will have their numbers."""
        for path in self._folder.glob("*.jsonl"):
            rows = rows_of(path)
            kept = [*_until(version, rows)]
            if not kept:
                path.unlink()
            elif kept != rows:
                write_atomically(path, b"".join(json.dumps(row).encode() + b"\n" for row in kept))
            self._begun[unquote(path.stem)] = _first_versions(kept)


class TurnFile:
    """A journal that one group writes. Each row is one write, and on record when the environment, or the program, hears of it."""

    def __init__(self, path: Path) -> None:
        """A line that a killed writer left half-written is removed. Raises `OSError`, as `append`."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._alone = threading.Lock()  # a write that nobody waits for any longer may not have ended
        self._file = path.open("ab", buffering=0)
        self.size = path.read_bytes().rfind(b"\n") + 1
        self._file.truncate(self.size)

    def append(self, row: JsonMapping) -> None:
        line = json.dumps(row).encode() + b"\n"
        with self._alone:
            if (written := self._file.write(line)) != len(line):
                self._file.truncate(self.size)
                raise OSError(f"{written} of {len(line)} bytes of a turn could be written")
            self.size += len(line)

    def close(self) -> None:
        with self._alone:
            self._file.close()


def rows_of(path: Path) -> list[JsonObject]:
    """Returns the rows of a journal, up to the first that cannot be read."""
    rows: list[JsonObject] = []
    with suppress(OSError, ValueError):
        rows.extend(read_rows(path))
    return rows


def oldest(row: JsonMapping) -> float:
    """The oldest version of the answer in a row; of a row without one it is infinite."""
    return min((span[2] for span in row.get("answer", NO_ANSWER)["versions"]), default=math.inf)


def _first_versions(rows: Iterable[JsonMapping]) -> list[int]:
    """Returns the oldest version of each episode, in order."""
    found: dict[str, int] = {}
    for row in rows:
        if AGAIN in row:
            found.pop(row[EPISODE], None)
        elif (version := oldest(row)) < math.inf:
            found[row[EPISODE]] = min(int(version), found.get(row[EPISODE], int(version)))
    return sorted({*found.values()})


def _until(version: int, rows: Iterable[JsonObject]) -> Iterator[JsonObject]:
    """The rows of each episode up to its first answer of a later version."""
    over = set()
    for row in rows:
        if AGAIN in row:
            over.discard(row[EPISODE])
        if any(span[2] > version for span in row.get("answer", NO_ANSWER)["versions"]):
            over.add(row[EPISODE])
        if row[EPISODE] not in over:
            yield row


class KeptTurns(Callback):
    """Removes the record of a group once a checkpoint has what became of the group."""

    def __init__(self, run_dir: Path, checkpoints: Path, save_steps: int) -> None:
        self._files, self._store, self._save_steps = TurnFiles(run_dir), CheckpointStore(checkpoints), save_steps
        self._step = 0
        self._judged: deque[tuple[int, str]] = deque()
        """Steps trained when a group was judged, and the group."""

    def on_run_begin(self, step: int, rows: Sequence[MetricsRow]) -> None:
        self._step = step
        self._judged.clear()  # they are played, and judged, again

    def on_step(self, step: int, metrics: MetricsRow) -> None:
        self._step = step

    def on_group(self, group: SampleGroup, reason: str | None) -> None:
        if self._save_steps:
            self._judged.append((self._step, group.prompt.uid))
        else:
            self._files.remove(group.prompt.uid)

    def on_summary(self, summary: Summary, progress: RunProgress) -> None:
        newest = 0
        with suppress(TimeoutError):
            newest = max(self._files.calls(self._store.steps), default=0)
        while self._judged and self._judged[0][0] < newest:
            self._files.remove(self._judged.popleft()[1])

    def on_run_end(self, summary: Summary) -> None:
        if summary.get("status") == "finished":
            self._files.clear()
