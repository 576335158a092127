"""The reward of a program's episode: said by a function, by a command, or by the program itself."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from roll.chat.score import Score, read_score
from roll.chat.session import Session
from roll.core.configs.dotted_path import import_object
from roll.core.configs.program import COMMAND, POSTED, ProgramConfig
from roll.core.distributed.user_code import UserThreads
from roll.core.errors import EpisodeFailed, TooManyStuck, boundary
from roll.envs.program.process import Command, Starter


class ProgramScorer:
    """Scorer of one tag."""

    def __init__(self, program: ProgramConfig) -> None:
        """Raises `ValueError` if the function cannot be imported."""
        self._program = program
        self._function = None if program.reward in (POSTED, COMMAND) else import_object(program.reward)
        self._threads = UserThreads(program.reward)

    async def score(self, session: Session, trace: Mapping[str, Any], command: Command, starter: Starter) -> Score:
        """`command`: the scoring command, in the folder that is scored. Raises `EpisodeFailed`."""
        if self._program.reward == POSTED:
            if not session.rewarded:
                posted = f"; the one that it posted was refused: {why}" if (why := session.refused_reward) else ""
                raise EpisodeFailed("no_reward", f"the program has ended without a reward{posted}")
            return Score(session.reward or 0.0, session.success)
        if self._program.reward == COMMAND:
            return await self._by_command(trace, command, starter)
        return await self._by_function(trace, command.folder)

    async def _by_function(self, trace: Mapping[str, Any], folder: Path) -> Score:
        limit_s = self._program.scoring_timeout_s
        try:
            thread = self._threads.start(_called, self._function, trace, folder, name=f"scoring {self._program.reward}")
        except TooManyStuck as stuck:
            raise EpisodeFailed("scoring", str(stuck)) from stuck
        outcome = asyncio.wrap_future(thread.outcome)
        try:
            done, _ = await asyncio.wait([outcome], timeout=limit_s)
            if not done:
                raise EpisodeFailed("scoring", f"{self._program.reward} takes more than {limit_s:g} s, in {thread.place}")
            with boundary(lambda why: EpisodeFailed("scoring", why), f"{self._program.reward} fails"):
                value = outcome.result()
        finally:
            self._threads.leave(thread)
        return read_score(value, self._program.reward)

    async def _by_command(self, trace: Mapping[str, Any], command: Command, starter: Starter) -> Score:
        file = command.folder.parent / "trace.json"
        await asyncio.to_thread(file.write_text, json.dumps(trace), encoding="utf-8")
        limit_s = self._program.scoring_timeout_s
        ending = await starter.run(replace(command, environment={**command.environment, "ROLL_TRACE": str(file)}), limit_s)
        if ending.code is None:
            raise EpisodeFailed("scoring", f"the scoring command takes more than {limit_s:g} s")
        if ending.code:
            raise EpisodeFailed("scoring", f"the scoring command ended with {ending.how}")
        last = (ending.output.splitlines() or [""])[-1]
        try:
            value = json.loads(last)
        except (ValueError, RecursionError):
            value = last
        return read_score(value, "the scoring command")


def _called(function: Any, trace: Mapping[str, Any], folder: Path) -> object:
    value = function(trace, folder)
    return asyncio.run(_awaited(value)) if inspect.isawaitable(value) else value


async def _awaited(value: Any) -> object:
    return await value
