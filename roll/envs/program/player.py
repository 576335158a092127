"""Plays episodes of agents that are programs.

An episode is a folder, a session of the gateway and up to three commands: the set-up, the agent and the scoring, each with its
limit. Whatever the program does, it costs its episode at most; what the policy cannot do is the run's error.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roll.chat.dialogue import Dialogue
from roll.chat.samples import Outcome, episode_samples
from roll.chat.score import Score
from roll.chat.session import Session, SessionLimits
from roll.core.configs.agentic import EnvConfig
from roll.core.configs.program import POSTED, ProgramConfig
from roll.core.data.episode import Ask, EpisodeTask
from roll.core.data.sample import EpisodeEnd, Sample, reaches
from roll.core.errors import REFUSED, EpisodeFailed, StarterGone, Unanswered
from roll.envs.gateway.server import Gateway
from roll.envs.program.process import Command, ProgramEnding, Starter, base_environment
from roll.envs.program.scoring import ProgramScorer
from roll.graders.sandbox.namespaces import NOBODY
from roll.platform.temp_folder import TempFolder, own_package
from roll.prompts.messages import Show


@dataclass(frozen=True, slots=True)
class _Place:
    """The place where an episode is played."""

    above: Path
    folder: Path
    """The commands' working folder."""
    environment: dict[str, str]

    def command(self, program: ProgramConfig, words: list[str], name: str, more: Mapping[str, str] | None = None) -> Command:
        first = program.python or sys.executable
        words = [first if word == "python" and i == 0 else word for i, word in enumerate(words)]
        log = self.above / f"{name}.log"
        return Command(words, self.folder, {**self.environment, **(more or {})}, log, is_agent=name == "agent")


class Programs:
    """All tags of one coordinator that are programs."""

    def __init__(
        self,
        envs: Mapping[str, EnvConfig],
        dialogue: Dialogue,
        host: str,
        context: int,
        answer_tokens: Callable[[str], int],
        exchanges: bool = True,
        show: Show | None = None,
    ) -> None:
        """`context`: most tokens of a sample. `answer_tokens`: tag -> most tokens of an answer. `exchanges`: whether samples have
        the programs' requests and answers. `show`: stores the images that they send; None: the policy reads text."""
        self._envs = {tag: env for tag, env in envs.items() if env.program is not None}
        self._dialogue, self._context, self._answer_tokens = dialogue, context, answer_tokens
        self._exchanges, self._show = exchanges, show
        self._gateway = Gateway(host)
        self._folder: TempFolder | None = None
        self._scorers: dict[str, ProgramScorer] = {}
        self._starters: dict[str, Starter] = {}
        self._places = {
            tag: asyncio.Semaphore(env.max_env_step_concurrent) for tag, env in self._envs.items() if env.max_env_step_concurrent
        }

    async def play(self, task: EpisodeTask, ask: Ask) -> list[Sample]:
        """Raises `EpisodeFailed`, and the errors of `ask`."""
        env = self._envs[task.tag]
        limits = SessionLimits(self._context, self._answer_tokens(task.tag), env.max_steps)
        began = time.perf_counter()
        async with self._places.get(task.tag, nullcontext()):
            waited_s = time.perf_counter() - began
            session = Session(secrets.token_hex(8), self._dialogue, ask, limits, self._exchanges, self._show)
            place: _Place | None = None
            try:
                place = await self._prepared(env, task, session)
                return await self._played(env, task, session, place, waited_s)
            finally:
                self._gateway.end(session)
                if place is not None:
                    await asyncio.shield(asyncio.to_thread(shutil.rmtree, place.above, True))

    async def close(self) -> None:
        await self._gateway.close()
        for starter in self._starters.values():
            await starter.close()
        if self._folder is not None:
            self._folder.remove()
            self._folder = None

    async def _played(self, env: EnvConfig, task: EpisodeTask, session: Session, place: _Place, waited_s: float) -> list[Sample]:
        program, began = env.program, time.perf_counter()
        assert program is not None
        try:
            end = await self._agent(program, session, place, self._addresses(session, program), await self._starter(task.tag))
        except EpisodeFailed as failure:
            if session.forest.answers:
                raise
            raise self._unanswered(session, failure) from failure
        if not session.forest.answers:
            nothing = "the program has ended without an answer of the policy: there is nothing to reward"
            raise self._unanswered(session, EpisodeFailed("no_calls", nothing))
        scorer = self._scorers.get(task.tag) or self._scorers.setdefault(task.tag, ProgramScorer(program))
        trace = _trace(session, task, end)
        scoring = place.command(program, program.scoring, "scoring")
        try:
            score = await scorer.score(session, trace, scoring, await self._starter(task.tag))
        except StarterGone:  # the agent has killed it, with its last breath
            score = await scorer.score(session, trace, scoring, await self._starter(task.tag))
        played_s = time.perf_counter() - began
        outcome = Outcome(
            reward=score.reward,
            success=self._succeeded(env, session, score),
            end=end,
            generation_s=session.generation_s,
            environment_s=max(0.0, played_s - session.generation_s),
            waiting_s=waited_s,
            metrics=_shape(session) | score.metrics,
        )
        return episode_samples(session.forest, task, outcome)

    def _unanswered(self, session: Session, failure: EpisodeFailed) -> EpisodeFailed:
        """Returns the failure of a program that had no answer, with the gateway's reasons. A reason that will not change from
        group to group becomes `Unanswered`."""
        if session.refused and failure.kind in ("exit", "no_calls"):
            return Unanswered(REFUSED, session.refused)
        silence = self._gateway.silence_of(session)
        if failure.kind == "exit":
            return Unanswered(failure.kind, failure.message + (f" ({silence})" if silence.endswith("?") else ""))
        is_silent = silence and failure.kind in ("timeout", "no_calls")
        return Unanswered(failure.kind, f"{failure.message}\n{silence}") if is_silent else failure

    async def _prepared(self, env: EnvConfig, task: EpisodeTask, session: Session) -> _Place:
        """The working folder, after the set-up. Raises `EpisodeFailed`."""
        program = env.program
        assert program is not None
        if self._folder is None:
            self._folder = own_package("programs")
        above = self._folder.path / session.name
        place = _Place(above, above / "work", _environment(program, task, above))
        try:
            await asyncio.to_thread(_make_folders, place, program)
            if program.setup:
                starter, limit_s = await self._starter(task.tag), program.setup_timeout_s
                ending = await starter.run(place.command(program, program.setup, "setup"), limit_s)
                _refuse(ending, "setup", "the set-up", limit_s)
        except OSError as error:
            await asyncio.to_thread(shutil.rmtree, above, True)
            raise EpisodeFailed("setup", f"the working folder cannot be made: {error}") from error
        except BaseException:
            await asyncio.shield(asyncio.to_thread(shutil.rmtree, above, True))
            raise
        return place

    async def _starter(self, tag: str) -> Starter:
        """One that has been killed by a program is replaced."""
        program, starter = self._envs[tag].program, self._starters.get(tag)
        assert program is not None and self._folder is not None
        if starter is None or not starter.lives:
            self._starters[tag] = Starter(program, self._folder.path)
            if starter is not None:
                await starter.close()
        return self._starters[tag]

    async def _agent(
        self, program: ProgramConfig, session: Session, place: _Place, told: Mapping[str, str], starter: Starter
    ) -> EpisodeEnd:
        """Returns the end of the episode. Raises `EpisodeFailed`, and the policy's own errors."""
        limit_s, command = program.agent_timeout_s, place.command(program, program.command, "agent", told)
        ending = await starter.run(command, limit_s, session.over, self._gateway if program.isolated else None)
        if session.ended:  # as the program has wished
            return session.end or "terminated"
        session.finish()
        if program.score_timeouts if ending.code is None else ending.code and (program.score_exits or session.cut_off):
            return session.end or "truncated"
        if session.end is None or ending.code is None:  # who is refused at a limit may fail of it
            _refuse(ending, "exit", f"the agent, after {len(session.forest.answers)} answers,", limit_s)
        return session.end or "terminated"

    def _addresses(self, session: Session, program: ProgramConfig) -> dict[str, str]:
        """Returns the variables for the agent alone, without set-up and scoring."""
        address = self._gateway.open(session, "127.0.0.1" if program.isolated else None)
        told = {
            "OPENAI_BASE_URL": f"{address}/v1",
            "OPENAI_API_KEY": session.model_key,
            "ANTHROPIC_BASE_URL": address,
            "ANTHROPIC_API_KEY": session.model_key,
            "ROLL_END_URL": f"{address}/end",
        }
        if program.reward == POSTED:
            told |= {"ROLL_REWARD_URL": f"{address}/reward", "ROLL_REWARD_KEY": session.reward_key}
        return told

    def _succeeded(self, env: EnvConfig, session: Session, score: Score) -> bool | None:
        if env.success_at is None:
            return score.success
        return reaches(score.reward + sum(answer.reward for answer in session.forest.answers), env.success_at)


def _shape(session: Session) -> dict[str, float]:
    forest = session.forest
    return {"conversations": float(len(forest.leaves())), "rendered_anew": float(forest.rendered_anew)}


def _refuse(ending: ProgramEnding, kind: str, who: str, limit_s: float) -> None:
    """Raises `EpisodeFailed` unless the command has ended well."""
    if ending.code is None:
        said = f"; its output ends with:\n{ending.output}" if ending.output else ""
        raise EpisodeFailed("timeout", f"{who} was ended after {limit_s:g} s{said}")
    if ending.code:
        raise EpisodeFailed(kind, f"{who} ended with {ending.how}")


def _environment(program: ProgramConfig, task: EpisodeTask, above: Path) -> dict[str, str]:
    told = {"ROLL_SEED": str(task.env_seed), "ROLL_TASK": task.uid, "ROLL_INDEX": str(task.index)}
    return {**base_environment(above / "home"), **program.environment, **told}


def _make_folders(place: _Place, program: ProgramConfig) -> None:
    (place.above / "home").mkdir(parents=True)
    if program.folder is None:
        place.folder.mkdir()
    else:
        shutil.copytree(program.folder, place.folder, symlinks=True)
    if program.isolated and os.getuid() == 0:
        for each in (place.above / "home", place.folder, *place.folder.rglob("*")):
            os.chown(each, NOBODY, NOBODY, follow_symlinks=False)


def _trace(session: Session, task: EpisodeTask, end: EpisodeEnd) -> dict[str, Any]:
    """Plain values, whose change by a user's function changes nothing here."""
    forest = session.forest
    conversations = [{"messages": leaf.conversation, "tools": leaf.tools} for leaf in forest.leaves()]
    trace: dict[str, Any] = json.loads(json.dumps({"conversations": conversations}))
    return trace | {"seed": task.env_seed, "task": task.uid, "calls": len(forest.answers), "end": end}
