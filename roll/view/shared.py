"""What many readers of a run ask at once is worked out once, and again when a file that it comes from has changed."""

from __future__ import annotations

import asyncio
import json
import os
from collections import OrderedDict
from collections.abc import Sequence

from starlette.concurrency import run_in_threadpool

from roll.view.answers import Question, answer
from roll.view.folder import Runs

SOURCES = {
    "curves": ("metrics.jsonl",),
    "clock": ("metrics.jsonl",),
    "funnel": ("groups.jsonl", "summary.json"),
    "groups": ("groups.", "samples"),
    "lanes": ("trace",),
}
"""The files of a run that an answer comes from, by how their names begin. Other questions are answered each time."""
MOST_KEPT = 64

Stamp = tuple[tuple[str, int, int], ...]
Key = tuple[str, tuple[tuple[str, str], ...]]


class Shared:
    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._kept: OrderedDict[Key, tuple[Stamp, asyncio.Task[bytes]]] = OrderedDict()

    async def answer(self, what: str, given: Sequence[tuple[str, str]]) -> bytes:
        """As JSON. Raises as `answer`."""
        question = Question([one for one in given if one[0] != "token"])
        if what not in SOURCES:
            return await run_in_threadpool(self._worked_out, what, question)
        stamp = await run_in_threadpool(self._stamp, what, question)
        key = what, tuple(question.given)
        before = self._kept.pop(key, None)
        if before is None or before[0] != stamp or (before[1].done() and before[1].exception()):
            before = stamp, asyncio.create_task(run_in_threadpool(self._worked_out, what, question))
        self._kept[key] = before
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        return await asyncio.shield(before[1])

    def _worked_out(self, what: str, question: Question) -> bytes:
        return json.dumps(answer(self._runs, what, question), allow_nan=False, separators=(",", ":")).encode()

    def _stamp(self, what: str, question: Question) -> Stamp:
        with os.scandir(self._runs.run(question.get("run")).folder) as entries:
            stats = [(entry.name, entry.stat(follow_symlinks=False)) for entry in entries if entry.name.startswith(SOURCES[what])]
        return tuple(sorted((name, stat.st_mtime_ns, stat.st_size) for name, stat in stats))
