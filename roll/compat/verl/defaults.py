"""verl's defaults that are not the ones here, of its release 0.7 and later: they count where a file leaves the key out."""

from __future__ import annotations

from collections.abc import Mapping

from roll.compat.framework import File, at
from roll.compat.verl.facts import (
    ACTOR,
    ASYNC,
    MEGATRON_SIZES,
    MODEL,
    REF,
    ROLLOUT,
    apart,
    engine,
    fully_async,
    megatron,
    validates,
    with_critic,
    with_reference,
)

ALWAYS: Mapping[str, object] = {
    "data.prompt_key": "prompt",
    "data.reward_fn_key": "data_source",
    "data.max_prompt_length": 512,
    "data.max_response_length": 512,
    "algorithm.adv_estimator": "gae",
    f"{ACTOR}.strategy": "fsdp",
    f"{ACTOR}.ppo_mini_batch_size": 256,
    f"{ACTOR}.clip_ratio_low": 0.2,
    f"{ACTOR}.clip_ratio_high": 0.2,
    f"{ACTOR}.clip_ratio_c": 3.0,
    f"{ACTOR}.loss_agg_mode": "token-mean",
    f"{ACTOR}.optim.lr_scheduler_type": "constant",
    f"{ACTOR}.optim.weight_decay": 0.01,
    f"{MODEL}.enable_gradient_checkpointing": True,
    f"{ROLLOUT}.n": 1,
    "trainer.nnodes": 1,
    "trainer.n_gpus_per_node": 8,
    "trainer.total_epochs": 30,
    "trainer.project_name": "verl_examples",
    "trainer.experiment_name": "gsm8k",
    "trainer.logger": ["console", "wandb"],
    "trainer.save_freq": -1,
    "trainer.resume_mode": "auto",
}
WITH_ENGINE: Mapping[str, object] = {
    f"{ROLLOUT}.tensor_model_parallel_size": 2,
    f"{ROLLOUT}.gpu_memory_utilization": 0.5,
    f"{ROLLOUT}.max_num_seqs": 256,
}
WITH_KL_LOSS: Mapping[str, object] = {f"{ACTOR}.kl_loss_coef": 0.001, f"{ACTOR}.kl_loss_type": "low_var_kl"}
WITH_KL_REWARD: Mapping[str, object] = {"algorithm.kl_ctrl.kl_coef": 0.001}
WITH_CRITIC: Mapping[str, object] = {
    "algorithm.lam": 1.0,
    "critic.strategy": "fsdp",
    "critic.optim.lr": 1e-5,
    "critic.optim.weight_decay": 0.01,
    "critic.optim.lr_scheduler_type": "constant",
    "critic.cliprange_value": 0.5,
    "critic.model.enable_gradient_checkpointing": True,
}
WITH_ADAPTERS: Mapping[str, object] = {f"{MODEL}.lora_alpha": 16, f"{MODEL}.target_modules": "all-linear"}
WITH_VALIDATION: Mapping[str, object] = {f"{ROLLOUT}.val_kwargs.temperature": 0, f"{ROLLOUT}.val_kwargs.n": 1}
WITH_DYNAMIC: Mapping[str, object] = {f"{ACTOR}.ppo_max_token_len_per_gpu": 16384}
FULLY_ASYNC: Mapping[str, object] = {
    f"{ASYNC}.staleness_threshold": 0.1,
    f"{ASYNC}.trigger_parameter_sync_step": 4,
    f"{ASYNC}.require_batches": 1,
    f"{ASYNC}.partial_rollout": True,
    "rollout.total_rollout_steps": 100,
}
TABLES: Mapping[str, Mapping[str, object]] = {
    "": ALWAYS,
    "vllm, sglang": WITH_ENGINE,
    "use_kl_loss": WITH_KL_LOSS,
    "use_kl_in_reward": WITH_KL_REWARD,
    "gae": WITH_CRITIC,
    "lora_rank": WITH_ADAPTERS,
    "val_files and test_freq": WITH_VALIDATION,
    "use_dynamic_bsz": WITH_DYNAMIC,
    "fully asynchronous": FULLY_ASYNC,
}
"""The files that a table is for -> the table."""


def left_out(file: File) -> Mapping[str, object]:
    found = dict(ALWAYS) | ({} if fully_async(file) else {"data.train_batch_size": 1024})
    estimator = at(file, "algorithm.adv_estimator", "gae")
    with_default = {**file, "algorithm": {**(at(file, "algorithm") or {}), "adv_estimator": estimator}}
    dynamic = at(file, f"{ACTOR}.use_dynamic_bsz") is True
    chosen = (
        (engine(file) in ("vllm", "sglang"), WITH_ENGINE),
        (at(file, f"{ACTOR}.use_kl_loss"), WITH_KL_LOSS),
        (at(file, "algorithm.use_kl_in_reward"), WITH_KL_REWARD),
        (with_critic(with_default), WITH_CRITIC),
        (validates(file), WITH_VALIDATION),
        (dynamic, WITH_DYNAMIC),
        (at(file, f"{MODEL}.lora_rank"), WITH_ADAPTERS),
        (fully_async(file), FULLY_ASYNC),
    )
    for holds, table in chosen:
        found |= table if holds else {}
    found["algorithm.rollout_correction.bypass_mode"] = apart(file)
    found |= {"async_generation_ratio": 1} if apart(file) and not fully_async(file) else {}
    if with_critic(with_default):
        found["critic.ppo_mini_batch_size"] = at(file, f"{ACTOR}.ppo_mini_batch_size", 256)
        found |= {"critic.ppo_max_token_len_per_gpu": 32768} if dynamic else {}
    if with_reference(file):
        found[f"{REF}.strategy"] = at(file, f"{ACTOR}.strategy", "fsdp")
    if megatron(file):
        found[f"{ACTOR}.megatron.sequence_parallel"] = True
        sizes = (*MEGATRON_SIZES, "expert_model_parallel_size", "expert_tensor_parallel_size")
        theirs = {f"{REF}.megatron.{name}": at(file, f"{ACTOR}.megatron.{name}") for name in sizes}
        found |= {path: value for path, value in theirs.items() if value is not None and with_reference(file)}
    return found
