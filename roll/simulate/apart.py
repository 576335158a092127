"""A trainer and explorers as processes of their own, on one virtual loop: they meet in a database and in a folder of weights, as
real ones do.

All statements run in one thread here. A process that began a transaction while another is open would block all, and waits on the
loop instead; and nobody watches the file: a process that has committed tells the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from statistics import fmean
from typing import Any, TypeVar

from sqlalchemy import Connection, Executable

from roll.core.configs.problems import ConfigError, Problem
from roll.plan.rules.validation import check_config
from roll.simulate.run import Simulation, unheard
from roll.simulate.virtual_loop import run_virtually
from roll.topologies.sql.database import LOOK_S, Database

T = TypeVar("T")

NOTICE_S = 0.02
"""Delay until a process learns of another's commit."""


class Meeting:
    """Meeting point of a run's processes: the database and the folder of weights."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.news: list[asyncio.Event] = []
        """In the order in which processes came: the order of a set would be that of addresses in memory."""

    def database(self, address: str, member_timeout: float) -> MetDatabase:
        return MetDatabase(address, member_timeout, self)


class MetDatabase(Database):
    def __init__(self, address: str, member_timeout: float, meeting: Meeting) -> None:
        super().__init__(address, member_timeout)
        self._meeting = meeting
        self._mine = False

    async def begin(self, work: Callable[[Connection], T]) -> T:
        await self._meeting.lock.acquire()
        self._mine = True
        return await super().begin(work)

    async def commit(self, statements: Sequence[Executable]) -> None:
        await super().commit(statements)
        self._give_back()
        for event in self._meeting.news:
            event.set()

    async def rollback(self) -> None:
        try:
            await super().rollback()
        finally:
            self._give_back()

    async def outside(self, work: Callable[[Connection], T], much: bool = False) -> T:
        await self._meeting.lock.acquire()
        self._mine = True
        try:
            return await super().outside(work, much)
        finally:
            self._give_back()

    async def beside(self, work: Callable[[], T]) -> T:
        async with self._meeting.lock:
            return await super().beside(work)

    async def notices(self) -> AsyncIterator[None]:
        self._meeting.news.append(event := asyncio.Event())
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await event.wait()
                        await asyncio.sleep(NOTICE_S)
                event.clear()
                yield
        finally:
            self._meeting.news.remove(event)

    def _give_back(self) -> None:
        if self._mine:
            self._mine = False
            self._meeting.lock.release()


def halves(whole: Simulation, explorers: int) -> list[Simulation]:
    """Returns a trainer, and so many explorers, each with all engines of the configuration. Raises `ConfigError`."""
    if explorers < 1:
        raise ConfigError([Problem("--explorers", explorers, "somebody has to explore", "1 or more")])
    apart = replace(whole.config, model_update_transport="checkpoint_dir", max_trainer_restarts=0)
    names = [f"explorer-{i + 1}" for i in range(explorers)]
    configs = [replace(apart, mode="train"), *(replace(apart, mode="explore", explorer_name=name) for name in names)]
    found = [replace(whole, config=config) for config in configs]
    for each in found:
        if problems := check_config(each.config, each.inventory.count):
            raise ConfigError(problems)
    return found


def simulate_apart(simulation: Simulation, explorers: int) -> dict[str, Any]:
    """Returns the trainer's summary, with the mean idle shares of the explorers' roles. Raises `Stuck` and `ConfigError`."""
    processes, meeting = halves(simulation, explorers), Meeting()

    async def process(half: Simulation) -> dict[str, Any]:
        return await half.run(half.backend(), open_database=meeting.database).run()

    async def main() -> list[dict[str, Any]]:
        return list(await asyncio.gather(*map(process, processes)))

    with unheard():
        trainer, *others = run_virtually(main())
    idle = {role: fmean(each["idle_share"][role] for each in others) for role in others[0]["idle_share"]}
    return trainer | {"idle_share": idle | trainer["idle_share"]}
