"""The interface of where groups are kept: the verbs of `Groups` are the same in memory and in a database, and these are not."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager

from roll.core.configs.plain import JsonMapping, JsonObject
from roll.core.data.sample import SampleGroup


class GroupStorage(ABC):
    ended: tuple[str, str] | None = None
    """Status and reason of the run's end, as its trainer reports them to other processes; None while it runs."""

    # -- checkpoints ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def state(self) -> JsonObject:
        """Returns the state for a checkpoint besides `buffered`; tasks of groups in flight are served again after `restore`."""

    @abstractmethod
    def buffered(self) -> list[JsonObject]:
        """Returns the complete groups, leased ones included, as JSON values; with `uses`, those that may be trained again."""

    @abstractmethod
    def restore(self, state: JsonMapping, buffered: Sequence[JsonObject]) -> None:
        """Continues from `state` and `buffered`; the source was set to its cursor before."""

    @abstractmethod
    async def saved(self, step: int, before: int) -> None:
        """The checkpoint of `step` is complete, and no process goes on from one before that of step `before`. One may be damaged,
        so two are kept in reach."""

    # -- the processes of a run -----------------------------------------------------------------------------------------

    @abstractmethod
    async def join(self, contract: JsonMapping, trainer_at: tuple[int, int] | None) -> None:
        """This process takes part from now on. `trainer_at`: the step that a trainer goes on from, and the number of the last
        change that its journal knows."""

    @abstractmethod
    async def keep_in_sync(self) -> None:
        """Runs as long as the run does and synchronises the state that its processes share."""

    @abstractmethod
    async def announce_end(self, status: str, reason: str) -> None:
        """Announces the end of the run, as its trainer."""

    @abstractmethod
    async def leave(self) -> None:
        """Ends this process's part in the run."""

    @abstractmethod
    async def report_validation(self, version: int, result: Mapping[str, object]) -> None:
        """Reports that the validation of `version` is over."""

    # -- where they are kept --------------------------------------------------------------------------------------------

    @abstractmethod
    def _transaction(self) -> AbstractAsyncContextManager[None]:
        """While open, no other process changes groups, and earlier changes by others are known here. All changes are kept, or
        none."""

    @abstractmethod
    def _started(self, group: SampleGroup) -> None:
        """Records that the group is in flight."""

    @abstractmethod
    def _completed(self, group: SampleGroup) -> None:
        """Records that the group has its samples."""

    @abstractmethod
    def _ended(self, group: SampleGroup, status: str, reason: str, step: int, lag: int | None) -> None:
        """Records that the group has ended, or was trained again (`reused`); `_log` when that is kept. Steps count from 1."""

    @abstractmethod
    def _served_by_all(self, version: int) -> int:
        """Returns the version that all engines of the run serve, now that those of this process serve `version`."""

    @abstractmethod
    async def _fetch(self, group_ids: Sequence[int]) -> None:
        """Fetches groups that `_contents` is about to read."""

    @abstractmethod
    async def _contents(self, group_ids: Sequence[int]) -> list[SampleGroup]:
        """Returns groups with their samples; those that cannot be read are dropped, or not trained again, and left out."""
