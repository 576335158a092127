"""The tasks of one process in a run that has several sets of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from roll.core.configs.plain import JsonMapping, JsonObject
from roll.core.data.sample import Prompt
from roll.core.groups.tasks import TaskSource


class OneTaskSet(TaskSource):
    """Task ids that name the set of a task, as two files may number theirs alike.

    `gsm8k/0/train.jsonl:136` becomes `gsm8k@5f0c2a1b/0/train.jsonl:136`. The name comes from the set's contents, so all who read
    the same one have the same ids, wherever it lies."""

    def __init__(self, source: TaskSource, name: str) -> None:
        self._source = source
        self._mark = f"@{name}"

    def next(self) -> Prompt:
        prompt = self._source.next()
        first, rest = prompt.uid.split("/", 1)
        return replace(prompt, uid=f"{first}{self._mark}/{rest}")

    def cursor(self, outstanding: Sequence[Prompt] = ()) -> JsonObject:
        return self._source.cursor([replace(prompt, uid=self._plain(prompt.uid)) for prompt in outstanding])

    def restore(self, cursor: JsonMapping) -> None:
        self._source.restore({**cursor, "returned": [self._plain(uid) for uid in cursor["returned"]]})

    def _plain(self, uid: str) -> str:
        first, rest = uid.split("/", 1)
        return f"{first.removesuffix(self._mark)}/{rest}"
