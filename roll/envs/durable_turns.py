"""Durable turns: an episode whose process was killed goes on at its last recorded turn.

The episode is played again from its beginning by the same code, and its policy is the record, so nothing is sampled twice. An
environment gets its actions again, and what it shows and pays is compared with the record: a difference (`Diverged`) is told, and
the episode restarts. One whose steps have effects outside of it declares that by a method `resume`; it is given no action again.
A program starts again, and its calls are answered from the record as long as it asks the same.

Sampling seeds are those of the episode and the number of the turn, so the next turn is the one that would have come."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from array import array
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from roll.chat.conversation import Reply
from roll.core.configs.plain import JsonMapping, JsonObject
from roll.core.data.episode import Ask, AskPolicy, PolicyAnswer
from roll.core.data.sample import TOKENS
from roll.core.errors import EnvFailure
from roll.core.record.journal import plain
from roll.core.workers.infer_interface import SamplingParams
from roll.envs.env_manager import Environment
from roll.envs.environment import Info, Observation, Results, Step
from roll.envs.host import EnvHandle
from roll.envs.turn_files import AGAIN, EPISODE, TurnFile, TurnFiles, from_json, oldest, rows_of, to_json

REPLAYED = "turns_replayed"
"""Metric of an episode that has gone on: its turns that were taken from the record."""
MOST_IDLE = 1
"""Deaths of an environment's process without a new turn, in a row, that its episode survives."""
T = TypeVar("T")

logger = logging.getLogger(__name__)


class Diverged(Exception):
    """A difference between the environment and the record. Caught where the episode is played, which restarts it."""


class GroupTurns:
    """The record of a group, which one coordinator writes."""

    def __init__(self, files: TurnFiles, uid: str, most_bytes: int, sampling: SamplingParams, version: int) -> None:
        """`version`: the group started under it, maybe again; older turns would be staler than admission allows."""
        self._path, self._calls, self._most, self._sampling = files.path(uid), files.calls, most_bytes, repr(sampling)
        self._rows: defaultdict[str, list[JsonObject]] = defaultdict(list)
        self._version = version
        self._file: TurnFile | None = None
        self._stopped = False
        self._in_order = asyncio.Lock()

    async def begin(self) -> None:
        """Reads the record that is there."""
        try:
            known = await self._calls.aside(rows_of, self._path)
        except TimeoutError:
            known, self._stopped = [], True
        for row in known:
            rows = self._rows[row[EPISODE]]
            rows.clear() if AGAIN in row else rows.append(row)
        version = self._version
        for episode in [name for name, rows in self._rows.items() if min(map(oldest, rows), default=version) < version]:
            await self.void(episode, f"turns of versions before {version}")

    def rows(self, episode: str) -> Sequence[JsonMapping]:
        """The rows of an episode that are not void, of this process, too."""
        return tuple(self._rows[episode])

    def turns(self, episode: str) -> int:
        """Counts the turns of an episode on record."""
        return sum("step" in row for row in self._rows[episode])

    async def append(self, episode: str, **row: object) -> None:
        """Records an event; returns when it is on record. A slow folder keeps the episodes of its group waiting, and no others. A
        record that cannot be written in time, or is full, ends with a warning; the episodes go on."""
        known = {EPISODE: episode, **plain(row)}
        async with self._in_order:
            if self._stopped:
                return
            try:
                await self._calls.aside(self._write, known)
            except TimeoutError:
                self._stopped = True
                return
            except (OSError, ValueError) as error:
                self._stopped = True
                logger.warning("turns are recorded no further, an episode that is interrupted restarts: %s", error)
                return
            self._rows[episode].append(known)

    def _write(self, row: JsonMapping) -> None:
        if self._file is None:
            self._file = TurnFile(self._path)
        if self._file.size > self._most:
            raise OSError(f"{self._path} has more than {self._most:,} bytes")
        self._file.append(row)

    @property
    def name(self) -> str:
        return self._path.stem

    async def void(self, episode: str, why: str) -> None:
        """Voids the rows of an episode."""
        await self.append(episode, **{AGAIN: why})
        self._rows[episode].clear()

    def asked(self, context: Sequence[int], most: int, stop: Sequence[str] = ()) -> str:
        """Returns the digest of a request."""
        found = hashlib.blake2b(array(TOKENS, context).tobytes(), digest_size=16)
        found.update(json.dumps([most, *stop, self._sampling]).encode())
        return found.hexdigest()

    def close(self) -> None:
        if self._file is not None:
            self._calls.leave(self._file.close)


@dataclass(slots=True)
class _Turn:
    asked: str
    answer: PolicyAnswer
    step: Any = None
    """The environment's answer; None if that is not known."""
    is_begun: bool = False
    """True if the answer is on record, and the environment may have had it."""


class EnvTurns:
    """The turns of an episode in an environment: the environment and the policy as the episode's manager sees them."""

    def __init__(self, group: GroupTurns, episode: str, ask: AskPolicy, env: Environment, resumes: EnvHandle | None) -> None:
        """`resumes`: the environment if it has a `resume`."""
        self._group, self._episode, self._ask, self._env, self._resumes = group, episode, ask, env, resumes
        self._began: Any = None
        self._turns: list[_Turn] = []
        for row in group.rows(episode):
            if "began" in row:
                self._began = row["began"]
            elif "answer" in row:
                self._turns.append(_Turn(row["asked"], from_json(row["answer"]), row.get("step"), is_begun=True))
            else:
                self._turns[-1].step = row["step"]
        self._known = sum(turn.step is not None for turn in self._turns)
        self._at = 0
        self._is_away = self._began is not None and resumes is not None
        """True until the environment has been told where the episode is."""
        self._seed = 0

    @property
    def running_s(self) -> float:
        return self._env.running_s

    @property
    def waiting_s(self) -> float:
        return self._env.waiting_s

    async def ask(self, context: Sequence[int], turn: int, most: int) -> PolicyAnswer:
        asked = self._group.asked(context, most)
        if self._at < len(self._turns):
            if self._turns[self._at].asked != asked:
                raise Diverged(f"in turn {self._at + 1} the policy would see something else")
            return self._turns[self._at].answer
        answer = await self._ask(context, turn, most)
        self._turns.append(_Turn(asked, answer))
        return answer

    async def reset(self, seed: int) -> tuple[Observation, Info]:
        self._seed = seed
        if self._is_away:
            return self._began[0], self._began[1]
        began = await self._env.reset(seed)
        now = plain(began)
        if self._began is None:
            await self._group.append(self._episode, began=now)
        elif now[0] != self._began[0]:
            raise Diverged("its first observation is another one")
        self._began = now
        return began

    async def step(self, action_text: str, reply: Reply | None = None) -> tuple[Observation | Results, float, bool, bool, Info]:
        turn, number = self._turns[self._at], self._at + 1
        if turn.step is None:
            result = await self._new(turn, action_text, reply)
        elif self._is_away:
            result = tuple(turn.step)
        else:
            result = await self._stepped(action_text, reply)
            if _plain(result)[:4] != turn.step[:4]:
                raise Diverged(f"turn {number} shows, earns or ends otherwise")
        self._at = number
        return *result[:4], result[4] | ({REPLAYED: self._known} if self._known else {})

    async def cut_off(self) -> float:
        if self._is_away:
            await self._resume(None)
        return await self._env.cut_off()

    async def _new(self, turn: _Turn, action_text: str, reply: Reply | None) -> Any:
        """Makes a step that is not on record; of one with effects the answer is on record before it begins."""
        result = await self._resume(action_text if turn.is_begun else None) if self._is_away else None
        answer = {} if turn.is_begun else {"asked": turn.asked, "answer": to_json(turn.answer)}
        if result is None:
            if self._resumes is not None:
                await self._group.append(self._episode, **answer)
                turn.is_begun, answer = True, {}
            result = await self._stepped(action_text, reply)
        turn.step = _plain(result)
        await self._group.append(self._episode, **answer, step=turn.step)
        return result

    async def _stepped(self, action_text: str, reply: Reply | None) -> Any:
        return await (self._env.step(action_text) if reply is None else self._env.step(action_text, reply))

    async def _resume(self, begun: str | None) -> Step | None:
        """Lets the environment go on behind the turns on record; returns the step of the action that was begun, if one was."""
        assert self._resumes is not None
        before = self._turns[: self._at]
        info = before[-1].step[4] if before else self._began[1]
        past = {"seed": self._seed, "actions": [each.answer.text for each in before], "begun": begun, "info": info}
        self._is_away = False
        return await self._resumes.resume(past)


def _plain(step: Any) -> Any:
    shown, *rest = step
    return plain([{"results": shown.messages} if isinstance(shown, Results) else shown, *rest])


class ProgramTurns:
    """The calls of an episode whose agent is a program. It may ask several at once, so a call is known by its request."""

    def __init__(self, group: GroupTurns, episode: str, ask: Ask) -> None:
        self._group, self._episode, self._ask = group, episode, ask
        rows = group.rows(episode)
        self._left = len(rows)
        self._answers: defaultdict[str, deque[JsonMapping]] = defaultdict(deque)
        for row in rows:
            self._answers[row["asked"]].append(row)
        self._told: list[JsonMapping] = []
        self._unanswered = max((row["call"] + 1 for row in rows), default=0) - len(rows)
        """Calls that had begun before the last one on record, and had no answer."""

    async def ask(self, context: Sequence[int], call: int, most: int, stop: tuple[str, ...] = ()) -> PolicyAnswer:
        asked = self._group.asked(context, most, stop)
        if self._answers[asked]:
            self._left -= 1
            self._told.append(known := self._answers[asked].popleft())
            return from_json(known["answer"])
        if self._left and self._unanswered <= 0:
            await self._differs(call)
        self._unanswered -= 1
        answer = await self._ask(context, call, most, stop)
        await self._group.append(self._episode, call=call, asked=asked, answer=to_json(answer))
        return answer

    async def _differs(self, call: int) -> None:
        """Ends the replay: the rest of the record belongs to another course of the episode."""
        logger.warning(
            "%s, episode %s: call %d asks something else than before the interruption, so %d recorded answers are not used",
            *(self._group.name, self._episode, call + 1, self._left),
        )
        self._answers.clear()
        self._left = 0
        await self._group.void(self._episode, "a call asks something else")
        for row in self._told:
            await self._group.append(self._episode, **{name: value for name, value in row.items() if name != EPISODE})


async def going_on(group: GroupTurns, episode: str, play: Callable[[], Awaitable[T]]) -> T:
    """Plays an episode, and again from its record if its environment's process dies; from its beginning where the environment
    differs from the record. Raises `EnvFailure` as `play`, also where processes die without a turn between them."""
    idle = 0
    while True:
        before = group.turns(episode)
        try:
            return await play()
        except Diverged as difference:
            logger.warning("%s, episode %s restarts, its record does not fit: %s", group.name, episode, difference)
            await group.void(episode, str(difference))
        except EnvFailure as failure:
            idle = 0 if (turns := group.turns(episode)) > before else idle + 1
            if failure.kind != "died" or not turns or idle > MOST_IDLE:
                raise
            logger.warning("%s, episode %s goes on after %d turns: %s", group.name, episode, turns, failure.message)
