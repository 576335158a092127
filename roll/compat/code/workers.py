"""The base class of ROLL's reward workers, the helpers of their constructors, and small functions that ROLL's users' code
imports, each from a module of its own there."""

from __future__ import annotations

import contextlib
import logging
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

RAY_NAMESPACE = "roll"


class GenerateStopReason(Enum):
    FINISH = auto()
    ABORT = auto()
    MAX_LENGTH = auto()
    NO_SYSTEM_PROMPT = auto()


class EpisodeStopReason(Enum):
    FINISH = "finish"
    MAX_LENGTH = "max_length"
    MAX_STEPS = "max_steps"
    ABORT = "abort"
    ENV_RESET_FAILED = "env_reset_failed"
    ENV_TIMEOUT = "env_timeout"
    UNKNOWN = "unknown"


def get_logger() -> logging.Logger:
    return logging.getLogger("roll.user_code")


@contextlib.contextmanager
def all_seed(seed: int | None) -> Iterator[None]:
    """Seeds the global generators of Python and numpy; afterwards restores their states."""
    outside = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(outside[0])
        np.random.set_state(outside[1])


def contains_renderable_field(s: str, key: str) -> bool:
    """Returns True if the text has a place {key}, {key:...}, {key.a} or {key[0]} to fill in."""
    return re.search(rf"\{{{re.escape(key)}(?!\w)[^}}]*\}}", s) is not None


def default_parser_action_func(
    text: str, action_pattern: str, action_lookup: Mapping[Any, str] | None, special_token_list: Sequence[str] | None
) -> dict[str, Any]:
    """Parses the first match of the pattern. With two groups the first is the thought, the second the action; its value is the
    key in `action_lookup`, in upper or lower case, None if there is none."""
    for token in special_token_list or ():
        text = text.replace(token, "").strip()
    match = re.search(action_pattern, text, re.DOTALL)
    groups = [group or "" for group in match.groups()] if match else []
    thought, said = (groups[0], groups[1]) if len(groups) > 1 else ("", groups[0] if groups else "")
    names = {name.lower(): key for key, name in (action_lookup or {}).items()}
    action = None if not groups else names.get(said.strip().lower()) if names else said.strip()
    return {"action": action, "action_content": said.strip(), "think_content": thought.strip()}


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
"""Defaults of ROLL's RewardConfig."""


class WorkerConfig:
    """The domain's block as ROLL's workers read it: by attribute, with the keys of `reward_args` beside the others."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        vars(self).update(_DEFAULTS | dict(config) | dict(config.get("reward_args") or {}))
        self.model_args = SimpleNamespace(model_name_or_path=config["policy"])

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"worker_config.{name} is not here; write it into rewards.<domain>.reward_args")


RewardConfig = WorkerConfig


class PipelineConfig:
    """The argument of `initialize`: a reward worker knows its domain's block and the policy's model."""

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
    """Loads the policy's tokenizer, whose tokens a worker gets: `model_args` names it."""
    from roll.strategies.model_folder import load_tokenizer

    return load_tokenizer(Path(model_name_or_path or model_args.model_name_or_path))
