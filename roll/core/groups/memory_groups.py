"""The groups of a run of one process, in its memory: no other process has to be told, and nothing has to be fetched."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext

from roll.core.configs.plain import JsonMapping, JsonObject
from roll.core.data.sample import SampleGroup
from roll.core.groups.groups import Groups
from roll.core.groups.reuse import Trained
from roll.core.groups.ticket import GroupState


class MemoryGroups(Groups):
    def state(self) -> JsonObject:
        live = self.admission.live
        outstanding = [self._live[i].prompt for i in sorted(live) if live[i].state is GroupState.IN_FLIGHT]
        return {"admission": self.admission.state(), "cursor": self._source.cursor(outstanding)}

    def buffered(self) -> list[JsonObject]:
        live, trained = self.admission.live, self.admission.reuse.groups
        complete = [self._live[i].to_json() for i in sorted(live) if live[i].state is GroupState.BUFFERED]
        return complete + [self._live[i].to_json() | {"uses": trained[i].uses} for i in sorted(trained)]

    def restore(self, state: JsonMapping, buffered: Sequence[JsonObject]) -> None:
        groups = sorted((SampleGroup.from_json(row) for row in buffered), key=lambda group: group.group_id)
        self._live = {group.group_id: group for group in groups}
        uses = {row["group_id"]: row["uses"] for row in buffered if "uses" in row}
        complete = {group.group_id: group.start_version for group in groups if group.group_id not in uses}
        for group_id in complete:
            self._trace.enter_phase(group_id, "buffered")
        trained = [Trained(group_id, self._live[group_id].start_version, count) for group_id, count in uses.items()]
        self.admission.restore(state["admission"], complete, trained=trained)
        self._let_go()
        self._changed()

    async def saved(self, step: int, before: int) -> None: ...

    async def join(self, contract: JsonMapping, trainer_at: tuple[int, int] | None) -> None: ...

    async def keep_in_sync(self) -> None:
        await asyncio.Event().wait()

    async def announce_end(self, status: str, reason: str) -> None: ...

    async def leave(self) -> None: ...

    async def report_validation(self, version: int, result: Mapping[str, object]) -> None: ...

    def _transaction(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    def _started(self, group: SampleGroup) -> None: ...

    def _completed(self, group: SampleGroup) -> None: ...

    def _ended(self, group: SampleGroup, status: str, reason: str, step: int, lag: int | None) -> None:
        self._log(group, status, reason, step, lag)

    def _served_by_all(self, version: int) -> int:
        return version

    async def _fetch(self, group_ids: Sequence[int]) -> None: ...

    async def _contents(self, group_ids: Sequence[int]) -> list[SampleGroup]:
        return [self._live[group_id] for group_id in group_ids]
