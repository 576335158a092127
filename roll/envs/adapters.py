"""Environments of other packages: any of gymnasium whose actions are a list and whose observations can be written down, by its
id; those of `gem-llm` (github.com/axon-rl/gem), by theirs; and classes that derive from GEM's, as all of ROLL's environments do.

Gymnasium's observations become text: a number or a row of numbers, and a line for each part of a Dict. An environment that shows
pictures or wants numbers as actions is refused by name.

GEM's interface is gymnasium's with text. Two things are added. GEM seeds the global random generators of Python and numpy, and
many of its games go on drawing from them in later steps; here every environment has states of them of its own, so that
environments that take turns in one process do not disturb each other. And GEM says nothing about whether an action was valid or
a task solved. What ROLL adds to GEM's interface is read: the rules, which `info` of `reset` has, begin the first observation,
and the metrics of `info` count."""

from __future__ import annotations

import contextlib
import inspect
import math
import random
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from roll.configs.problems import ConfigError, Problem
from roll.envs.game import ANSWER_PATTERN, ActionReader, MoveOutcome, NamedActionGame
from roll.errors import boundary
from roll.rollout.environment import Info, Reset, Step

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


MODULUS = 2**32
"""numpy's global generator takes seeds below it."""


class GemEnv:
    thread_safe = False  # see above: the global generators

    def __init__(self, env_id: str, success_reward: float = 1.0, **env_args: object) -> None:
        """`env_id`: GEM's name. `success_reward`: an episode whose last reward is at least this is a success (GEM's games pay 1
        for a win). Other keys are handed to the environment, which itself decides about unknown ones. Raises `ConfigError`."""
        try:
            import gem
        except ImportError as error:
            fix = "pip install gem-llm" if error.name == "gem" else f"pip install {error.name}"
            raise ConfigError([Problem("env_id", env_id, f"needs the package gem-llm ({error})", fix)]) from error
        with boundary(lambda why: ConfigError([Problem("env_id", env_id, why)]), "GEM refuses it"):
            self._make(lambda: gem.make(env_id, **env_args), success_reward)

    def _make(self, made: Callable[[], Any], success_reward: float) -> None:
        self._random_state: tuple[Any, Any] | None = None
        with self._own_random_state():
            self._env = made()
        self.success_reward = success_reward
        self.instructions = ""  # GEM's first observation has the rules

    def reset(self, seed: int) -> Reset:
        with self._own_random_state():
            observation, info = self._env.reset(seed=seed % MODULUS)
        return str(observation), self._with_key({"suffix": "", **self._said(info)}, str(observation))

    def step(self, action_text: str) -> Step:
        with self._own_random_state():
            observation, reward, terminated, truncated, info = self._env.step(action_text)
        # GEM has no flags for these; counting every text as an action invents no figure.
        filled: dict[str, object] = {"suffix": "", "action_is_valid": True, "action_is_effective": True}
        if terminated or truncated:
            filled["success"] = float(reward) >= self.success_reward
        filled |= self._said(info)
        return str(observation), float(reward), bool(terminated), bool(truncated), self._with_key(filled, str(observation))

    def _said(self, info: Info) -> Info:
        """What the environment's own `info` says here."""
        return info

    def close(self) -> None:
        close = getattr(self._env, "close", None)
        if close is not None:
            close()

    def sample_action(self, rng: random.Random) -> str:
        kept = self._random_state
        try:
            with self._own_random_state():
                random.seed(rng.getrandbits(32))
                return str(self._env.sample_random_action())
        except NotImplementedError:  # some of GEM's games have no `close`
            return f"\\boxed{{{rng.randrange(100)}}}"
        finally:
            self._random_state = kept  # a sample is no part of the game

    def _with_key(self, info: dict[str, object], observation: str) -> dict[str, object]:
        """The observation with a `state_key`: what the agent sees, because GEM reports no state; many games draw their board in
        the suffix."""
        return {"state_key": f"{observation}\n{info['suffix']}", **info}

    @contextlib.contextmanager
    def _own_random_state(self) -> Iterator[None]:
        outside = random.getstate(), np.random.get_state()
        if self._random_state is not None:
            random.setstate(self._random_state[0])
            np.random.set_state(self._random_state[1])
        try:
            yield
        finally:
            self._random_state = random.getstate(), np.random.get_state()
            random.setstate(outside[0])
            np.random.set_state(outside[1])


class GemClassEnv(GemEnv):
    """`of_class` makes subclasses of it."""

    made_of: ClassVar[type[Any]]

    def __init__(self, **env_config: object) -> None:
        self._make(lambda: self.made_of(**env_config), 1.0)

    def reset(self, seed: int) -> Reset:
        self._rules = ""
        observation, info = super().reset(seed)
        return f"{self._rules}\n{observation}" if self._rules else observation, info

    def _said(self, info: Info) -> Info:
        """Suffix and metrics; the rest is for ROLL's own managers, and need not be plain values."""
        self._rules = str(info.get("env_instruction") or self._rules)
        numbers = {name: getattr(value, "item", lambda value=value: value)() for name, value in info.get("metrics", {}).items()}
        return numbers | ({"suffix": str(info["suffix"])} if info.get("suffix") else {})


def of_class(cls: type[Any]) -> type[GemClassEnv]:
    """The class as an environment of this project, with the arguments of its own constructor."""
    own = {"made_of": cls, "__signature__": inspect.signature(cls), "__module__": cls.__module__, "__doc__": cls.__doc__}
    return type(cls.__name__, (GemClassEnv,), own)
