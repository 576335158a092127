"""Requirements of a run that this machine lacks: nodes, packages, prompts, the user's own code, a place for its results, and
those of `refused_here`. Nothing heavy is imported."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from roll.cli.own_names import objection
from roll.cli.refused_here import refused_here, unwritable
from roll.core.configs.agentic import AgenticConfig
from roll.core.configs.ppo import PPOConfig
from roll.core.configs.problems import Problem
from roll.core.configs.sizes import TORCH_NAMES, compute_dtype
from roll.core.distributed.machine import this_machine
from roll.core.weights.folder_files import CONFIG
from roll.prepare.check import engines
from roll.strategies.infer.installed_engine import engine_package, engine_problems
from roll.strategies.installed_backend import backend_problems


def missing_here(config: PPOConfig) -> Iterator[str]:
    """Yields one line for each missing thing."""
    packages = (*backend_problems(config), *(each for engine in engines(config) for each in engine_problems(*engine)))
    packages = packages or tuple(_engine_models(config))
    found = (*_nodes(config), *packages, *_code(config), *_prompts(config), *_results(config))
    for problem in (*found, *refused_here(config)):
        yield f"a run on this machine would be refused: {problem}"


def _nodes(config: PPOConfig) -> Iterator[Problem]:
    if config.num_nodes > 1 and "RAY_ADDRESS" not in os.environ:
        fix = f"device_mapping below {config.num_gpus_per_node}" if config.num_gpus_per_node else "1"
        yield Problem("num_nodes", config.num_nodes, "needs a Ray cluster, which RAY_ADDRESS=<head>:6379 names", fix)


def _engine_models(config: PPOConfig) -> Iterator[Problem]:
    """Models that are there, and that the engine of their role cannot run."""
    kind = "cuda" if this_machine().accelerators else "cpu"
    for name, role in config.roles().items():
        package, folder = engine_package(role.strategy_args.strategy_name), config.model_folder(role)
        if package is None or not Path(folder, CONFIG).is_file():
            continue
        dtype = TORCH_NAMES[compute_dtype(role.model_args.dtype, kind == "cuda")]
        try:
            package.check_folder(folder, role.strategy_args.strategy_config, dtype, kind)
        except (ValueError, OSError) as error:
            yield Problem(f"{name}.strategy_args.strategy_name", role.strategy_args.strategy_name, str(error))


def _code(config: PPOConfig) -> Iterator[Problem]:
    named: dict[str, object] = {f"{name}.worker_cls": role.worker_cls for name, role in config.configured_roles().items()}
    named |= {f"rewards.{domain}.worker_cls": reward.worker_cls for domain, reward in config.reward_configs.items()}
    if isinstance(config, AgenticConfig):
        named |= {f"custom_envs.{tag}.env_type": env.env_type for tag, env in config.custom_envs.items() if env.python is None}
    for key, path in named.items():
        if isinstance(path, str) and "." in path and not path.startswith("roll.") and (why := objection(path, os.getcwd())):
            yield Problem(key, path, why)


def _prompts(config: PPOConfig) -> Iterator[Problem]:
    for name, data in config.data_sources.items():
        unread = name == "actor_train" and config.only_evaluates
        for file in data.files if data.path is None and not unread else ():
            if not Path(file).is_file():
                what = "is a folder, not a file" if Path(file).is_dir() else "is not there"
                yield Problem(f"{name}.data_args.file_name", file, what)


def _results(config: PPOConfig) -> Iterator[Problem]:
    if why := unwritable(Path(config.run_dir).absolute()):
        yield Problem("output_dir", config.output_dir, why)
