"""Sokoban that keeps the conversation itself, as ROLL's `sokoban_native_env` does: what it shows is all the messages so far, and
as there, states are equal whose messages are."""

from __future__ import annotations

import inspect
import random
from typing import Any, ClassVar

from roll.chat.conversation import Message
from roll.envs.environment import Info, Reset, Step
from roll.envs.sokoban import Sokoban
from roll.envs.text_game import of_maker

SYSTEM = "You play a game, and want as much reward as you can get."
UNREADABLE = "Your last answer was no action.\n\n"
MOST_STEPS = 10
"""ROLL's."""


class NativeSokoban:
    """Takes the keys of `sokoban` besides those of its own."""

    instructions = ""  # the conversation begins with the rules
    __signature__: ClassVar[inspect.Signature]

    def __init__(self, system_template: str = SYSTEM, observation_suffix: str | None = None, **game: object) -> None:
        """`system_template`: stands before the rules. `observation_suffix`: what is said below each board; null: how to answer.
        Raises `ConfigError`."""
        self._game: Any = of_maker(Sokoban)(**{"max_steps": MOST_STEPS, **game})
        self._begin: Message = {"role": "system", "content": f"{system_template}\n\n{self._game.instructions}"}
        self._below, self._messages = observation_suffix, [self._begin]

    def reset(self, seed: int) -> Reset:
        self._messages = [self._begin]
        return self._shown(*self._game.reset(seed))

    def step(self, action_text: str) -> Step:
        observation, reward, terminated, truncated, info = self._game.step(action_text)
        self._messages.append({"role": "assistant", "content": action_text})
        messages, told = self._shown(observation, info, "" if info["action_is_valid"] else UNREADABLE)
        return messages, reward, terminated, truncated, told

    def _shown(self, observation: str, info: Info, before: str = "") -> Reset:
        below = info["suffix"] if self._below is None else self._below
        self._messages.append({"role": "user", "content": f"{before}The room:\n{observation}\n\n{below}"})
        told = {name: value for name, value in info.items() if name not in ("suffix", "state_key")}
        return [*self._messages], told

    def close(self) -> None:
        self._game.close()

    def sample_action(self, rng: random.Random) -> str:
        return str(self._game.sample_action(rng))

    def oracle_action(self) -> str | None:
        action: str | None = self._game.oracle_action()
        return action


_OWN = [each for each in inspect.signature(NativeSokoban).parameters.values() if each.kind is each.POSITIONAL_OR_KEYWORD]
NativeSokoban.__signature__ = inspect.Signature([*_OWN, *inspect.signature(of_maker(Sokoban)).parameters.values()])
