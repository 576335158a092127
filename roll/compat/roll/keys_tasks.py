"""ROLL's keys of training tasks: prompts, validation, rewards, environments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from roll.compat.roll.rule import (
    DEAD_IN_ROLL,
    DROP,
    ENVIRONMENT,
    KeyRule,
    Siblings,
    Translate,
    choices,
    ignored,
    lacking,
    off_or_lacking,
    renamed,
    value_read_as,
)
from roll.core.configs.agentic import TRAJ_ENV_MANAGER
from roll.core.configs.arguments import DataArguments, GeneratingArguments
from roll.core.configs.problems import did_you_mean

_CPU_GRADER = "reward workers grade on CPUs and load no model"
_CLASSIFIER = "roll.pipeline.base_worker.RewardWorker"
"""ROLL's name of the worker whose reward is the output of a sequence classifier."""
_REWARD_MODEL_WORKER = "roll.pipeline.rlvr.rewards.reward_model_worker.RewardModelWorker"
JUDGE_LIMIT_S = 120.0
"""ROLL gives its judges no limit, and the default here is meant for rules."""
_JUDGING = (
    "read as `rewards.<name>.judge`, with model_args, strategy_args, generating_args; of RewardWorker as "
    f"`rewards.<name>.reward_model`; timeout_s: {JUDGE_LIMIT_S:g}"
)
_WITH_DEVICES = "read as part of `rewards.<name>.judge`, or `rewards.<name>.reward_model`"


def _has_devices(value: object, block: Siblings) -> bool:
    return block.get("device_mapping") is not None


def _judging_model(devices: object, block: Siblings) -> dict[str, object]:
    """Joins the blocks of a role to the one block here."""
    model, strategy, sampling = (block.get(name) or {} for name in ("model_args", "strategy_args", "generating_args"))
    options = dict(strategy.get("strategy_config") or {})
    read = {"device_mapping": devices, "model_name_or_path": model.get("model_name_or_path")}
    if model.get("dtype"):
        read["dtype"] = model["dtype"]
    if "max_model_len" in options:
        read["max_length"] = options.pop("max_model_len")
    if "strategy_name" in strategy:
        read["strategy_args"] = {"strategy_name": strategy["strategy_name"], "strategy_config": options}
    if block.get("worker_cls") in (_CLASSIFIER, _REWARD_MODEL_WORKER):
        return {".reward_model": read, ".timeout_s": JUDGE_LIMIT_S}
    known = {field.name for field in fields(GeneratingArguments)} - {"num_return_sequences"}
    asked = {name: value for name, value in sampling.items() if name in known}
    return {".judge": read | {"generating_args": asked}, ".timeout_s": JUDGE_LIMIT_S}


def _method(value: object, block: Siblings) -> dict[str, object]:
    both = value in ("mean_std", "asym_clip")
    return {".norm_mean_type": "group" if both or value == "mean" else None, ".norm_std_type": "group" if both else None}


_TEMPLATES = choices(DataArguments, "template")


def _is_name_of_rolls(template: object) -> bool:
    """Returns True if it is a name, and neither one of ours nor one that is misspelt."""
    return isinstance(template, str) and not did_you_mean(template, map(str, _TEMPLATES), cutoff=0.8)


DATA = (
    *(
        rule
        for block in ("actor_train.data_args", "validation.data_args")
        for rule in (
            value_read_as(f"{block}.template", ("empty",), "chatml", "read as chatml: ROLL's wraps the prompt in it",
                          unless=(DataArguments, "template")),
            KeyRule(f"{block}.template", "alias", "read as native: the tokenizer's own chat template, not ROLL's of that name",
                 lambda v, b: {".template": "native"}, lambda v, b: v is None or _is_name_of_rolls(v), "any other name",
                 told=True),
            value_read_as(f"{block}.prompt", (None,), DROP, "the default: prompt, where a row has no messages"),
            value_read_as(f"{block}.messages", (None,), DROP, "the default: messages, where a row has it"),
            ignored(f"{block}.response", "ground_truth names the column of the reference answer"),
            ignored(f"{block}.dataset_dir", "file_name has the whole path"),
            ignored(f"{block}.dataset_type", "prompts are JSONL files"),
            ignored(f"{block}.interleave_probs", "domain_interleave_probs decides"),
            ignored(f"{block}.preprocessing_num_workers", "prompts are read once at the start, by the driver"),
            ignored(f"{block}.cache_path", "nothing is cached"),
            ignored(f"{block}.eval_file_name", DEAD_IN_ROLL),
            ignored(f"{block}.custom_data_kwargs_func", "positions of images are the model's own"),
        )
    ),
    value_read_as("actor_train.data_args.domain_interleave_probs", (None,), {}, "read as equal shares"),
    ignored("validation.data_args.domain_interleave_probs", "every validation prompt is evaluated"),
    renamed("global_template", "actor_train.data_args.template", "where that is not given"),
    *off_or_lacking("tag_to_template", (None, {}), "one template for all prompts: actor_train.data_args.template"),
)  # fmt: skip

REWARDS = (
    *(ignored(f"validation.{name}", why) for name, why in (
        ("eval_steps", "the top level's eval_steps decides, in ROLL, too"), ("model_args", "validation runs on actor_infer"),
        ("strategy_args", "validation runs on actor_infer"), ("device_mapping", "validation runs on actor_infer"),
        ("worker_cls", "validation runs on actor_infer"), ("infer_batch_size", "validation runs on actor_infer"),
        ("world_size", "validation runs on actor_infer"), ("training_args", "validation runs on actor_infer"),
    )),
    KeyRule("rewards", "alias", "no domain", lambda v, b: {".rewards": DROP}, lambda v, b: v is None, "null"),
    KeyRule("rewards.<name>.tag_included", "alias", "the domain's own name", lambda v, b: {".tag_included": DROP},
         lambda v, b: v is None, "null"),
    *(renamed(f"rewards.<name>.{name}", f".reward_args.{name}", "handed to the worker class") for name in (
        "code_url", "use_local", "judge_model_name", "judge_api_url", "judge_api_key", "format_pattern", "reward_type",
        "response_length_penalty_coef",
    )),
    KeyRule("rewards.<name>.judge_prompt", "alias", "read as `reward_args.judge_prompt`, a question of your own",
         lambda v, b: {".reward_args.judge_prompt": v}, lambda v, b: "{response}" in str(v), "with {response}", absent=True),
    KeyRule("rewards.<name>.judge_prompt", "alias", "read as the built-in question",
         when=lambda v, b: "{response}" not in str(v), values="a name", absent=True),
    ignored("rewards.<name>.judge_model_type", "a judge with a device_mapping is a model there, else a server"),
    KeyRule("rewards.<name>.device_mapping", "alias",
         _JUDGING, _judging_model, when=lambda v, b: v is not None, values="devices", absent=True),
    KeyRule("rewards.<name>.device_mapping", "without effect", "it changes nothing as it stands",
         when=lambda v, b: v is None, values="null", absent=True),
    *(KeyRule(f"rewards.<name>.{name}", "alias", _WITH_DEVICES, when=_has_devices, values="with device_mapping", absent=True)
      for name in ("strategy_args", "model_args", "generating_args")),
    KeyRule("rewards.<name>.world_size", "alias", "there is one worker for each engine of the judge",
         lambda v, b: {".world_size": DROP}, _has_devices, "with device_mapping"),
    KeyRule("rewards.<name>.strategy_args", "without effect", _CPU_GRADER, values="hf_infer without device_mapping",
         when=lambda v, b: b.get("device_mapping") is None),
    *(ignored(f"rewards.<name>.{name}", why) for name, why in (
        ("model_args", _CPU_GRADER), ("data_args", _CPU_GRADER), ("generating_args", _CPU_GRADER), ("training_args", _CPU_GRADER),
        ("infer_batch_size", "samples are graded one by one, as they come"), ("num_gpus_per_worker", _CPU_GRADER),
        ("system_envs", ENVIRONMENT), ("name", "domains are named by their key"),
        ("response_filter_config", DEAD_IN_ROLL), ("backend_timeout", "timeout_s limits the grading of a sample"),
    )),
    *off_or_lacking("rewards.<name>.reward_manager_config", (None, []), "joining several graders is not there; write one class"),
    KeyRule("rewards.<name>.worker_cls", "alias",
         "read as RewardModelWorker: its model reads the text by its own chat template, not the policy's tokens",
         lambda v, b: {".worker_cls": _REWARD_MODEL_WORKER}, lambda v, b: v == _CLASSIFIER, _CLASSIFIER),
    lacking("reward", "ROLL's RLVR starts nothing for it; a model that judges belongs to a domain: `rewards.<name>`"),
    lacking("reward_model", "an engine that no reward worker of ROLL's asks, only one's own, as a Ray actor; a model that judges "
            "belongs to a domain: `rewards.<name>.judge`, or `rewards.<name>.reward_model`"),
)  # fmt: skip

_PLACEHOLDERS = {
    "{env_instruction}": "{instructions}",
    "{current_observation}": "{observation}",
    "{current_step}": "{turn_idx}",
}


def _placeholders(template: str) -> str:
    for theirs, ours in _PLACEHOLDERS.items():
        template = template.replace(theirs, ours)
    return template


# By ROLL's codes, which are gym-sokoban's.
_SQUARES = ("wall", "floor", "target", "box_on_target", "box", "player", "player_on_target")


def _with_our_placeholders(name: str) -> Translate:
    return lambda value, block: {f".{name}": _placeholders(value)}


_OWN_AGENT = "an agent that asks by itself is a program: env_type: program (programs.md)"


_ROCK = "plays in sandboxes of ROCK, a service"
NOT_HERE = {
    "webshop": "needs the shop that ROLL brings as third_party/webshop-minimal, with its goods and its search engine",
    "rock_tb_native_env": f"{_ROCK}; an agent that works on repositories is a program (programs.md)",
    "sokoban_sandbox": f"{_ROCK}; the game is played here by env_type: sokoban, or sokoban_native_env",
    "openreward_env": "asks OpenReward's servers for tasks and rewards",
    "atropos_env": "runs environments of Atropos, a framework of its own, and their data sets",
}
"""Environments of ROLL that need something outside all packages, and its name."""
YOUR_OWN = "write the dotted path of your own class"

QUESTIONS = ("roll_math", "roll_qa")


def _has_limit(env_type: object, block: Siblings) -> bool:
    config = block.get("env_config")
    return env_type in QUESTIONS and isinstance(config, Mapping) and "max_steps" in config


def _proxy(manager: Any) -> bool:
    return str(manager).endswith(".ProxyEnvManager")


def _by_gem_runner(manager: Any, block: Siblings) -> bool:
    config = block.get("env_config")
    by_step = isinstance(config, Mapping) and config.get("trajectory_mode") == "step"
    return _proxy(manager) and str(block.get("agent_runner_cls")).endswith(".GEMRunner") and not by_step


_MANAGERS = {"train_env_manager": "actor_infer.generating_args", "val_env_manager": "validation.generating_args"}
"""Place here of each stage's sampling."""
AGENTIC = (
    *(
        rule
        for block, sampling in _MANAGERS.items()
        for rule in (
            value_read_as(f"{block}.max_env_num_per_worker", (0, -1), DROP, "the default"),
            value_read_as(f"{block}.num_groups_partition", (None,), [], "read as equal parts"),
            ignored(f"{block}.max_traj_per_env", "it follows from rollout_batch_size (val_batch_size)"),
            ignored(f"{block}.format_penalty", "env_config.format_penalty counts, in ROLL, too"),
            ignored(f"{block}.worker_cls", "the built-in worker plays episodes"),
            ignored(f"{block}.model_args", "episodes are played with actor_infer's model"),
            ignored(f"{block}.data_args", "episodes are played with the tokenizer's chat template"),
            KeyRule(f"{block}.generating_args", "without effect", "nothing is written in it", when=lambda v, b: v is None,
                    values="null", absent=True),
            renamed(f"{block}.generating_args", sampling, "where that is not given"),
            ignored(f"{block}.strategy_args", "episodes are played with actor_infer"),
            ignored(f"{block}.system_envs", ENVIRONMENT),
            ignored(f"{block}.world_size", "it follows from max_env_num_per_worker"),
            ignored(f"{block}.infer_batch_size", "episodes are played one by one"),
            ignored(f"{block}.name", "env managers are named by their key"),
            KeyRule(f"{block}.llm_proxy", "without effect", "actor_infer plays", when=lambda v, b: not v
                 or (isinstance(v, dict) and v.get("proxy_type", "policy") == "policy"), values="proxy_type: policy"),
            lacking(f"{block}.llm_proxy", "only the policy itself plays"),
        )
    ),
    *(KeyRule(f"custom_envs.<name>.{name}", "alias", f"placeholders are read as {', '.join(_PLACEHOLDERS.values())}",
           _with_our_placeholders(name),
           lambda v, b: isinstance(v, str) and v != _placeholders(v), f"with {', '.join(_PLACEHOLDERS)}")
      for name in ("agent_template", "agent_system_template")),
    KeyRule("custom_envs.<name>.env_manager_cls", "alias", "read as roll.pipeline.agentic.…: ROLL moved the package",
         lambda v, b: {".env_manager_cls": v.replace("roll.agentic.", "roll.pipeline.agentic.", 1)},
         lambda v, b: isinstance(v, str) and v.startswith("roll.agentic."), "roll.agentic.…"),
    KeyRule("custom_envs.<name>.env_config.grid_lookup", "alias", "Sokoban: read as `grid_vocabulary`, by the names of squares",
         lambda v, b: {".grid_vocabulary": {_SQUARES[code]: symbol for code, symbol in v.items()}},
         lambda v, b: isinstance(v, dict) and set(v) <= set(range(len(_SQUARES))), "by codes 0 to 6", absent=True),
    KeyRule("custom_envs.<name>.env_config.grid_vocab", "without effect", "Sokoban's rules name the squares themselves",
         when=lambda v, b: "grid_lookup" in b, values="with grid_lookup", absent=True),
    KeyRule("custom_envs.<name>.env_type", "alias", "read as env_type: gem with env_config.env_id",
         lambda v, b: {".env_type": "gem", ".env_config.env_id": v}, lambda v, b: isinstance(v, str) and ":" in v, "GEM's names"),
    KeyRule("custom_envs.<name>.env_type", "alias", "without env_config.max_steps, which ROLL does not read: a question takes "
         "one answer", lambda v, b: {".env_type": v, ".env_config.max_steps": DROP}, _has_limit,
         f"{', '.join(QUESTIONS)} with env_config.max_steps"),
    ignored("custom_envs.<name>.use_thread_lock", "`execution` says where steps run; environments share no lock"),
    KeyRule("custom_envs.<name>.env_manager_cls", "alias", "read as TrajEnvManager: as GEMRunner it plays the environment by "
         "texts and keeps the conversation as it was sampled, and no server is between them",
         lambda v, b: {".env_manager_cls": TRAJ_ENV_MANAGER, ".agent_runner_cls": DROP}, _by_gem_runner,
         "ProxyEnvManager with GEMRunner"),
    KeyRule("custom_envs.<name>.env_manager_cls", "lacking", _OWN_AGENT, when=lambda v, b: _proxy(v) and not _by_gem_runner(v, b),
         values="ProxyEnvManager with another agent_runner_cls, or samples by step"),
    KeyRule("custom_envs.<name>.agent_runner_cls", "without effect", "its env manager has no agent of its own",
         when=lambda v, b: v is None or _by_gem_runner(b.get("env_manager_cls"), b) or not _proxy(b.get("env_manager_cls")),
         values="null, GEMRunner, or without ProxyEnvManager", absent=True),
    KeyRule("custom_envs.<name>.agent_runner_cls", "lacking", _OWN_AGENT, values="else", absent=True,
         when=lambda v, b: v is not None and _proxy(b.get("env_manager_cls")) and not _by_gem_runner(b["env_manager_cls"], b)),
    KeyRule("reward_normalization.method", "alias", "identity: no norm_mean_type and norm_std_type; mean: norm_mean_type: group; "
         "mean_std: both group; asym_clip: as mean_std, ROLL clips nothing either", _method,
         lambda v, b: v in ("identity", "mean", "mean_std", "asym_clip", None), "identity, mean, mean_std, asym_clip"),
    lacking("reward_normalization.method", "is no method; use norm_mean_type and norm_std_type"),
    ignored("reward_normalization.global_scale_factor", DEAD_IN_ROLL),
    ignored("reward_normalization.global_shift_value", DEAD_IN_ROLL),
    ignored("env_monitor", "a step or reset that takes longer than its time limit has failed: step_timeout_s, reset_timeout_s"),
    ignored("batch_adjust_mode", "every sample counts once: a step is cut into near-equal optimiser batches"),
    *off_or_lacking("ratio_type", ("token", None), "ratios by segment are not there; use actor_train.pg_variant: gspo"),
    *off_or_lacking("exp_mode", ("train", None), "is not there"),
    ignored("partial_gpu_mode", "engines keep their devices while others train"),
    ignored("parse_tool_call_parameter_to_dict", "chat templates are always shown the arguments of calls as mappings"),
    ignored("skip_mock_system_prompt", "no system prompt is made up: agent_system_template alone decides"),
)  # fmt: skip

RULES = (*DATA, *REWARDS, *AGENTIC)
