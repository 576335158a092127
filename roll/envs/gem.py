"""Environments of `gem-llm` (github.com/axon-rl/gem), by their ids, and classes that derive from GEM's, as all of ROLL's do.

GEM's interface is gymnasium's with text. Two things are added. GEM seeds the global random generators of Python and numpy, and
many of its games go on drawing from them in later steps; here every environment has states of them of its own, so that
environments that take turns in one process do not disturb each other. And GEM says nothing about whether an action was valid or
a task solved. What ROLL adds to GEM's interface is read: the rules, which `info` of `reset` has, begin the first observation,
and the metrics of `info` count."""

from __future__ import annotations

import contextlib
import inspect
import random
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from roll.core.configs.problems import ConfigError, Problem
from roll.core.errors import boundary
from roll.envs.environment import Info, Observation, Reset, Step
from roll.envs.packages import importing

MODULUS = 2**32
"""numpy's global generator takes seeds below it."""


def env_ids() -> list[str]:
    """Returns the ids that can be made here: others fetch their questions from a hub."""
    import gem

    found = []
    for env_id in gem.envs.registration.ENV_REGISTRY:
        if env_id.partition(":")[0] in ("game", "rg"):
            with contextlib.suppress(Exception):  # boundary: foreign code
                gem.make(env_id)
                found.append(env_id)
    return sorted(found)


class GemEnv:
    thread_safe = False  # see above: the global generators

    def __init__(self, env_id: str, success_reward: float = 1.0, **env_args: object) -> None:
        """`env_id`: GEM's name. `success_reward`: an episode whose last reward is at least this is a success (GEM's games pay 1
        for a win). Other keys are handed to the environment, which itself decides about unknown ones. Raises `ConfigError`."""
        with importing("gem"):
            import gem
        with boundary(lambda why: ConfigError([Problem("env_id", env_id, why, "roll env list gem-llm")]), "GEM refuses it"):
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
        shown = _shown(observation)
        return shown, self._with_key({"suffix": "", **self._said(info)}, shown)

    def step(self, action_text: str) -> Step:
        with self._own_random_state():
            observation, reward, terminated, truncated, info = self._env.step(action_text)
        # GEM has no flags for these; counting every text as an action invents no figure.
        filled: dict[str, object] = {"suffix": "", "action_is_valid": True, "action_is_effective": True}
        if terminated or truncated:
            filled["success"] = float(reward) >= self.success_reward
        filled |= self._said(info)
        shown = _shown(observation)
        return shown, float(reward), bool(terminated), bool(truncated), self._with_key(filled, shown)

    def _said(self, info: Info) -> Info:
        """Returns the facts that the environment's own `info` has here."""
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

    def _with_key(self, info: Info, observation: Observation) -> Info:
        """Adds a `state_key`: the text that the agent sees, because GEM reports no state; many games draw their board in the
        suffix. Messages are their own key."""
        return {"state_key": f"{observation}\n{info['suffix']}", **info} if isinstance(observation, str) else info

    @contextlib.contextmanager
    def _own_random_state(self) -> Iterator[None]:
        outside = _random_state()
        if self._random_state is not None:
            _set_random_state(self._random_state)
        try:
            yield
        finally:
            self._random_state = _random_state()
            _set_random_state(outside)


def _random_state() -> tuple[Any, Any]:
    """Python's, and numpy's where it is loaded: not every package has it."""
    numpy = sys.modules.get("numpy")
    return random.getstate(), None if numpy is None else numpy.random.get_state()


def _set_random_state(state: tuple[Any, Any]) -> None:
    random.setstate(state[0])
    if state[1] is not None:
        sys.modules["numpy"].random.set_state(state[1])


class GemClassEnv(GemEnv):
    """`of_class` makes subclasses of it."""

    made_of: ClassVar[type[Any]]

    def __init__(self, **env_config: object) -> None:
        self._make(lambda: self.made_of(**env_config), 1.0)

    def reset(self, seed: int) -> Reset:
        self._rules = ""
        observation, info = super().reset(seed)
        if getattr(self._env, "env_reset_failed", False):
            raise RuntimeError(f"the environment says that it could not be reset: {observation}")
        return f"{self._rules}\n{observation}" if self._rules and isinstance(observation, str) else observation, info

    def sample_action(self, rng: random.Random) -> str:
        """ROLL's environments offer the bare action where they look for a text around it."""
        action, pattern = super().sample_action(rng), getattr(self._env, "action_pattern", None)
        if not isinstance(pattern, str) or re.search(pattern, action, re.DOTALL):
            return action
        written = re.sub(r"\(\.[*+]\??\)", lambda _: action, pattern).replace(r"\s*", "")
        return written if re.search(pattern, written, re.DOTALL) else action

    def cut_off(self) -> float:
        """ROLL's environments of messages are told by an action that is none."""
        from roll.compat.code.workers import EpisodeStopReason  # only where such a class is played

        with self._own_random_state():
            return float(self._env.step(EpisodeStopReason.MAX_LENGTH)[1])

    def _said(self, info: Info) -> Info:
        """Suffix and metrics; the rest is for ROLL's own managers, and need not be plain values."""
        self._rules = str(info.get("env_instruction") or self._rules)
        numbers = {name: getattr(value, "item", lambda value=value: value)() for name, value in info.get("metrics", {}).items()}
        said: Info = {name: info[name] for name in ("tools",) if info.get(name)}
        return numbers | said | ({"suffix": str(info["suffix"])} if info.get("suffix") else {})


def _shown(observation: object) -> Observation:
    return observation if isinstance(observation, list) else str(observation)


def of_class(cls: type[Any]) -> type[GemClassEnv]:
    """The class as an environment of this project, with the arguments of its own constructor."""
    own = {"made_of": cls, "__signature__": inspect.signature(cls), "__module__": cls.__module__, "__doc__": cls.__doc__}
    return type(cls.__name__, (GemClassEnv,), own)
