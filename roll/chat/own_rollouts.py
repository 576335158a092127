"""Rollouts that a coroutine of the user's own makes: it is given a chat with the policy, and returns what the rollout has earned.

What it asks and hears is recorded token by token, as of a program behind the gateway: log-probs, versions, forests of branched
conversations. All rollouts share an event loop on a thread of its own, so code that blocks holds up other rollouts, and never the
run. Whatever the coroutine does, it costs its rollout at most; what the policy cannot do is the run's error."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from roll.chat.conversation import ChatRequest, Reply, read_message, read_tool
from roll.chat.dialogue import Dialogue
from roll.chat.samples import Outcome, episode_samples
from roll.chat.score import read_score
from roll.chat.session import Session, SessionLimits
from roll.core.configs.dotted_path import import_object
from roll.core.configs.problems import Problem
from roll.core.configs.rlvr import RolloutConfig
from roll.core.data.episode import Ask, EpisodeTask
from roll.core.data.sample import EpisodeEnd, Prompt, Sample
from roll.core.errors import REFUSED, EpisodeFailed, Refused, Unanswered, boundary, escapes


class Chat:
    """The policy, as a coroutine of the user's own asks it."""

    def __init__(self, session: Session, loop: asyncio.AbstractEventLoop) -> None:
        """`loop`: the run's, which the session belongs to."""
        self._session, self._loop = session, loop

    async def __call__(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        stop: Sequence[str] = (),
        max_tokens: int | None = None,
    ) -> Reply:
        """The answer to a conversation: `content`, `thinking`, `calls` of tools, `stopped`, and `message`, which goes on with it.
        Messages and tools have OpenAI's form. Raises `Refused`: its `code` is max_steps or context_length_exceeded where the
        rollout has had its calls, or the conversation is too long."""
        asked = ChatRequest(
            messages=[read_message(message) for message in messages],
            tools=[read_tool(tool) for tool in tools],
            most=max_tokens,
            stop=tuple(stop),
        )
        answer = asyncio.run_coroutine_threadsafe(self._answered(asked), self._loop)
        reply = await asyncio.wrap_future(answer)
        if isinstance(reply, Refused):
            raise reply
        return reply

    async def _answered(self, asked: ChatRequest) -> Reply | Refused:
        """A refusal is a value, for it may come when nobody listens any more."""
        try:
            call = await self._session.begin(asked, b"", repeated=False)
            reply = await self._session.reply(call)
            self._session.record(call)
        except Refused as refused:
            return refused
        return reply


class OwnRollouts:
    def __init__(self, config: RolloutConfig, dialogue: Dialogue, limits: SessionLimits) -> None:
        """Raises `ValueError` if the coroutine cannot be imported."""
        self._config, self._dialogue, self._limits = config, dialogue, limits
        self._function: Callable[..., Awaitable[object]] = import_object(config.function)
        self._loop: asyncio.AbstractEventLoop | None = None

    async def play(self, prompt: Prompt, index: int, ask: Ask) -> list[Sample]:
        """Plays one rollout; a reward of None is the domain's to give. Raises `EpisodeFailed`, and the errors of `ask`."""
        session = Session(f"{prompt.uid}/{index}", self._dialogue, ask, self._limits)
        chat = Chat(session, asyncio.get_running_loop())
        work = asyncio.run_coroutine_threadsafe(self._called(chat, prompt), self._running())
        done = asyncio.wrap_future(work)
        try:
            waited: set[asyncio.Future[Any]] = {done, session.over}
            await asyncio.wait(waited, timeout=self._config.timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if session.over.done():
                session.over.result()
            if not done.done():
                message = f"{self._config.function} takes more than {self._config.timeout_s:g} s"
                raise EpisodeFailed("timeout", message)
            value = self._value(done, session)
        finally:
            work.cancel()
            session.finish()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                done.exception()
        return self._samples(session, prompt, index, value)

    async def _called(self, chat: Chat, prompt: Prompt) -> object:
        with escapes():  # SystemExit would end the loop of all rollouts
            return await self._function(chat, replace(prompt), **self._config.args)

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            weakref.finalize(self, self._loop.call_soon_threadsafe, self._loop.stop)
            threading.Thread(target=self._loop.run_forever, name="rollouts", daemon=True).start()
        return self._loop

    def _value(self, done: asyncio.Future[object], session: Session) -> object:
        """Returns the coroutine's value; None if it did not mind a limit that it had met."""
        with boundary(lambda why: EpisodeFailed("exception", why), f"{self._config.function} fails", (Refused, Unanswered)):
            try:
                return done.result()
            except Refused:
                if session.end is not None and session.forest.answers:
                    return None
                if session.refused and not session.forest.answers:
                    raise Unanswered(REFUSED, session.refused) from None
                raise EpisodeFailed("exception", f"{self._config.function} fails: {done.exception()}") from None

    def _samples(self, session: Session, prompt: Prompt, index: int, value: object) -> list[Sample]:
        if not session.forest.answers and session.refused:
            raise Unanswered(REFUSED, session.refused)
        if not session.forest.answers:
            raise EpisodeFailed("no_calls", f"{self._config.function} has ended without an answer of the policy")
        score = None if value is None else read_score(value, self._config.function)
        end: EpisodeEnd = session.end or "terminated"
        outcome = Outcome(
            reward=0.0 if score is None else score.reward,
            success=None if score is None else score.success,
            end=end,
            generation_s=session.generation_s,
            metrics={} if score is None else score.metrics,
        )
        task = EpisodeTask(uid=prompt.uid, tag=prompt.tag, index=index, env_seed=0)
        samples = episode_samples(session.forest, task, outcome)
        for sample in samples:
            sample.prompt = replace(prompt, input_ids=sample.prompt.input_ids, text=sample.prompt.text)
            if score is None:
                sample.reward = None
        if score is None:
            samples[-1].response_text = session.forest.leaves()[-1].reply.content
        return samples


def call_problems(config: RolloutConfig, function: Any) -> Iterator[Problem]:
    if not inspect.iscoroutinefunction(function):
        yield Problem("rollout.function", config.function, "is no coroutine function", "async def rollout(chat, prompt): ...")
        return
    try:
        inspect.signature(function).bind(None, None, **config.args)
    except TypeError as error:
        message = f"{config.function} cannot be called with a chat, a prompt and these: {error}"
        yield Problem("rollout.args", config.args, message, "the function's own keywords, without the first two")
