"""The base class of ROLL's reward workers and what their constructors use."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

from roll.compat.code.pieces import get_logger

_DEFAULTS: dict[str, Any] = {
    "code_url": None,
    "use_local": True,
    "judge_prompt": None,
    "judge_model_type": None,
    "judge_model_name": None,
    "judge_api_url": None,
    "judge_api_key": None,
    "format_pattern": None,
    "reward_type": None,
    "response_length_penalty_coef": 0.0,
    "reward_manager_config": [],
}
"""Of ROLL's RewardConfig."""


class WorkerConfig:
    """The domain's block as ROLL's workers read it: by attribute, with the keys of `reward_args` beside the others."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        vars(self).update(_DEFAULTS | dict(config) | dict(config.get("reward_args") or {}))
        self.model_args = SimpleNamespace(model_name_or_path=config["policy"])

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"worker_config.{name} is not here; write it into rewards.<domain>.reward_args")


RewardConfig = WorkerConfig


class PipelineConfig:
    """What `initialize` is given: a reward worker knows its domain's block and the policy's model."""

    def __init__(self, config: WorkerConfig) -> None:
        self.actor_train = self.actor_infer = SimpleNamespace(model_args=config.model_args)
        self.pretrain = config.model_args.model_name_or_path

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"pipeline_config.{name} is not here; write it into rewards.<domain>.reward_args")


@dataclass
class RankInfo:
    world_size: int = 1
    rank: int = 0
    dp_size: int = 1
    dp_rank: int = 0
    tp_size: int = 1
    tp_rank: int = 0
    pp_size: int = 1
    pp_rank: int = 0
    cp_size: int = 1
    cp_rank: int = 0


class Worker:
    """A subclass has `compute_rewards(data)`. Each object is alone in its process, and knows of no other."""

    carried_by: ClassVar[str] = "roll.compat.code.reward_worker.RollRewardWorker"

    def __init__(self, worker_config: WorkerConfig) -> None:
        self.worker_config = worker_config
        self.pipeline_config: Any = None
        self.rank = self.local_rank = 0
        self.world_size = 1
        self.worker_name = self.cluster_name = type(self).__name__
        self.rank_info = RankInfo()

    @property
    def logger(self) -> logging.Logger:
        return get_logger()

    def initialize(self, pipeline_config: Any, *args: Any, **kwargs: Any) -> None:
        self.pipeline_config = pipeline_config

    def __getattr__(self, name: str) -> Any:
        has = "worker_config, logger, rank_info, rank, world_size, initialize"
        raise AttributeError(f"'{type(self).__name__}' has no attribute '{name}'; of ROLL's Worker there are {has}")


class InferenceStrategy:
    """Named in annotations. A worker with a model of its own is not there."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError("a worker of ROLL's form has no model: rewards.<domain>.judge and reward_model have")


TrainStrategy = InferenceStrategy


def default_reward_model_provider(*args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError("a worker of ROLL's form loads no model: rewards.<domain>.reward_model does")


def default_tokenizer_provider(model_args: Any, model_name_or_path: str | None = None) -> Any:
    """Of the policy, whose tokens a worker gets: `model_args` says so."""
    from roll.strategies.model_folder import load_tokenizer

    return load_tokenizer(Path(model_name_or_path or model_args.model_name_or_path))
