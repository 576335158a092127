"""Communication between the processes of a run about its groups; a run of one process has nothing to tell."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from roll.core.configs.plain import JsonMapping


class OneProcess:
    ended: tuple[str, str] | None = None
    """Status and reason of the run's end, as its trainer reports them; None while it runs."""

    branch = 0
    """Number of times that versions were taken back, as far as this process knows."""

    async def join(self, contract: JsonMapping, trainer_at: tuple[int, int] | None) -> None:
        """This process takes part from now on. `trainer_at`: the step that a trainer goes on from, and the number of the last
        change that its journal knows. In memory no other process takes part."""

    async def keep_in_sync(self) -> None:
        """Runs as long as the run does and synchronises the state that its processes share."""
        await asyncio.Event().wait()

    async def announce_end(self, status: str, reason: str) -> None:
        """Announces the end of the run, as its trainer."""

    async def leave(self) -> None:
        """Ends this process's part in the run."""

    async def was_taken_back(self) -> bool:
        """True if versions that this process served are gone, because the trainer went on from a checkpoint."""
        return False

    async def claims_validation(self, version: int) -> bool:
        """True if this process is to validate `version`."""
        return True

    async def report_validation(self, version: int, result: Mapping[str, object]) -> None:
        """Reports that the validation of `version` is over."""

    async def saved(self, step: int, before: int) -> None:
        """The checkpoint of `step` is complete, and no process goes on from one before that of step `before`. One may be damaged,
        so two are kept in reach."""
