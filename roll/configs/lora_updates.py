"""Whether engines are sent adapters or merged weights."""

from __future__ import annotations

from collections.abc import Iterator

from roll.configs.ppo import PPOConfig
from roll.configs.problems import Problem

ENGINES = ("hf_infer", "vllm")
VLLM_LARGEST_RANK = 512


def adapter_updates(config: PPOConfig) -> tuple[bool, str]:
    """Whether weight updates are adapters alone, and why."""
    trained = config.actor_train.model_args
    if trained.lora_target is None:
        return False, "all weights are trained"
    if config.mode == "bench":
        return False, "what is evaluated are merged weights"
    if trained.lora_update != "auto":
        return trained.lora_update == "adapter", f"lora_update: {trained.lora_update}"
    if reason := _obstacle(config):
        return False, reason
    if config.actor_infer.strategy_args.strategy_name == "vllm":
        return False, "vllm computes adapters beside their base: shorter updates, slower tokens; lora_update: adapter chooses it"
    return True, "hf_infer merges them with the base that it has"


def lora_update_problems(config: PPOConfig) -> Iterator[Problem]:
    trained = config.actor_train.model_args
    if trained.lora_target is not None and trained.lora_update == "adapter" and (reason := _obstacle(config)):
        yield Problem("actor_train.model_args.lora_update", "adapter", reason, "auto or merged")


def _obstacle(config: PPOConfig) -> str:
    """Why the engines cannot take adapters; empty if they can."""
    engine, rank = config.actor_infer.strategy_args.strategy_name, config.actor_train.model_args.lora_rank
    if engine not in ENGINES:
        return f"{engine} is not wired to take adapters"
    if engine == "vllm" and rank > VLLM_LARGEST_RANK:
        return f"vLLM serves adapters of rank {VLLM_LARGEST_RANK} at most, lora_rank is {rank}"
    base, served = config.model_folder(config.actor_train), config.model_folder(config.actor_infer)
    if base != served:
        return f"the engines start from '{served}', the trainer from '{base}'"
    return ""
