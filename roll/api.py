"""Verbs of `import roll` for scripts and notebooks: `load_config`, `check`, `train`, `evaluate`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

from roll.compat.roll.pipelines import AnyConfig
from roll.core.configs.problems import ConfigError, Problem
from roll.core.distributed.machine import this_machine
from roll.prepare import check as checking
from roll.prepare.compose import load
from roll.prepare.keywords import made

Config: TypeAlias = AnyConfig


def load_config(
    path: str | Path | None = None, overrides: Sequence[str] = (), *, compat: bool = False, **keywords: Any
) -> Config:
    """Returns the configuration of a YAML file, with `key=value` overrides and, as keywords, keys that are laid over the file's;
    or of keywords alone: a `model`, `data`, a `reward` and any key (`max_steps=100`, `actor_train={...}`).

    model: a Hugging Face folder, or `owner/model` of the hub.
    data, validation: rows with a prompt (or messages) and, if the reward reads it, a ground_truth: a list, or a table
        of datasets, Arrow, Polars or pandas.
    reward: `def reward(sample)`, or several, whose sum with `reward_weights` is the reward; each is a metric, too.
    compat: the file is ROLL's and keeps ROLL's meaning.

    Raises `ConfigError` with every problem."""
    if path is None:
        if overrides or compat:
            raise ConfigError([Problem("path", None, "is not given: overrides and compat are about a YAML file", "name it")])
        return made(**keywords)
    file = Path(path)
    if not file.with_suffix(".yaml").is_file():
        raise ConfigError([Problem("path", str(path), "there is no such file", "name a YAML file")])
    return load(file.parent, file.stem, overrides, compat=compat, keys=keywords, fetch=True)[0]


def check(config: Config) -> checking.Checked:
    """Plans the configuration on this machine; nothing is started. Raises `ConfigError` with all its problems."""
    if problems := checking.contradictions(config, this_machine()):
        raise ConfigError(problems)
    checked = checking.check(config, this_machine())
    if checked.misfits:
        raise ConfigError([*checked.misfits])
    return checked


def train(config: Config | None = None, *, local: bool = False, **keywords: Any) -> dict[str, Any]:
    """Trains to the end and returns the summary: a whole `config`, or `load_config` of the same keywords, as
    `train(model=..., data=[...], reward=function)`. `local`: in this process, without Ray.

    Raises `ConfigError` before anything starts."""
    if config is None:
        config = load_config(**keywords)
    elif keywords:
        raise ConfigError(
            [Problem(next(iter(keywords)), "...", "is given beside a whole config", "dataclasses.replace(config, ...)")]
        )
    check(config)
    from roll.prepare.training_flow import AsyncTrainingFlow

    return AsyncTrainingFlow(config, local=local).pipeline.run()


def evaluate(config: Config, checkpoints: str | Sequence[str] = (), *, local: bool = False) -> dict[str, Any]:
    """Returns the summary of an evaluation: the models on the configuration's validation sets. `checkpoints`: folders of runs or
    of checkpoints, "best" or "pretrain", one or several (default: `bench_checkpoints`). Raises `ConfigError`."""
    named = ([checkpoints] if isinstance(checkpoints, str) else list(checkpoints)) or config.bench_checkpoints
    return train(replace(config, mode="bench", bench_checkpoints=named, resume_from_checkpoint=False), local=local)


def _say_what_is_wrong(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Prints the problems of a script that ends with a `ConfigError`, not the place where they were found."""
    if isinstance(error, ConfigError):
        for problem in error.problems:
            print(f"error: {problem}", file=sys.stderr)
    else:
        _before(kind, error, trace)


_before, sys.excepthook = sys.excepthook, _say_what_is_wrong
