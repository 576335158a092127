"""Rules that join several keys. Each problem names the key, the value, the rule with its arithmetic, and a fix."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator
from dataclasses import fields
from typing import get_args

from roll.configs.derived import lengths, optimizer_batch_size
from roll.configs.fields import all_range_problems
from roll.configs.pg_variants import NEED_PROXIMAL, PG_VARIANTS, WITH_RATIO
from roll.configs.ppo import AdvantageEstimator
from roll.configs.problems import MISSING_VALUE, Problem
from roll.configs.rlvr import RLVRConfig
from roll.configs.worker import WorkerConfig

_STRATEGY_OF_ROLE = {"actor_train": "fsdp2_train", "actor_infer": "hf_infer", "reference": "fsdp2_infer"}
_GROUP_RELATIVE = ("grpo", "rloo", "dr_grpo", "reinforce_plus_plus_baseline", "opo", "gpg")
_TURNS = "compares the turns of multi-turn episodes; an RLVR response is one turn"
_NOT_IN_RLVR = {
    "gae": "needs a critic, and no critic is trained",
    "remax": "needs the reward of a greedy response to each prompt, and none is generated",
    "step_reinforce": _TURNS,
    "agentic_reinforce": _TURNS,
    "gigpo": _TURNS,
}
_DOTTED_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


def check_config(config: RLVRConfig, device_count: int) -> list[Problem]:
    """Everything that would go wrong later and can be known now. `device_count`: devices of the whole cluster."""
    problems = list(all_range_problems(config)) + list(_devices(config, device_count))
    for rule in (
        _run,
        _lengths,
        _batch,
        _asynchrony,
        _advantages,
        _policy_loss,
        _correction,
        _kl,
        _roles,
        _data,
        _domains,
        _sampling,
    ):
        problems += rule(config)
    return problems


def _workers(config: RLVRConfig) -> dict[str, WorkerConfig]:
    roles = {"actor_train": config.actor_train, "actor_infer": config.actor_infer, "reference": config.reference}
    return {name: role for name, role in roles.items() if role is not None}


def _run(config: RLVRConfig) -> Iterator[Problem]:
    if config.exp_name in ("", ".", "..") or "/" in config.exp_name:
        yield Problem("exp_name", config.exp_name, "must be a plain folder name", 'no "/", not empty')
    if config.resume_from_checkpoint == "":
        yield Problem("resume_from_checkpoint", "", "is empty", "write true, false, auto or a path")
    if isinstance(config.track_with, list) and "none" in config.track_with and len(config.track_with) > 1:
        yield Problem("track_with", config.track_with, "has none beside other trackers", "remove none")
    if config.deterministic and config.async_generation_ratio > 0:
        yield Problem(
            "deterministic",
            True,
            f"needs async_generation_ratio 0, not {config.async_generation_ratio:g}: timing decides otherwise",
            "deterministic: false, or async_generation_ratio: 0",
        )
    if config.deterministic and config.is_use_additional_prompts:
        yield Problem("deterministic", True, "excludes is_use_additional_prompts: timing decides which prompts are used")


def _lengths(config: RLVRConfig) -> Iterator[Problem]:
    try:
        _, response_length, sequence_length = lengths(config)
    except ValueError as error:
        key = "response_length" if config.sequence_length is None else "sequence_length"
        value = MISSING_VALUE if config.sequence_length is None else config.sequence_length
        yield Problem(key, value, str(error), "give prompt_length and one of response_length, sequence_length")
        return
    for name, role in (("actor_infer", config.actor_infer), ("validation", config.validation)):
        longest = role.generating_args.max_new_tokens if role is not None else None
        if longest is not None and longest > response_length:
            yield Problem(
                f"{name}.generating_args.max_new_tokens", longest, f"{longest} > response_length {response_length}", "remove it"
            )
    cache = config.actor_infer.strategy_args.strategy_config.get("kv_cache_tokens")
    if isinstance(cache, int) and cache < sequence_length:
        yield Problem(
            "actor_infer.strategy_args.strategy_config.kv_cache_tokens",
            cache,
            f"{cache} < sequence_length {sequence_length}: not one request fits",
            f"at least {sequence_length}",
        )


def _asynchrony(config: RLVRConfig) -> Iterator[Problem]:
    depth, ratio = config.async_pipeline_depth, config.async_generation_ratio
    if depth != "auto" and depth > ratio:
        yield Problem(
            "async_pipeline_depth", depth, f"{depth:g} > async_generation_ratio {ratio:g}", f"auto, or at most {ratio:g}"
        )
    if config.staleness_policy == "drop" and ratio == 0:
        yield Problem("staleness_policy", "drop", "has nothing to drop at async_generation_ratio 0", "use wait")


def _advantages(config: RLVRConfig) -> Iterator[Problem]:
    size = config.num_return_sequences_in_group
    alone = "compares the responses of a group, but num_return_sequences_in_group is 1"
    larger = "set num_return_sequences_in_group to 2 or more"
    estimator, known = config.adv_estimator, [name for name in get_args(AdvantageEstimator) if name not in _NOT_IN_RLVR]
    if estimator in _NOT_IN_RLVR:
        yield Problem("adv_estimator", estimator, _NOT_IN_RLVR[estimator], "e.g. grpo or rloo")
    elif estimator not in known and not _DOTTED_PATH.fullmatch(estimator):
        nearest = difflib.get_close_matches(estimator, known, n=1)
        fix = f"did you mean {nearest[0]}?" if nearest else f"one of {', '.join(known)}, or the dotted path of your own function"
        yield Problem("adv_estimator", estimator, "is not an advantage estimator", fix)
    if size == 1 and config.adv_estimator in _GROUP_RELATIVE:
        yield Problem("adv_estimator", config.adv_estimator, alone, f"{larger}, or use adv_estimator: reinforce")
    for key, value in (("norm_mean_type", config.norm_mean_type), ("norm_std_type", config.norm_std_type)):
        if value is not None and config.adv_estimator in _GROUP_RELATIVE:
            message = f"{config.adv_estimator} already normalises within the group"
            yield Problem(key, value, message, f"remove {key}, or use adv_estimator: reinforce")
        elif value == "group" and size == 1:
            yield Problem(key, value, alone, f"{larger}, or use batch")
    low, high = config.difficulty_low_threshold, config.difficulty_high_threshold
    if low >= high:
        yield Problem("difficulty_low_threshold", low, f"{low:g} >= difficulty_high_threshold {high:g}: no group passes")
    if config.difficulty_mask and size == 1:
        yield Problem("difficulty_mask", True, alone, larger)


def _policy_loss(config: RLVRConfig) -> Iterator[Problem]:
    knobs, variant, key = config.actor_train, config.actor_train.pg_variant, "actor_train.pg_variant"
    if variant not in PG_VARIANTS and not _DOTTED_PATH.fullmatch(variant):
        nearest = difflib.get_close_matches(variant, PG_VARIANTS, n=1)
        known = f"one of {', '.join(PG_VARIANTS)}, or the dotted path of your own function"
        yield Problem(key, variant, "is not a policy loss", f"did you mean {nearest[0]}?" if nearest else known)
    if knobs.tis_lower_bound >= knobs.tis_upper_bound:
        message = f"{knobs.tis_lower_bound:g} >= tis_upper_bound {knobs.tis_upper_bound:g}"
        yield Problem("actor_train.tis_lower_bound", knobs.tis_lower_bound, message)
    if config.old_logprobs == "bypass":
        if config.enable_old_logprobs_recompute:
            yield Problem("old_logprobs", "bypass", "enable_old_logprobs_recompute is true", "keep one of them")
        if variant in NEED_PROXIMAL:
            message = f"pg_variant {variant} needs the log-probs of the step's first weights"
            yield Problem("old_logprobs", "bypass", message, "old_logprobs: auto")
        elif config.train_infer_correction.is_weight.enabled and variant in WITH_RATIO:
            message = f"pg_variant {variant} takes its ratio to the sampler already, is_weight would correct for it twice"
            yield Problem("old_logprobs", "bypass", message, "old_logprobs: auto, or is_weight.enabled: false")


def _correction(config: RLVRConfig) -> Iterator[Problem]:
    weight, key = config.train_infer_correction.is_weight, "train_infer_correction"
    if weight.enabled and config.actor_train.pg_variant == "m2po":
        message = "m2po takes its ratio to the sampler itself, is_weight would correct for it twice"
        yield Problem(f"{key}.is_weight.enabled", True, message, "false, or another pg_variant")
    if weight.mode == "mask" and weight.lower_bound >= weight.upper_bound:
        message = f"{weight.lower_bound:g} >= upper_bound {weight.upper_bound:g}: every token is masked"
        yield Problem(f"{key}.is_weight.lower_bound", weight.lower_bound, message)
    for index, rule in enumerate(config.train_infer_correction.filters):
        name = f"{key}.filters[{index}]"
        if rule.enabled and not (rule.ratio_enabled or rule.diff_enabled):
            yield Problem(f"{name}.enabled", True, "filters by nothing", "ratio_enabled: true or diff_enabled: true")
        for low, high in (("ratio_low", "ratio_high"), ("diff_low", "diff_high")):
            if getattr(rule, low) >= getattr(rule, high):
                message = f"{getattr(rule, low):g} >= {high} {getattr(rule, high):g}: every token is left out"
                yield Problem(f"{name}.{low}", getattr(rule, low), message)


def _kl(config: RLVRConfig) -> Iterator[Problem]:
    if config.use_kl_loss and config.kl_loss_coef == 0:
        yield Problem("kl_loss_coef", 0.0, "use_kl_loss is true, but the weight is 0", "e.g. 0.001")
    if config.kl_loss_coef > 0 and not config.use_kl_loss:
        yield Problem("kl_loss_coef", config.kl_loss_coef, "has no effect: use_kl_loss is false", "use_kl_loss: true")
    if config.add_token_level_kl and config.init_kl_coef == 0:
        yield Problem("init_kl_coef", 0.0, "add_token_level_kl is true, but the weight is 0 and stays so", "e.g. 0.01")
    if config.target_kl is not None and not config.add_token_level_kl:
        yield Problem("target_kl", config.target_kl, "has no effect: add_token_level_kl is false", "add_token_level_kl: true")
    if config.uses_reference and config.reference is None:
        user = "use_kl_loss" if config.use_kl_loss else "add_token_level_kl"
        yield Problem("reference", MISSING_VALUE, f"{user} needs it", "reference: {device_mapping: ...}")


def _roles(config: RLVRConfig) -> Iterator[Problem]:
    for name, role in _workers(config).items():
        wanted, strategy = _STRATEGY_OF_ROLE[name], role.strategy_args.strategy_name
        if strategy != wanted:
            yield Problem(f"{name}.strategy_args.strategy_name", strategy, f"does not fit {name}", f"use {wanted}")
        if not (role.model_args.model_name_or_path or config.pretrain):
            yield Problem(f"{name}.model_args.model_name_or_path", MISSING_VALUE, "names no model", "set pretrain")
        if role.worker_cls is not None and not _DOTTED_PATH.fullmatch(role.worker_cls):
            yield Problem(f"{name}.worker_cls", role.worker_cls, "is not a dotted path", "my_package.my_module.MyWorker")


def _data(config: RLVRConfig) -> Iterator[Problem]:
    for name, role in (("actor_train", config.actor_train), ("validation", config.validation)):
        if role is not None and (not role.data_args.files or "" in role.data_args.files):
            yield Problem(f"{name}.data_args.file_name", MISSING_VALUE, "names no prompt file", "a JSONL file or a list of them")


def _domains(config: RLVRConfig) -> Iterator[Problem]:
    if not config.rewards:
        yield Problem("rewards", MISSING_VALUE, "has no domain", "rewards: {<domain>: {worker_cls: ...}}")
    owner: dict[str, str] = {}
    for domain, reward in config.rewards.items():
        key = f"rewards.{domain}"
        if not _DOTTED_PATH.fullmatch(reward.worker_cls):
            yield Problem(f"{key}.worker_cls", reward.worker_cls, "is not a dotted path", "my_package.my_module.MyRewardWorker")
        for tag in reward.tags(domain):
            if tag in owner:
                yield Problem(f"{key}.tag_included", tag, f"the tag belongs to rewards.{owner[tag]} already", "name it once")
            owner.setdefault(tag, domain)
        yield from _query_filter(config, key, domain)
    shares = config.actor_train.data_args.domain_interleave_probs
    key = "actor_train.data_args.domain_interleave_probs"
    for domain in shares:
        if domain not in config.rewards:
            known = ", ".join(config.rewards) or "none"
            yield Problem(f"{key}.{domain}", shares[domain], f"there is no rewards.{domain} (domains: {known})")
    for domain in config.rewards:
        if shares and domain not in shares:
            yield Problem(f"{key}.{domain}", MISSING_VALUE, f"rewards.{domain} would never be sampled", "give its share")


def _query_filter(config: RLVRConfig, key: str, domain: str) -> Iterator[Problem]:
    chosen = config.rewards[domain].query_filter_config
    given = chosen.filter_args
    read = {"no_filter": (), "mean_filter": ("threshold_down", "threshold_up"), "std_filter": ("std_threshold",)}[chosen.type]
    values = {item.name: getattr(given, item.name) for item in fields(given)}
    for name, value in values.items():
        if value is not None and name not in read:
            yield Problem(f"{key}.query_filter_config.filter_args.{name}", value, f"{chosen.type} does not read it", "remove it")
    if read and all(values[name] is None for name in read):
        yield Problem(f"{key}.query_filter_config.filter_args", MISSING_VALUE, f"{chosen.type} needs {' or '.join(read)}")
    low, high = given.threshold_down, given.threshold_up
    if low is not None and high is not None and low >= high:
        name = f"{key}.query_filter_config.filter_args.threshold_down"
        yield Problem(name, low, f"{low:g} >= threshold_up {high:g}: every group is dropped")
    if chosen.type == "std_filter" and config.num_return_sequences_in_group == 1:
        message = "needs groups, but num_return_sequences_in_group is 1: every group is dropped"
        yield Problem(f"{key}.query_filter_config.type", chosen.type, message)


def _sampling(config: RLVRConfig) -> Iterator[Problem]:
    generating, key = config.actor_infer.generating_args, "actor_infer.generating_args"
    size, asked = config.num_return_sequences_in_group, generating.num_return_sequences
    if generating.temperature == 0:
        yield Problem(f"{key}.temperature", 0.0, "greedy responses of a group are all equal", "a temperature > 0, e.g. 1.0")
    if asked is not None and asked != size:
        yield Problem(f"{key}.num_return_sequences", asked, f"{asked} != num_return_sequences_in_group {size}", "remove it")
    training = config.actor_train.training_args
    if training.warmup_ratio > 0 and training.warmup_steps > 0:
        key = "actor_train.training_args.warmup_ratio"
        yield Problem(key, training.warmup_ratio, f"warmup_steps {training.warmup_steps} is given too", "keep one of them")


def _devices(config: RLVRConfig, device_count: int) -> Iterator[Problem]:
    for name, role in _workers(config).items():
        key = f"{name}.device_mapping"
        if role.device_mapping is None:
            yield Problem(key, MISSING_VALUE, f"{name} needs devices", 'e.g. "0"')
            continue
        try:
            missing = [device for device in role.devices if device >= device_count]
        except ValueError as error:
            yield Problem(key, role.device_mapping, str(error))
            continue
        if missing:
            shown = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
            message = f"no device {shown}: there are {device_count}, numbered from 0"
            yield Problem(key, role.device_mapping, message, "name existing devices, or set num_gpus_per_node on CPUs")


def _batch(config: RLVRConfig) -> Iterator[Problem]:
    try:
        batch = optimizer_batch_size(config)
    except ValueError:  # a device_mapping that cannot be read: reported as such
        return
    training, ranks = config.actor_train.training_args, config.actor_train.world_size
    prompts, size = config.rollout_batch_size, config.num_return_sequences_in_group
    samples = prompts * size
    if batch > 0 and samples % batch:
        message = (
            f"{prompts} prompts x {size} responses = {samples} samples, not a multiple of the optimiser batch: "
            f"per_device_train_batch_size {training.per_device_train_batch_size} x gradient_accumulation_steps "
            f"{training.gradient_accumulation_steps} x {ranks} devices = {batch}"
        )
        yield Problem("rollout_batch_size", prompts, message, _batch_fix(prompts, size, batch))


def _batch_fix(prompts: int, size: int, batch: int) -> str:
    """The nearest numbers of prompts whose samples divide into whole optimiser batches."""
    unit = batch // math.gcd(batch, size)
    below = prompts // unit * unit
    return f"rollout_batch_size {f'{below} or ' if below else ''}{below + unit}"
