"""A value of any type at any key of this project or of ROLL's is taken or refused in lines that say where: never a traceback."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Iterator
from typing import Any

import pytest
from roll_surface import keys

from roll.compat.roll.rule import ROLES
from roll.compat.roll.translation import RULES
from roll.core.configs.agentic import AgenticConfig
from roll.core.configs.fields import walk
from roll.core.configs.problems import ConfigError
from roll.core.configs.redact import visible
from roll.core.configs.rlvr import RLVRConfig
from roll.core.distributed.machine import Machine
from roll.plan.rules.validation import check_config
from roll.plan.text import whole
from roll.prepare.check import check, planned_devices
from roll.prepare.compose import understand

SCALARS = [
    None,
    True,
    False,
    -1,
    0,
    1,
    3,
    2.5,
    10**30,
    math.inf,
    math.nan,
    1e308,
    "",
    "x",
    "a\nb",
    "1e-6",
    "\x1b[31m",
    "1,2",
    "a.B",
]
NESTED = [[], [None], [[1]], ["a", {}], {}, {"x": 1}, {"x": {"y": []}}, {"enable": True}, [{"a": None}] * 3, {0: 1}, {None: 2}]
VALUES: list[Any] = SCALARS + NESTED
MACHINE = Machine(cpus=8, memory=1 << 36, accelerators=())
DEVICES = {
    "actor_train": {"device_mapping": "0"},
    "actor_infer": {"device_mapping": "0"},
    "pretrain": "m",
    "num_gpus_per_node": 2,
}
RUNS: dict[str, dict[str, Any]] = {
    "rlvr": {
        **copy.deepcopy(DEVICES),
        "prompt_length": 16,
        "response_length": 16,
        "rollout_batch_size": 64,
        "rewards": {"math": {"worker_cls": "a.B"}},
    },
    "agentic": {
        **copy.deepcopy(DEVICES),
        "sequence_length": 128,
        "rollout_batch_size": 128,
        "custom_envs": {"math": {"env_type": "frozen_lake"}},
        "train_env_manager": {"group_size": 8},
    },
}
RUNS["rlvr"]["actor_train"]["data_args"] = {"file_name": "prompts.jsonl"}


def every_key() -> Iterator[str]:
    named = {*keys(), *(rule.path for rule in RULES), *(path for cls in (RLVRConfig, AgenticConfig) for path, _, _ in walk(cls))}
    for name in sorted(named):
        for role in ROLES if "<role>" in name else ("",):
            yield name.replace("<role>", role).replace("<name>", "math")


def changed(run: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    made = block = copy.deepcopy(run)
    *above, last = key.split(".")
    for name in above:
        inner = block.get(name)
        block[name] = block = inner if isinstance(inner, dict) else {}
    block[last] = copy.deepcopy(value)
    return made


def answer(mapping: dict[str, Any], compat: bool) -> list[str]:
    """The lines that `roll check` would say."""
    try:
        config, report = understand(mapping, set(), set(), {}, compat)
        problems = check_config(config, planned_devices(config, MACHINE))
        if problems:
            return [str(problem) for problem in problems]
        checked = check(config, MACHINE)
        return [visible(line) for line in whole(checked.plan, checked.machine, checked.remarks, report)]
    except ConfigError as error:
        return str(error).splitlines()


@pytest.mark.parametrize("name", RUNS)
def test_the_runs_that_are_changed_would_start(name: str) -> None:
    assert check_config(understand(copy.deepcopy(RUNS[name]), set(), set(), {}, True)[0], 2) == []


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))])
def test_any_value_at_any_key(seed: int) -> None:
    """Each key is given a value of some type in one of the pipelines, strictly or not; the seeds differ in which."""
    chance = random.Random(seed)
    for key in every_key():
        value, name, compat = chance.choice(VALUES), chance.choice(list(RUNS)), chance.random() < 0.7
        lines = answer(changed(RUNS[name], key, value), compat)
        assert all(line.isprintable() and len(line) < 4000 for line in lines), (key, value, name, compat)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("train_env_manager.llm_proxy", "policy"),
        ("actor_train.strategy_args.strategy_config.additional_configs", 5),
        (
            "actor_train.strategy_args",
            {"strategy_name": ["megatron_train"], "strategy_config": {"tensor_model_parallel_size": 2}},
        ),
        ("num_gpus_per_node", 10**30),
        ("num_nodes", 10**9),
        ("max_steps", 10**30),
        ("seed", 10**30),
        ("async_generation_ratio", 1e308),
    ],
)
@pytest.mark.parametrize("compat", [True, False])
def test_values_that_were_a_traceback_or_a_hang(key: str, value: Any, compat: bool) -> None:
    name = "agentic" if key.startswith("train_env") else "rlvr"
    said = answer(changed(RUNS[name], key, value), compat)
    assert any(key.split(".")[-1] in line or key in line for line in said), said
