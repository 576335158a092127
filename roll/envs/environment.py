"""Environments: text in, text or messages and a reward out. An environment of gymnasium is played so by
`roll.envs.text_game`; one that reads its own text, or waits, has this interface itself.

Lifetime of an environment: made once, then any number of episodes, each `reset(seed)` followed by `step(text)` until one returns
terminated or truncated. The next episode begins with the next `reset`; nothing of an earlier one may show in it. `close` is the
last call. One environment is never called twice at the same time.

Everything random comes from the seed of `reset`: the same seed and the same actions give the same observations and rewards, in
every process (`roll env check` tests it). All episodes of a group share the seed, so they start alike.

`reset` and `step` are either both plain functions or both coroutine functions. Plain ones compute; where they run (event loop,
thread, process) is `host.EnvHost`'s business. Coroutines wait, for a network or a browser say; they are awaited on an event loop,
so thousands of them cost neither threads nor processes.

Keys of `info`. The first two keys are in every `step`'s; metrics, GiGPO and the terminal read them all:

    action_is_valid      bool   the text could be read as an action
    action_is_effective  bool   the action changed the state
    success              bool   the task is solved; in the info of an episode's last step; where it is missing, the tag's
                                `success_at` says it
    state_key            str    equal exactly for equal states of a task (GiGPO compares actions taken in equal states); also
                                in `reset`'s
    suffix               str    a reminder for the agent below the observation, e.g. the actions it may choose; also in
                                `reset`'s
    tools                list   in `reset`'s, with messages: the tools that the agent may call, in OpenAI's form

Numbers under further keys are the environment's own metrics.

An observation is a text, which becomes a message of the user; a list of parts, texts and images in OpenAI's form
(`{"type": "image_url", "image_url": {"url": "data:image/png;base64,..."}}`), which becomes one, too, for a model that sees; or
all the messages that the agent now sees, each with role and
content, assistant's with tool_calls, in OpenAI's form: then the environment itself keeps the conversation. Its `cut_off() ->
float`, if it has one, is called where an episode ends because the conversation has no room for another answer, and returns the
reward of the turns until then.

Two more methods are optional: `sample_action(rng: random.Random) -> str`, a random action's text, and `oracle_action() -> str |
None`, that of a good player in the present state. `roll env check` plays with them.

Below the interface stand the ways in which an environment fails its episode, and the checks of its results.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Protocol

from roll.chat.conversation import Message, read_message, read_tool, shown, text_of
from roll.core.data.numbers import read_number
from roll.core.data.untrusted import complaint, described
from roll.core.errors import EnvFailure, Refused
from roll.prompts.messages import IMAGE_KINDS, Show

Info = dict[str, Any]
Observation = str | list[Message]
"""A text with marks of images (`prompts.image_marks`), or messages with such texts; parts are read where they arrive."""
Reset = tuple[Observation, Info]
"""First observation, info."""
Step = tuple[Observation, float, bool, bool, Info]
"""Observation, reward, terminated (the task has ended), truncated (it was cut short), info."""


class TextEnv(Protocol):
    """A computing environment. Its constructor takes the keys of `env_config`, and nothing else."""

    instructions: str
    """The rules of the game, for the system prompt. Complete: an agent that reads them needs no other."""

    def reset(self, seed: int) -> Reset:
        """Begins an episode; `seed` is in [0, 2**63)."""

    def step(self, action_text: str) -> Step:
        """Takes the agent's text, whole, whatever it is: a text that is no action is an invalid action, not an error."""

    def close(self) -> None:
        """Releases the environment's resources. May follow any call."""


class AsyncTextEnv(Protocol):
    """A waiting environment: the same, as coroutines. They may be cancelled, at a time limit or with their episode."""

    instructions: str

    async def reset(self, seed: int) -> Reset: ...

    async def step(self, action_text: str) -> Step: ...

    def close(self) -> None: ...


def seen(observation: Observation) -> str:
    """Returns the text of the observation for people."""
    return observation if isinstance(observation, str) else shown(observation)


UNSEEN = (
    "its `instructions` are not among the messages that it shows, and they alone are sent: the policy does not see the rules; "
    "put them into its first message"
)


def unseen(rules: str, first: Observation | None) -> bool:
    """True if the rules are missing in a conversation that an environment keeps itself; texts are shown with them."""
    return isinstance(first, list) and bool(rules.strip()) and rules.strip() not in shown(first)


@dataclass(frozen=True, slots=True)
class Results:
    """Answers of tools to the agent's calls, in the place of an observation."""

    messages: list[Message]


AnyTextEnv = TextEnv | AsyncTextEnv


def is_async(env: Any) -> bool:
    """True if an environment, or a class of them, waits (coroutines) rather than computes."""
    return inspect.iscoroutinefunction(env.step)


def is_thread_safe(env: object) -> bool:
    """True if environments of this class may run in several threads of one process. One that uses state of the whole process (the
    global random generator, the working directory) says `thread_safe = False`, and gets processes or the event loop."""
    return bool(getattr(env, "thread_safe", True))


NO_RESET = ("reset must return", "the observation of reset must be", "the info of reset must be")
"""Beginnings of the messages about a malformed return of `reset`."""


def checked_reset(answer: object, show: Show | None = None) -> Reset:
    """`show`: stores images; None: the run shows none. Raises `EnvFailure`."""
    if not (isinstance(answer, (tuple, list)) and len(answer) == 2):
        raise EnvFailure("exception", f"reset must return (observation, info), not {described(answer)}")
    observation, info = answer
    return _observation("reset", observation, show), _info("reset", info)


def checked_step(answer: Any, show: Show | None = None) -> Step:
    """`show`: as for `checked_reset`. Raises `EnvFailure`."""
    if not (isinstance(answer, (tuple, list)) and len(answer) == 5):
        message = f"step must return (observation, reward, terminated, truncated, info), not {described(answer)}"
        raise EnvFailure("exception", message)
    observation, reward, terminated, truncated, info = answer
    reward = checked_number("a step", reward)
    shown_now = _observation("step", observation, show, bool(terminated) or bool(truncated))
    return shown_now, reward, bool(terminated), bool(truncated), _info("step", info)


def checked_number(method: str, value: Any) -> float:
    """Raises `EnvFailure`."""
    try:
        return read_number(value)
    except ValueError as error:
        raise EnvFailure("exception", f"the reward of {method} {error}") from None


def _observation(method: str, observation: object, show: Show | None, over: bool = False) -> Observation:
    """`over`: the episode is, and nobody answers."""
    what = f"the observation of {method}"
    _check(what, observation)
    if isinstance(observation, str):
        return observation
    if not isinstance(observation, list) or not observation or not all(isinstance(each, dict) for each in observation):
        raise EnvFailure("exception", f"{what} must be text, or messages, not {described(observation)}")
    try:
        if all("role" not in each for each in observation):
            return _parts(what, observation, show)
        messages = [read_message(each, show) for each in observation]
    except Refused as refused:
        raise EnvFailure("exception", f"{what} has a message that cannot be shown: {refused.message}") from None
    if messages[-1]["role"] == "assistant" and not over:
        raise EnvFailure("exception", f"{what} ends with a message of the assistant, and nothing to answer")
    return messages


def _parts(what: str, parts: list[Message], show: Show | None) -> str:
    """Raises `Refused`."""
    if show is None and any(part.get("type") in IMAGE_KINDS for part in parts):
        message = f"{what} must be text: it is an image, and the run shows none"
        raise EnvFailure("exception", f"{message} (actor_train.data_args.images: {{}}, with a model that sees)")
    return text_of(parts, show=show)


def _info(method: str, info: object) -> dict[str, object]:
    if not isinstance(info, dict):
        raise EnvFailure("exception", f"the info of {method} must be a dict, not {described(info)}")
    _check(f"the info of {method}", info)
    if not isinstance(tools := info.get("tools") or [], list) or not all(isinstance(tool, dict) for tool in tools):
        raise EnvFailure("exception", f"the tools in the info of {method} must be a list of mappings, not {described(tools)}")
    try:
        return {**info, "tools": [read_tool(tool) for tool in tools]} if tools else info
    except Refused as refused:
        raise EnvFailure("exception", f"the info of {method} has a tool that cannot be shown: {refused.message}") from None


def _check(what: str, value: object) -> None:
    """Raises `EnvFailure` unless the value can be stored: it becomes part of journals and checkpoints."""
    if wrong := complaint(value):
        raise EnvFailure("exception", f"{what} {wrong}")
