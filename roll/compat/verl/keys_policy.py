"""Rules for verl's algorithm, and for its actor and model: estimator, KL, loss, correction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roll.compat.framework import File, at, is_count, is_one_of, is_text
from roll.compat.roll.rule import MEMORY, SPEED, KeyRule, ignored, lacking, off_or_lacking, renamed
from roll.compat.verl.facts import ACTOR, DOMAIN, MODEL, loss_mode, with_critic
from roll.compat.verl.keys_training import batches, of_model, optimiser, strategy, switched, where

ESTIMATORS = {
    "gae": "gae", "grpo": "grpo", "grpo_vectorized": "grpo", "reinforce_plus_plus": "reinforce_plus_plus",
    "reinforce_plus_plus_baseline": "reinforce_plus_plus_baseline", "rloo": "rloo", "rloo_vectorized": "rloo", "opo": "opo",
    "remax": "remax", "gpg": "gpg",
}  # fmt: skip
LOSSES = {
    "vanilla": "ppo", "gspo": "gspo", "sapo": "sapo", "gpg": "gpg", "cispo": "cispo", "geo_mean": "gmpo", "dppo_tv": "dppo_tv",
    "dppo_kl": "dppo_kl",
}  # fmt: skip
CLIPS = {
    "gspo": "gspo_clip",
    "geo_mean": "gmpo_clip",
    "cispo": "cispo_epsilon",
    "dppo_tv": "dppo_tv_delta",
    "dppo_kl": "dppo_kl_delta",
}
BY_SEQUENCE = ("gspo", "sapo", "geo_mean")
"""Losses that are a mean over responses of means over tokens, whatever loss_agg_mode says."""
PENALTIES = {"kl": "k1", "k1": "k1", "abs": "abs", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}
_AGGREGATIONS = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
_CORRECTION = "algorithm.rollout_correction"


def _estimator(value: str, file: File) -> Mapping[str, Any]:
    name = ESTIMATORS[value]
    if name == "grpo" and at(file, "algorithm.norm_adv_by_std_in_grpo", True) is False:
        name = "dr_grpo"
    return {"adv_estimator": name} | ({"whiten_advantages": True} if name == "gae" else {})


def _is_estimator(value: object, file: File) -> bool:
    return isinstance(value, str) and value in ESTIMATORS


def _bounds(value: object) -> tuple[float, float] | None:
    """Returns the ends of "low_high"; of a number its inverse and itself."""
    parts = str(value).split("_")
    try:
        ends = [float(part) for part in parts]
    except ValueError:
        return None
    return (1 / ends[0], ends[0]) if len(ends) == 1 and ends[0] > 0 else (ends[0], ends[1]) if len(ends) == 2 else None


def _weight(value: str, file: File) -> Mapping[str, Any]:
    """A number truncates, two ends mask."""
    threshold, block = at(file, f"{_CORRECTION}.rollout_is_threshold", 2.0), "train_infer_correction.is_weight"
    ends = _bounds(threshold)
    found: dict[str, Any] = {f"{block}.enabled": True, f"{block}.weight_type": value}
    if isinstance(threshold, str) and "_" in threshold and ends is not None:
        return found | {f"{block}.mode": "mask", f"{block}.lower_bound": ends[0], f"{block}.upper_bound": ends[1]}
    return found | {f"{block}.mode": "truncate", f"{block}.upper_bound": float(threshold)}


_LEVELS = {"token_k1": "token", "seq_sum_k1": "sequence", "seq_mean_k1": "geometric"}


def _bypasses(file: File) -> bool:
    return at(file, f"{_CORRECTION}.bypass_mode", False) is True


def _clips_to_sampler(value: object, file: File) -> bool:
    return _bypasses(file) and at(file, f"{_CORRECTION}.loss_type", "ppo_clip") == "ppo_clip"


def _weighs(value: object, file: File) -> bool:
    return (
        value in ("token", "sequence")
        and not _bypasses(file)
        and _bounds(at(file, f"{_CORRECTION}.rollout_is_threshold", 2.0)) is not None
    )


def _rejects(value: object, file: File) -> bool:
    return isinstance(value, str) and value in _LEVELS and _bounds(at(file, f"{_CORRECTION}.rollout_rs_threshold")) is not None


def _filter(value: str, file: File) -> Mapping[str, Any]:
    low, high = _bounds(at(file, f"{_CORRECTION}.rollout_rs_threshold")) or (0, 0)
    one = {"enabled": True, "agg_type": _LEVELS[value], "ratio_low": low, "ratio_high": high}
    return {"train_infer_correction.filters": [one]}


def _old(value: bool, file: File) -> Mapping[str, Any]:
    if value:
        return {"old_logprobs": "bypass"}
    return {"old_logprobs": "auto" if loss_mode(file) == "gpg" else "recompute"}


_FILTER = f"rewards.{DOMAIN}.query_filter_config"

ALGORITHM = (
    KeyRule("algorithm.adv_estimator", "alias", "read as adv_estimator; gae, whose advantages are whitened, has a critic; grpo "
            "without norm_adv_by_std_in_grpo is dr_grpo", _estimator, _is_estimator, ", ".join(ESTIMATORS)),
    lacking("algorithm.adv_estimator", f"there are {', '.join(dict.fromkeys(ESTIMATORS.values()))}, or a function of your own "
            "by its dotted path: write adv_estimator, and algorithm.adv_estimator: grpo"),
    ignored("algorithm.norm_adv_by_std_in_grpo", "part of adv_estimator: without it grpo is dr_grpo"),
    renamed("algorithm.gamma", "gamma"),
    KeyRule("algorithm.lam", "alias", "read as lambd", lambda v, f: {"lambd": v}, lambda v, f: with_critic(f), "with gae"),
    ignored("algorithm.lam", "only gae reads it"),
    KeyRule("algorithm.use_kl_in_reward", "alias", "read as add_token_level_kl", lambda v, f: {
        "add_token_level_kl": v and at(f, "algorithm.kl_ctrl.kl_coef", 0.001) != 0}, is_one_of(True, False), "true, false"),
    *where(lambda f: bool(at(f, "algorithm.use_kl_in_reward")), "use_kl_in_reward is off", "without use_kl_in_reward",
           KeyRule("algorithm.kl_penalty", "alias", "read as kl_penalty: kl is k1, mse k2, low_var_kl k3", lambda v, f: {
               "kl_penalty": PENALTIES[v]}, lambda v, f: isinstance(v, str) and v in PENALTIES, ", ".join(PENALTIES)),
           lacking("algorithm.kl_penalty", f"one of {', '.join(PENALTIES)}"),
           renamed("algorithm.kl_ctrl.kl_coef", "init_kl_coef"),
           KeyRule("algorithm.kl_ctrl.type", "alias", "read as target_kl and kl_horizon", lambda v, f: {
               "target_kl": at(f, "algorithm.kl_ctrl.target_kl", 0.1), "kl_horizon": at(f, "algorithm.kl_ctrl.horizon", 10000)},
               is_one_of("adaptive"), "adaptive"),
           *off_or_lacking("algorithm.kl_ctrl.type", ("fixed",), "fixed or adaptive"),
           ignored("algorithm.kl_ctrl.target_kl", "part of type: adaptive"),
           ignored("algorithm.kl_ctrl.horizon", "part of type: adaptive")),
    KeyRule("algorithm.filter_groups.enable", "alias", "read as query_filter_config: std_filter, std_threshold 0: groups of "
            "equal rewards are replaced; shaping counts, as with metric: seq_final_reward", lambda v, f: {
                f"{_FILTER}.type": "std_filter", f"{_FILTER}.filter_args.std_threshold": 0.0}, is_one_of(True), "true"),
    ignored("algorithm.filter_groups.enable", "groups are not filtered"),
    ignored("algorithm.filter_groups.metric", "groups are filtered by their rewards"),
    *where(lambda f: bool(at(f, "algorithm.filter_groups.enable")), "filter_groups is off", "without filter_groups",
           renamed("algorithm.filter_groups.max_num_gen_batches", "max_dropped_batches", "0: any number")),
    ignored("algorithm.filter_groups.max_inflight_gen_batches", "groups are replaced one by one"),
    *off_or_lacking("algorithm.use_pf_ppo", (False,), "samples are not weighted by their reward: write raft_best, with "
            "adv_estimator: raft"),
    ignored("algorithm.pf_ppo", "part of use_pf_ppo"),
    KeyRule(f"{_CORRECTION}.bypass_mode", "alias", "true: read as old_logprobs: bypass. false: read as old_logprobs: "
            "recompute; where rollout_is is null the loss of a token is weighted for the distance to the sampler, by at most "
            "5, in verl not",
            _old, is_one_of(True, False), "true, false"),
    KeyRule(f"{_CORRECTION}.rollout_is", "without effect", "the ratio is to the sampler itself", when=_clips_to_sampler,
            values="with bypass_mode"),
    KeyRule(f"{_CORRECTION}.rollout_is", "alias", "read as train_infer_correction.is_weight: a threshold truncates, two of "
            "them (low_high) mask", _weight, _weighs, "token, sequence"),
    lacking(f"{_CORRECTION}.rollout_is", "token or sequence, with a threshold that is a number or low_high"),
    ignored(f"{_CORRECTION}.rollout_is_threshold", "part of rollout_is"),
    KeyRule(f"{_CORRECTION}.rollout_rs", "alias", "read as train_infer_correction.filters, ratios within [low, high]; verl "
            "keeps those within [1/high, 1/low]; tokens that are left out still count in the loss's normaliser", _filter,
            _rejects, ", ".join(_LEVELS), told=True),
    lacking(f"{_CORRECTION}.rollout_rs", f"one of {', '.join(_LEVELS)}, with a threshold: write train_infer_correction.filters "
            "for others"),
    ignored(f"{_CORRECTION}.rollout_rs_threshold", "part of rollout_rs"),
    renamed(f"{_CORRECTION}.rollout_token_veto_threshold", "train_infer_correction.veto_threshold"),
    *off_or_lacking(f"{_CORRECTION}.rollout_is_batch_normalize", (False,), "weights are not divided by their mean: write false"),
    *off_or_lacking(f"{_CORRECTION}.loss_type", ("ppo_clip",), "write actor_train.pg_variant: tis, whose weight is the ratio "
            "to the sampler, with tis_upper_bound, and loss_type: ppo_clip"),
    *(lacking(f"algorithm.{name}", "an older verl's: write algorithm.rollout_correction") for name in (
        "rollout_is", "rollout_is_threshold", "rollout_is_level", "rollout_is_mode")),
    lacking("algorithm.gdpo_reward_keys", "one reward per response: let the function sum them"),
    lacking("algorithm.gdpo_reward_weights", "one reward per response: let the function sum them"),
)  # fmt: skip


def _clip(value: object, file: File) -> Mapping[str, Any]:
    low, high = (at(file, f"{ACTOR}.clip_ratio_{end}", 0.2) for end in ("low", "high"))
    mode = loss_mode(file)
    if mode == "vanilla":
        return {"pg_clip": [low, high]}
    return {f"actor_train.{CLIPS[mode]}_low": low, f"actor_train.{CLIPS[mode]}_high": high}


def _reads_clip(value: object, file: File) -> bool:
    return value is not None and loss_mode(file) in ("vanilla", *CLIPS)


def _in_force(value: object, file: File) -> bool:
    ends = [at(file, f"{ACTOR}.clip_ratio_{end}", 0.2) for end in ("low", "high")]
    return value in ends or ends != [0.2, 0.2]


def _dual(value: Any, file: File) -> Mapping[str, Any]:
    return {"dual_clip_c" if loss_mode(file) == "vanilla" else "actor_train.dppo_ratio_cap": value}


def _kl_loss(value: str, file: File) -> Mapping[str, Any]:
    name, plus = value.removesuffix("+"), "+" if value.endswith("+") else ""
    clamp = {"kl_loss_clamp": 10.0} if PENALTIES[name] == "k3" else {}
    return {"kl_loss_type": f"{PENALTIES[name]}{plus}"} | clamp


ACTOR_RULES = (
    KeyRule("model_engine", "without effect", "actor.strategy says which", when=is_one_of("dp"), values="dp"),
    KeyRule("model_engine", "alias", "read as megatron_train, and megatron_infer of the reference", lambda v, f: {
        "actor_train.strategy_args.strategy_name": "megatron_train"}, is_one_of("megatron"), "megatron"),
    lacking("model_engine", "dp or megatron"),
    *optimiser(ACTOR, "actor_train"), *batches(ACTOR, "actor_train"), *strategy(ACTOR, "actor_train", "train"),
    renamed(f"{ACTOR}.grad_clip", "max_grad_norm"),
    KeyRule(f"{ACTOR}.optim.clip_grad", "without effect", "grad_clip counts", when=lambda v, f: at(f,
        f"{ACTOR}.grad_clip") is not None,
            values="with grad_clip"),
    renamed(f"{ACTOR}.optim.clip_grad", "max_grad_norm"),
    renamed(f"{ACTOR}.ppo_epochs", "ppo_epochs"),
    KeyRule(f"{ACTOR}.policy_loss.loss_mode", "alias", "read as actor_train.pg_variant: vanilla is ppo, geo_mean gmpo", lambda v,
        f: {
        "actor_train.pg_variant": LOSSES[v]}, lambda v, f: isinstance(v, str) and v in LOSSES, ", ".join(LOSSES)),
    lacking(f"{ACTOR}.policy_loss.loss_mode", f"there are {', '.join(LOSSES)}, others by actor_train.pg_variant, a function of "
            "your own by its dotted path, too, beside loss_mode: vanilla"),
    KeyRule(f"{ACTOR}.clip_ratio", "without effect", "clip_ratio_low and clip_ratio_high count", when=_in_force,
            values="as clip_ratio_low or _high"),
    lacking(f"{ACTOR}.clip_ratio", "verl itself reads clip_ratio_low and clip_ratio_high, 0.2 where they are left out: write "
            "those"),
    *(rule for end in ("low", "high") for rule in (
        KeyRule(f"{ACTOR}.clip_ratio_{end}", "alias", "read as pg_clip: [low, high], or the clips of pg_variant", _clip,
            _reads_clip,
                "losses that clip"),
        ignored(f"{ACTOR}.clip_ratio_{end}", "the loss does not clip"))),
    KeyRule(f"{ACTOR}.clip_ratio_c", "alias", "read as dual_clip_c; as dppo_ratio_cap with dppo_tv and dppo_kl", _dual,
            lambda v, f: loss_mode(f) in ("vanilla", "dppo_tv", "dppo_kl"), "vanilla, dppo_tv, dppo_kl"),
    ignored(f"{ACTOR}.clip_ratio_c", "the loss has no such bound"),
    KeyRule(f"{ACTOR}.loss_agg_mode", "alias", "read as loss_agg_mode: seq-mean-token-mean, which gspo, sapo and geo_mean "
            "always are",
            lambda v, f: {"loss_agg_mode": "seq-mean-token-mean"}, lambda v, f: loss_mode(f) in BY_SEQUENCE,
                ", ".join(BY_SEQUENCE)),
    KeyRule(f"{ACTOR}.loss_agg_mode", "alias", "read as loss_agg_mode", lambda v, f: {"loss_agg_mode": v},
        is_one_of(*_AGGREGATIONS),
            ", ".join(_AGGREGATIONS)),
    lacking(f"{ACTOR}.loss_agg_mode", f"one of {', '.join(_AGGREGATIONS)}"),
    lacking(f"{ACTOR}.loss_scale_factor", "seq-mean-token-sum-norm divides by the longest response: remove it"),
    *where(lambda f: loss_mode(f) == "sapo", "only sapo reads it", "other losses", *(
        renamed(f"{ACTOR}.{inner}{end}", f"actor_train.sapo_{end}") for end in ("tau_pos", "tau_neg") for inner in (
            "", "policy_loss."))),
    *(ignored(f"{ACTOR}.policy_loss.{name}", "its loss is not there, and not chosen") for name in (
        "clip_cov_ratio", "clip_cov_lb", "clip_cov_ub", "kl_cov_ratio", "ppo_kl_coef", "dro_beta")),
    renamed(f"{ACTOR}.entropy_coeff", "entropy_loss_coef"),
    renamed(f"{ACTOR}.use_kl_loss", "use_kl_loss"),
    *where(lambda f: bool(at(f, f"{ACTOR}.use_kl_loss")), "use_kl_loss is off", "without use_kl_loss",
           renamed(f"{ACTOR}.kl_loss_coef", "kl_loss_coef"),
           KeyRule(f"{ACTOR}.kl_loss_type", "alias", "read as kl_loss_type: kl is k1, mse k2, low_var_kl k3 with kl_loss_clamp "
                   "10; with + the gradient of k2", _kl_loss, lambda v, f: isinstance(v,
                   str) and v.removesuffix("+") in PENALTIES,
                   ", ".join(PENALTIES)),
           lacking(f"{ACTOR}.kl_loss_type", f"one of {', '.join(PENALTIES)}")),
    KeyRule(f"{ACTOR}.freeze_vision_tower", "alias", "read as actor_train.model_args.freeze_vision",
            lambda v, f: {"actor_train.model_args.freeze_vision": v} if v else {}),
    *off_or_lacking(f"{ACTOR}.router_replay.mode", ("disabled",), "write actor_train.router_replay.mode: R3, with hf_infer"),
    *(ignored(f"{ACTOR}.router_replay.{name}", "part of mode") for name in ("record_file", "replay_file", "strict")),
    *switched(f"{ACTOR}.qat", "weights are trained as they are: remove it"),
    *off_or_lacking(f"{ACTOR}.use_rollout_log_probs", (True,), "write algorithm.rollout_correction.bypass_mode: false"),
    *(ignored(f"{ACTOR}.{name}", SPEED) for name in ("use_torch_compile", "use_fused_kernels", "pad_to_length")),
    *(ignored(f"{ACTOR}.{name}", MEMORY) for name in (
        "entropy_from_logits_with_chunking", "entropy_checkpointing", "entropy_from_logits_chunk_size",
        "sum_pi_squared_checkpointing")),
    ignored(f"{ACTOR}.use_remove_padding", "nothing is padded"),
    ignored(f"{ACTOR}.use_prefix_grouper", "a common prefix is always computed once"),
    *(ignored(f"{ACTOR}.{name}", "entropy is always measured") for name in ("calculate_entropy", "calculate_sum_pi_squared")),
)  # fmt: skip


def _lora(value: object, file: File) -> bool:
    return is_count(at(file, f"{MODEL}.lora_rank"))


def _modules(value: Any, file: File) -> Mapping[str, Any]:
    return {"actor_train.model_args.lora_target": ",".join(value) if isinstance(value, list) else value}


MODEL_RULES = (
    KeyRule(f"{MODEL}.path", "alias", "read as pretrain: a local folder, or a name of the hub, which a run fetches",
            lambda v, f: {"pretrain": v}, is_text, "text"),
    KeyRule(f"{MODEL}.lora_rank", "alias", "read as actor_train.model_args.lora_rank",
            lambda v, f: {"actor_train.model_args.lora_rank": v}, _lora, "1 or more"),
    ignored(f"{MODEL}.lora_rank", "all weights are trained"),
    *where(lambda f: _lora(None, f), "all weights are trained", "without lora_rank",
           renamed(f"{MODEL}.lora_alpha", "actor_train.model_args.lora_alpha"),
           KeyRule(f"{MODEL}.target_modules", "alias", "read as actor_train.model_args.lora_target", _modules)),
    *of_model(MODEL, "actor_train"),
    *(ignored(f"actor_rollout_ref.{name}", why) for name, why in (
        ("hybrid_engine", "devices say who shares them"), ("nccl_timeout", "rpc_timeout bounds a call"),
        ("checkpoint_engine", "model_update_transport says how weights travel"))),
)  # fmt: skip
