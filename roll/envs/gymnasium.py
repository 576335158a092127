"""Any environment of gymnasium whose actions are a list and whose observations can be written down, by its id.

Observations become text: a number or a row of numbers, and a line for each part of a Dict.
An environment that shows pictures or wants numbers as actions is refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from roll.configs.problems import ConfigError, Problem
from roll.envs.game import ANSWER_PATTERN, ActionReader, MoveOutcome, NamedActionGame

MOST_NUMBERS = 64
"""Most numbers of a Box or a MultiDiscrete: an observation with more is a picture, which text cannot show."""
MOST_ACTIONS = 1000


class GymnasiumEnv(NamedActionGame):
    def __init__(
        self,
        env_id: str,
        env_kwargs: Mapping[str, object] | None = None,
        actions: Sequence[str] | None = None,
        instructions: str | None = None,
        digits: int = 3,
        success_reward: float | None = None,
        max_steps: int | None = None,
        action_pattern: str = ANSWER_PATTERN,
        action_lookup: Mapping[str, str] | None = None,
        format_penalty: float = 0.0,
    ) -> None:
        """`env_id`: a registered id, or `module:Id-v0`, whose module registers it. `env_kwargs`: handed to `gymnasium.make`.
        `actions`: names of the actions in gymnasium's order (default: their numbers). `instructions`: the rules of the game,
        which gymnasium does not provide. `digits`: significant ones of a number that is shown. `success_reward`: an episode whose
        rewards add up to at least this much is a success (default: gymnasium's own threshold; where it has none, the last reward
        is > 0 and the game has terminated). `max_steps`: turns of an episode (default: gymnasium's limit, else 200).

        Raises `ConfigError`."""
        if not 1 <= digits <= 17:
            raise ConfigError([Problem("digits", digits, "must be from 1 to 17")])
        self._game = _made(env_id, dict(env_kwargs or {}), max_steps)
        self._first = int(self._game.action_space.start)
        spec = self._game.spec
        self._digits = digits
        self._success = success_reward if success_reward is not None else getattr(spec, "reward_threshold", None)
        self._shown: Any = None
        self._total = 0.0
        reader = ActionReader(self._names(actions), action_pattern, action_lookup, format_penalty)
        rules = (
            instructions if instructions is not None else f"Play {env_id}. You see: {described(self._game.observation_space)}."
        )
        super().__init__(rules, reader, max_steps or getattr(spec, "max_episode_steps", None) or 200)

    def _names(self, actions: Sequence[str] | None) -> list[str]:
        count = int(self._game.action_space.n)
        if actions is None:
            return [str(self._first + i) for i in range(count)]
        names = [str(name).strip() for name in actions]
        if len(names) != count:
            raise ConfigError([Problem("actions", list(actions), f"has {len(names)} names; there are {count} actions")])
        if "" in names or len({name.casefold() for name in names}) < count:
            raise ConfigError([Problem("actions", list(actions), "two names are the same, or one is empty")])
        return names

    def _begin(self, seed: int) -> None:
        self._shown, _ = self._game.reset(seed=seed)
        self._total = 0.0

    def _move(self, action: int) -> MoveOutcome:
        self._shown, reward, terminated, truncated, _ = self._game.step(self._first + action)
        self._total += float(reward)
        if self._success is not None:
            won = (terminated or truncated) and self._total >= self._success
        else:
            won = terminated and reward > 0
        return MoveOutcome(float(reward), bool(terminated), success=bool(won), truncated=bool(truncated))

    def _observe(self) -> str:
        return written(self._game.observation_space, self._shown, self._digits)

    def _state(self) -> Hashable:
        """The whole observation: a game that hides something has more states than keys."""
        return written(self._game.observation_space, self._shown, 17)

    def _best_action(self) -> int | None:
        return None

    def close(self) -> None:
        super().close()
        self._game.close()


def _made(env_id: str, env_kwargs: dict[str, object], max_steps: int | None) -> Any:
    """Raises `ConfigError`: no such environment, or one that text cannot play."""
    if max_steps is not None and max_steps < 1:
        raise ConfigError([Problem("max_steps", max_steps, "must be >= 1")])
    try:
        game: Any = gymnasium.make(env_id, max_episode_steps=max_steps, disable_env_checker=True, **env_kwargs)
    except gymnasium.error.Error as error:
        fix = "an id that gymnasium lists, or module:Id-v0, whose module registers it"
        raise ConfigError([Problem("env_id", env_id, f"gymnasium refuses it: {error}", fix)]) from error
    except Exception as error:  # boundary: an environment of another project may raise anything
        message = f"gymnasium cannot make it: {type(error).__name__}: {error}"
        raise ConfigError([Problem("env_kwargs", env_kwargs, message)]) from error
    space, flaw = game.action_space, _unwritable(game.observation_space)
    if not isinstance(space, spaces.Discrete) or space.n > MOST_ACTIONS:
        message = f"its actions are {space}; text can choose among at most {MOST_ACTIONS} named ones"
        raise ConfigError([Problem("env_id", env_id, message, "an environment whose action_space is Discrete")])
    if flaw:
        fix = f"Discrete, MultiDiscrete, MultiBinary, Text, Box of at most {MOST_NUMBERS} numbers, Tuple and Dict of them"
        raise ConfigError([Problem("env_id", env_id, f"its observations cannot be written down: {flaw}", fix)])
    return game


def _unwritable(space: object) -> str:
    """The part of an observation that is no text; empty if there is none."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return next((flaw for flaw in map(_unwritable, _parts(space).values()) if flaw), "")
    if isinstance(space, spaces.Discrete | spaces.Text):
        return ""
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary | spaces.Box) and math.prod(space.shape) <= MOST_NUMBERS:
        return ""
    return str(space)[:200]


def _parts(space: Any) -> dict[str, object]:
    if isinstance(space, spaces.Dict):
        return {str(name): part for name, part in space.spaces.items()}
    return {str(i): part for i, part in enumerate(space.spaces)}


def written(space: Any, value: Any, digits: int) -> str:
    """An observation as text: numbers with so many significant digits, a line for each part of a Dict."""
    if isinstance(space, spaces.Dict):
        return "\n".join(f"{name}: {written(part, value[name], digits)}" for name, part in space.spaces.items())
    if isinstance(space, spaces.Tuple):
        return "; ".join(written(part, each, digits) for part, each in zip(space.spaces, value, strict=True))
    if isinstance(space, spaces.Text):
        return str(value)
    numbers = np.asarray(value).reshape(-1).tolist()
    return ", ".join(f"{number:.{digits}g}" if isinstance(number, float) else str(int(number)) for number in numbers)


def described(space: Any) -> str:
    """What the numbers of an observation are, as far as the space describes them."""
    if isinstance(space, spaces.Dict):
        return "; ".join(f"{name}: {described(part)}" for name, part in space.spaces.items())
    if isinstance(space, spaces.Tuple):
        return "; ".join(described(part) for part in space.spaces)
    if isinstance(space, spaces.Text):
        return "a text"
    if isinstance(space, spaces.Discrete):
        return f"a number from {int(space.start)} to {int(space.start + space.n - 1)}"
    count = math.prod(space.shape)
    if not isinstance(space, spaces.Box):
        return f"{count} whole numbers"
    low, high = np.asarray(space.low).reshape(-1), np.asarray(space.high).reshape(-1)
    ranges = [f"{a:.3g} to {b:.3g}" if math.isfinite(a) and math.isfinite(b) else "any" for a, b in zip(low, high, strict=True)]
    return f"{count} numbers ({', '.join(ranges)})" if len(set(ranges)) > 1 else f"{count} numbers, each {ranges[0]}"
