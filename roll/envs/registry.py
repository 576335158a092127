"""Makes an environment from `env_type` and `env_config`, as a user writes them."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from roll.core.configs.dotted_path import import_failure, named_object
from roll.core.configs.problems import MISSING_VALUE, ConfigError, Problem, did_you_mean
from roll.core.configs.program import PROGRAM
from roll.core.data.untrusted import complaint
from roll.core.errors import boundary
from roll.envs.environment import AnyTextEnv, is_async
from roll.envs.rules import instructions

# Imported on first use: an environment's packages are needed only where it is played.
BUILT_IN = {
    name: f"roll.envs.{path}"
    for name, path in {
        "frozen_lake": "frozen_lake.FrozenLake",
        "sokoban": "sokoban.Sokoban",
        "sokoban_drawn": "drawn_sokoban.DrawnSokoban",
        "sokoban_native_env": "native_sokoban.NativeSokoban",
        "roll_math": "questions.MathQuestions",
        "roll_qa": "questions.TextQuestions",
        "gymnasium": "text_game.registered",
        "gem": "gem.GemEnv",
        "reasoning_gym": "reasoning_gym.ReasoningGym",
        "textarena": "textarena.TextArena",
        "verifiers": "verifiers.TaskSet",
        "openenv": "openenv.OpenEnv",
    }.items()
}


def env_class(env_type: str, key: str = "env_type") -> type[Any]:
    """The class that `env_type` names: a built-in name, or the dotted path `package.module.Class` of a user's own, or of a
    function that makes an environment of gymnasium. What plays it by text takes the place of a class of gymnasium's or GEM's.

    Raises `ConfigError` about `key` if there is none, or if it is no environment."""
    if env_type == PROGRAM:
        raise ConfigError(
            [Problem(key, env_type, "is a program of its own, not an environment with reset and step", "the page programs.md")]
        )
    if env_type not in BUILT_IN and "." not in env_type:
        known = f"known: {', '.join(BUILT_IN)}, or the dotted path of your own class, my_package.my_env.MyEnv"
        fix = f"{did_you_mean(env_type, BUILT_IN)} {known}".lstrip()
        raise ConfigError([Problem(key, env_type, "is not a known environment", fix)])
    fix = "package.module.Class, importable here"
    say = partial(import_failure, env_type)
    with boundary(lambda why: ConfigError([Problem(key, env_type, why, fix)]), "cannot be imported", say=say):
        cls = named_object(BUILT_IN.get(env_type, env_type))
    if flaw := "" if _derives(cls, "gem.core") else _flaw(cls):
        fix = "derive it from gymnasium.Env, or give it reset(seed), step(text) and close()"
        raise ConfigError([Problem(key, env_type, f"is not an environment: {flaw}", fix)])
    return _played_by_text(cls)


def _played_by_text(found: Any) -> type[Any]:
    """Returns the class itself, or its player by text. Gymnasium is imported where one of its environments is named."""
    if _derives(found, "gem.core"):
        from roll.envs.gem import of_class

        return of_class(found)
    if _derives(found, "gymnasium.core", "gymnasium.vector.vector_env") or not isinstance(found, type):
        from roll.envs.text_game import of_maker

        return of_maker(found)
    cls: type[Any] = found
    return cls


def _derives(cls: Any, *modules: str) -> bool:
    """True if it derives from the class `Env` or `VectorEnv` of these modules, which need not be installed."""
    return any(base.__name__ in ("Env", "VectorEnv") and base.__module__ in modules for base in getattr(cls, "__mro__", ()))


def make_env(env_type: str, env_config: Mapping[str, object], key: str = "env_config") -> AnyTextEnv:
    """An environment of its own. Raises `ConfigError` about `key` if it cannot be made of this configuration."""
    cls = env_class(env_type, key.replace("env_config", "env_type"))
    if problems := config_problems(cls, env_config, key):
        raise ConfigError(problems)
    try:
        env: AnyTextEnv = cls(**env_config)
    except ConfigError as error:  # raised by the environment, whose keys are relative
        raise ConfigError([_placed(problem, key, env_type) for problem in error.problems]) from error
    except Exception as error:  # boundary: a user's class may raise anything
        message = f"{env_type} refuses it: {type(error).__name__}: {error}"
        fix = f"as it takes them: {', '.join(map(str, inspect.signature(cls).parameters.values())) or 'no keys'}"
        raise ConfigError([Problem(key, dict(env_config), message, fix)]) from error
    if not isinstance(rules := instructions(env), str):
        said = "has no attribute `instructions` (text), and its class no docstring"
        raise ConfigError([Problem(key, dict(env_config), f"{env_type} {said}", "write the rules there")])
    if wrong := complaint(rules):
        raise ConfigError([Problem(key, dict(env_config), f"the instructions of {env_type}: the text {wrong}", "mend the text")])
    return env


def _placed(problem: Problem, key: str, env_type: str) -> Problem:
    """An empty key is about the environment itself."""
    if not problem.key:
        return replace(problem, key=key.replace("env_config", "env_type"), value=env_type)
    return replace(problem, key=f"{key}.{problem.key}")


def config_problems(cls: type[object], env_config: Mapping[str, object], key: str = "env_config") -> list[Problem]:
    """Keys that the constructor does not take, and keys that it needs and does not get."""
    parameters = inspect.signature(cls).parameters
    known = [name for name, p in parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    problems = []
    for name, value in env_config.items():
        if name not in known and not takes_any:
            fix = did_you_mean(name, known, f"known: {', '.join(known) or 'none'}", cutoff=0.5)
            problems.append(Problem(f"{key}.{name}", value, f"{cls.__name__} has no such key", fix))
    for name, parameter in parameters.items():
        if name in known and parameter.default is parameter.empty and name not in env_config:
            problems.append(Problem(f"{key}.{name}", MISSING_VALUE, f"{cls.__name__} needs it", f"{name}: <its value>"))
    return [*problems, *_mistyped(cls, env_config, key)]


_SCALARS = {"bool": (bool, "true or false"), "int": (int, "a whole number"), "float": (float, "a number"), "str": (str, "a text")}


def _mistyped(cls: type[Any], env_config: Mapping[str, object], key: str) -> Iterator[Problem]:
    """Values of another type than the constructor declares, which it might take in silence: the text "no" is true."""
    for name, parameter in inspect.signature(cls).parameters.items():
        declared = str(getattr(parameter.annotation, "__name__", parameter.annotation)).removesuffix(" | None")
        value, default = env_config.get(name), parameter.default
        if value is not None and declared in _SCALARS:
            kind, said = _SCALARS[declared]
            if not isinstance(value, (kind, int) if kind is float else kind):
                fix = f"e.g. {json.dumps(default)}" if isinstance(default, kind) else said
                yield Problem(f"{key}.{name}", value, f"must be {said}", fix)


def _flaw(cls: object) -> str:
    """Returns why a class, or a function that makes one of gymnasium's, is no environment; empty if it is."""
    if inspect.isfunction(cls):
        return "it is a coroutine function" if inspect.iscoroutinefunction(cls) else ""
    if not isinstance(cls, type):
        return "it is neither a class nor a function"
    methods = {name: getattr(cls, name, None) for name in ("reset", "step", "close")}
    missing = [name for name, method in methods.items() if not callable(method)]
    if missing:
        return f"it has no {' and no '.join(missing)}"
    if inspect.iscoroutinefunction(methods["reset"]) != is_async(cls):
        return "one of reset and step is a coroutine function, the other is not"
    if inspect.iscoroutinefunction(methods["close"]):
        return "close is a coroutine function"
    if is_async(cls) and _derives(cls, "gymnasium.core"):
        return "it derives from gymnasium.Env, whose step is no coroutine function"
    return ""
