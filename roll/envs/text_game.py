"""Any environment of gymnasium, played by text: observations are written down, and actions are read out of what the agent writes.
The interface is that of `roll.envs.environment`.

What the spaces say is enough. An environment that wants to say more has attributes: `instructions`, the rules, for which the
docstring of a class of the user's stands where there are none; `action_names`,
those of a Discrete; `format_penalty`; and methods that return an action of the space: `sample_action(rng)`, `oracle_action()`.
Its `info` may have the keys that `roll.envs.environment` lists, and numbers, which are its metrics; the rest is left out. One
that draws text (`render_mode: ansi`) is shown as it draws itself, one that draws pictures (`rgb_array`), or whose observations
are pictures (a Box of uint8), is seen by a model that sees.

A text without a readable action never reaches the environment: it is answered with the same observation, costs `format_penalty`
(a number <= 0 that is added to the reward), and the turn is spent."""

from __future__ import annotations

import hashlib
import inspect
import random
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import check_env

from roll.core.configs.problems import ConfigError, Problem
from roll.envs.actions import ActionReader, checked_penalty
from roll.envs.environment import Info, Reset, Step
from roll.envs.frames import is_picture, png
from roll.envs.rules import docstring
from roll.envs.space_text import ACTIONS, OBSERVATIONS, described, flaw, outside, shown
from roll.envs.vector_of_one import VectorOfOne
from roll.prompts.image_marks import image_part

MOST_TURNS = 200
"""Turns of an episode where gymnasium knows no limit."""
ALL_DIGITS = 17
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_WARNED = re.compile(r"^(?:\x1b\[[0-9;]*m)*WARN: |(?:\x1b\[[0-9;]*m)+")


class TextGame:
    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        actions: Sequence[str] | None = None,
        instructions: str | None = None,
        digits: int = 3,
        max_steps: int | None = None,
        action_pattern: str | None = None,
        action_lookup: Mapping[str, str] | None = None,
        format_penalty: float | None = None,
    ) -> None:
        """`actions`: names of a Discrete's actions, in its order. `instructions`: the rules. `digits`: significant ones of a
        number that is shown. `max_steps`: turns after which the episode is truncated, unreadable ones included (default:
        gymnasium's limit, else `MOST_TURNS`). `action_pattern`, `action_lookup`: see `ActionReader`. `format_penalty`: see above
        (default: the environment's, else 0). Raises `ConfigError`."""
        if not 1 <= digits <= ALL_DIGITS:
            raise ConfigError([Problem("digits", digits, f"must be from 1 to {ALL_DIGITS}", f"e.g. {min(4, ALL_DIGITS)}")])
        if max_steps is not None and max_steps < 1:
            raise ConfigError([Problem("max_steps", max_steps, "must be >= 1", "e.g. 20, or null for the limit of gymnasium")])
        self.env, self._digits = env, digits
        self._name = _name(env)
        self._draws = env.render_mode == "ansi"
        self._renders, in_pixels = env.render_mode == "rgb_array", is_picture(env.observation_space)
        self._pictures = self._renders or in_pixels
        self._in_text = not in_pixels and not flaw(env.observation_space, True)
        _check_spaces(env, self._name, self._draws or self._pictures)
        names = self._own("action_names") if actions is None else actions
        self.reader = ActionReader(env.action_space, names, action_pattern, action_lookup)
        self._penalty = checked_penalty(self._own("format_penalty") or 0.0 if format_penalty is None else format_penalty)
        self.max_steps = max_steps or (env.spec.max_episode_steps if env.spec is not None else None) or MOST_TURNS
        self._threshold = env.spec.reward_threshold if env.spec is not None else None
        rules = self._own("instructions") if instructions is None else instructions
        self._suffix = self.reader.how_to_answer
        self.instructions = f"{self._found_rules() if rules is None else rules}\n{self._suffix}"
        self._turns, self._total, self._over = 0, 0.0, True
        self._observation: Any = ""
        self._key = ""
        self._success: bool | None = None

    def _found_rules(self) -> str:
        """The rules of an environment that has not written them for players."""
        written = docstring(cls := self._class(), named=cls is getattr(self, "maker", None))
        rules = f"{written}\n" if written else f"Play {self._name}. "
        seen = "a picture" if self._pictures else described(self.env.observation_space) if not self._draws else ""
        return (f"{rules}You see: {seen}." if seen else rules).rstrip()

    def _class(self) -> type[Any]:
        game = self.env.unwrapped
        return type(game.inner if isinstance(game, VectorOfOne) else game)

    def _own(self, name: str) -> Any:
        """Returns an attribute of the environment or its wrappers, or None."""
        return self.env.get_wrapper_attr(name) if self.env.has_wrapper_attr(name) else None

    def reset(self, seed: int) -> Reset:
        observation, info = self.env.reset(seed=seed)
        self._turns, self._total, self._over, self._success = 0, 0.0, False, None
        said = self._look(observation, info)
        return self._observation, self._told(said)

    def step(self, action_text: str) -> Step:
        """Raises `RuntimeError` if there is no episode under way."""
        if self._over:
            raise RuntimeError("step() outside an episode: call reset(seed) first")
        action, before = self.reader.read(action_text), self._key
        reward: Any = self._penalty
        terminated, truncated = False, False
        said: Info = {}
        if action is not None:
            observation, reward, terminated, truncated, info = self.env.step(action)
            said = self._look(observation, info)
        self._turns += 1
        self._total += float(reward)
        truncated = bool(truncated) or (self._turns >= self.max_steps and not terminated)
        self._over = bool(terminated) or truncated
        told = {"action_is_valid": action is not None, "action_is_effective": self._key != before, **self._told(said)}
        if self._over:
            told |= self._verdict()
        return self._observation, float(reward), bool(terminated), truncated, told

    def _look(self, observation: Any, info: Info) -> Info:
        """Takes in the observation and the info; returns the part of the latter that is passed on."""
        space = self.env.observation_space
        drawing = _COLOUR.sub("", str(self.env.render())) if self._draws else ""
        written = shown(space, observation, ALL_DIGITS) if self._in_text else drawing
        if self._pictures:
            picture = png(self.env.render() if self._renders else observation)
            self._observation = [image_part(picture)]
            written = written or hashlib.sha256(picture).hexdigest()
        else:
            self._observation = drawing or shown(space, observation, self._digits)
        said = {name: value.item() if isinstance(value, np.generic) else value for name, value in info.items()}
        said = {name: value for name, value in said.items() if isinstance(value, bool | int | float | str)}
        # A game that hides something has more states than observations: it says its own state_key.
        self._key = str(said.get("state_key") or drawing or written)
        if "success" in said:
            self._success = bool(said.pop("success"))
        return said

    def _told(self, info: Info) -> Info:
        return {"suffix": self._suffix, **info, "state_key": self._key}

    def _verdict(self) -> Info:
        """Returns the environment's verdict, else that of gymnasium's threshold; else {}: the tag's `success_at` must say it."""
        success = self._success
        if success is None and self._threshold is not None:
            success = self._total >= self._threshold
        return {} if success is None else {"success": success}

    def close(self) -> None:
        self._over = True
        self.env.close()

    def sample_action(self, rng: random.Random) -> str:
        """A text that names a random action."""
        own = self._own("sample_action")
        return self.reader.write(self.reader.draw(rng) if own is None else own(rng))

    def oracle_action(self) -> str | None:
        """A text that names a good player's action in the present state, or None."""
        own = self._own("oracle_action")
        best = None if own is None else own()
        return None if best is None else self.reader.write(best)

    def checked(self) -> tuple[list[str], list[str]]:
        """Returns the errors of gymnasium's own checker, and its warnings. Not in an episode, which it would end."""
        game, refused = self.env.unwrapped, []
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                check_env(game, skip_render_check=True, skip_close_check=True)
            except Exception as error:  # boundary: the environment's code runs in it
                refused = [f"{type(error).__name__}: {error}"]
                with suppress(Exception):  # boundary: as above
                    refused += [why for why in (outside(game.observation_space, game.reset(seed=0)[0]),) if why]
        self._over = True
        return refused, list(dict.fromkeys(_WARNED.sub("", str(each.message)) for each in warned))


def _name(env: gymnasium.Env[Any, Any]) -> str:
    game = env.unwrapped
    return env.spec.id if env.spec is not None else type(game.inner if isinstance(game, VectorOfOne) else game).__name__


def _check_spaces(env: gymnasium.Env[Any, Any], name: str, draws: bool) -> None:
    """Raises `ConfigError`. An empty key: the fault is the environment's, whatever key names it."""
    for kind, space, is_shown in (("action", env.action_space, False), ("observation", env.observation_space, True)):
        found = "" if is_shown and draws else flaw(space, is_shown)
        if found:
            fix = f"{'an' if kind[0] in 'ao' else 'a'} {kind}_space of {OBSERVATIONS if is_shown else ACTIONS}"
            other = (
                "render_mode ansi shows a drawing, rgb_array a picture"
                if is_shown
                else "gymnasium.wrappers.DiscretizeAction makes numbers of a Box"
            )
            message = f"the {kind}_space of {name} has {found}, which text cannot {'show' if is_shown else 'say'}"
            raise ConfigError([Problem("", name, message, f"{fix}; {other}")])


Made = gymnasium.Env[Any, Any] | gymnasium.vector.VectorEnv[Any, Any, Any]


def registered(env_id: str, env_kwargs: Mapping[str, object] | None = None) -> Made:
    """`env_id`: a registered id, or `module:Id-v0`, whose module registers it. `env_kwargs`: handed to `gymnasium.make`, or to
    `make_vec` where there is a vectorised environment alone. Raises `ConfigError`."""
    given: dict[str, Any] = dict(env_kwargs or {})
    try:
        return _made(env_id, given)
    except gymnasium.error.Error as error:
        fix = "an id that gymnasium lists, or module:Id-v0, whose module registers it; env_type names a class by its path"
        raise ConfigError([Problem("env_id", env_id, f"gymnasium refuses it: {error}", fix)]) from error
    except Exception as error:  # boundary: an environment of another project may raise anything
        message = f"gymnasium cannot make it: {type(error).__name__}: {error}"
        raise ConfigError([Problem("env_kwargs", given, message, f"arguments that gymnasium.make takes for {env_id}")]) from error


def _made(env_id: str, given: dict[str, Any]) -> Made:
    try:
        return gymnasium.make(env_id, disable_env_checker=True, **given)
    except gymnasium.error.Error:
        spec = gymnasium.registry.get(env_id.rpartition(":")[2])
        if spec is None or spec.entry_point is not None:
            raise
        return gymnasium.make_vec(env_id, **given)


class MadeGame(TextGame):
    """`of_maker` makes subclasses of it."""

    maker: ClassVar[Callable[..., Any]]
    keys: ClassVar[frozenset[str]]
    """Keys that are not the maker's."""

    def __init__(self, **env_config: Any) -> None:
        made = type(self).maker(**{name: value for name, value in env_config.items() if name not in self.keys})
        env = VectorOfOne(made) if isinstance(made, gymnasium.vector.VectorEnv) else made
        if not isinstance(env, gymnasium.Env):
            message = f"returns {type(env).__name__}, which is no gymnasium.Env"
            raise ConfigError([Problem("", type(env).__name__, message, "name a class, or a function that returns one")])
        super().__init__(env, **{name: value for name, value in env_config.items() if name in self.keys})


@cache
def of_maker(maker: Callable[..., Any]) -> type[MadeGame]:
    """A class derived from gymnasium's Env or VectorEnv, or a function that returns one, as an environment of this project. Its
    `env_config`: the arguments of the maker, and those of `TextGame` that the maker does not take itself."""
    own = inspect.signature(maker).parameters
    more = {name: each for name, each in inspect.signature(TextGame).parameters.items() if name not in ("env", *own)}
    rest = [each for each in own.values() if each.kind is each.VAR_KEYWORD]
    named = [
        each.replace(kind=each.KEYWORD_ONLY) for each in own.values() if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
    ]
    keys = [each.replace(kind=each.KEYWORD_ONLY) for each in more.values()]
    return type(
        maker.__name__,
        (MadeGame,),
        {
            "maker": staticmethod(maker),
            "keys": frozenset(more),
            "thread_safe": getattr(maker, "thread_safe", True),
            "__signature__": inspect.Signature([*named, *keys, *rest]),
            "__module__": maker.__module__,
            "__doc__": maker.__doc__,
        },
    )
