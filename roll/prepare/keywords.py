"""A configuration from Python's keywords: a model, rows and a reward; missing keys come from the model and the rows."""

from __future__ import annotations

import hashlib
import inspect
from asyncio import to_thread
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from roll.core.configs.problems import MISSING_VALUE, ConfigError, Problem
from roll.core.configs.rlvr import RLVRConfig
from roll.core.data.numbers import read_number
from roll.core.data.sample import Sample
from roll.core.distributed.machine import this_machine
from roll.core.errors import contained
from roll.plan.rules.loading import load_config
from roll.prepare.compose import laid_over
from roll.prepare.default_devices import shared_out
from roll.prepare.fitting import OpenedModel, as_lines, lengths, opened, under, usual_columns

Reward: TypeAlias = Callable[..., Any]
Rows: TypeAlias = Iterable[Mapping[str, Any] | str]
DOMAIN = "prompts"
PROMPTS, SAMPLES = 32, 8
TABLES: dict[str, tuple[str, ...]] = {"to_pylist": (), "to_dicts": (), "to_list": (), "to_dict": ("records",)}
"""Methods that return the rows of a table, with their arguments: of Arrow, Polars, datasets and pandas."""
_UNUSED = "(no column)"
"""Rows of a script are all of one domain, whatever a column `tag` of theirs says."""


def made(
    model: str | Path | None = None,
    data: Rows | None = None,
    reward: Reward | Sequence[Reward] | None = None,
    reward_weights: Sequence[float] | None = None,
    validation: Rows | None = None,
    learning_rate: float | None = None,
    **keys: Any,
) -> RLVRConfig:
    """`keys`: any other of the configuration. Raises `ConfigError`."""
    if model is None or data is None or reward is None:
        missing = next(name for name, value in (("model", model), ("data", data), ("reward", reward)) if value is None)
        raise ConfigError([Problem(missing, MISSING_VALUE, "is not given", "roll.train(model=..., data=[...], reward=function)")])
    judge = _judge(reward, reward_weights)
    rows, columns = _rows("data", data)
    known = opened(str(model), "model")
    mapping = _fitted(known, rows, columns, keys)
    folder = Path(str(keys.get("output_dir", RLVRConfig.output_dir))) / "data"
    of_data = {"template": known.template(rows), "default_tag": DOMAIN, "tag": _UNUSED}
    mapping["actor_train"]["data_args"] = {"file_name": _written(folder, rows), **of_data, **columns}
    if learning_rate is not None:
        mapping["actor_train"]["training_args"]["learning_rate"] = learning_rate
    if validation is not None:
        judged, named = _rows("validation", validation)
        mapping["validation"] = {"data_args": {"file_name": _written(folder, judged), **of_data, **named}}
    config = load_config(RLVRConfig, laid_over(mapping, keys))
    return replace(config, rewards={name: replace(each, worker_cls=judge) for name, each in config.rewards.items()})


BEGUN = "continue_final_message"


def _fitted(
    model: OpenedModel, rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str], keys: Mapping[str, Any]
) -> dict[str, Any]:
    """Derives the keys of a run from model, rows and machine. Raises `ConfigError`."""
    asked = under(keys, "actor_train.data_args").get(BEGUN, False)
    found = lengths(model, rows, {**columns, BEGUN: asked}, model.template(rows), "data")
    devices, engines = shared_out(len(this_machine().accelerators) or 2)
    prompts, samples = keys.get("rollout_batch_size", min(PROMPTS, len(rows))), keys.get("num_return_sequences_in_group", SAMPLES)
    return {
        "pretrain": model.name,
        "rollout_batch_size": prompts,
        "num_return_sequences_in_group": samples,
        "prompt_length": found.prompt,
        "response_length": found.response,
        "async_generation_ratio": 0 if devices == engines else 1,
        "actor_train": {
            "device_mapping": devices,
            "training_args": {"per_device_train_batch_size": max(1, prompts * samples // len(devices))},
        },
        "actor_infer": {"device_mapping": engines},
        "rewards": {DOMAIN: {"worker_cls": "roll.given.reward"}},
    }


def _judge(reward: Reward | Sequence[Reward], weights: Sequence[float] | None) -> Reward:
    """Returns one function for all rewards. Raises `ConfigError`."""
    each = [reward] if callable(reward) else list(reward)
    if not each or not all(callable(one) for one in each):
        raise ConfigError([Problem("reward", reward, "is no function, nor a list of functions", "def reward(sample): ...")])
    if weights is not None and len(weights) != len(each):
        fix = f"one for each, e.g. {[1.0] * len(each)}"
        raise ConfigError([Problem("reward_weights", list(weights), f"has {len(weights)} weights for {len(each)} rewards", fix)])
    if len(each) == 1 and weights is None:
        return each[0]
    named = {getattr(one, "__name__", type(one).__name__): one for one in each}
    if len(named) < len(each):
        raise ConfigError([Problem("reward", [*named], "are functions of the same name", "give each a name of its own")])
    factors = list(weights) if weights is not None else [1.0] * len(each)

    async def weighted(sample: Sample) -> tuple[float, dict[str, float]]:
        parts: dict[str, float] = {}
        for name, one in named.items():
            said = await one(sample) if inspect.iscoroutinefunction(one) else await to_thread(contained, one, sample)
            parts[name] = read_number(said)
        return sum(factor * part for factor, part in zip(factors, parts.values(), strict=True)), parts

    return weighted


def _rows(key: str, data: object) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Returns rows with the names of their columns. Raises `ConfigError`."""
    if isinstance(data, str | Path | Mapping) or (listed := _listed(data)) is None:
        shown = str(data) if isinstance(data, str | Path) else type(data).__name__
        raise ConfigError([Problem(key, shown, "is no list of rows", _instead(data))])
    if not all(isinstance(row, str | Mapping) for row in listed):
        raise ConfigError([Problem(key, type(data).__name__, "does not yield rows", "texts or mappings")])
    rows = [{"prompt": row} if isinstance(row, str) else dict(row) for row in listed]
    if not rows:
        raise ConfigError([Problem(key, [], "has no rows", "at least one")])
    columns = usual_columns(rows[0], key, "rows")
    answer = columns.get("ground_truth", "ground_truth")
    return [row if answer.partition(".")[0] in row else row | {answer: ""} for row in rows], columns


def _listed(data: object) -> list[Any] | None:
    """Returns the rows of a table, by its own method, or all that anything else yields; None if it yields nothing."""
    for name, arguments in TABLES.items():
        if callable(method := getattr(data, name, None)):
            return list(method(*arguments))
    return list(data) if isinstance(data, Iterable) else None


def _instead(data: object) -> str:
    if isinstance(data, str | Path):
        return "for a file write actor_train: {data_args: {file_name: ...}}"
    if not isinstance(data, Mapping):
        return "a list of texts or mappings, or a table of Arrow, Polars, pandas or datasets"
    part = next((name for name, rows in data.items() if hasattr(rows, "column_names")), None)
    return f"one of its data sets, data[{part!r}]" if part else "[dict(zip(data, row)) for row in zip(*data.values())]"


def _written(folder: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    """Writes the rows to a file named by its contents: the same rows are the same file, also for a run that is resumed. Returns
    its path."""
    text = as_lines(rows, "data")
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return str(path)
