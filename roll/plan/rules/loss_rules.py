"""Rules for the keys of the loss: ratio, clips, correction for old samples, KL terms, `actor_log_prob` and critic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from roll.core.configs.derived import old_logprobs_recomputed, replays_routing, scores_ahead
from roll.core.configs.dotted_path import DOTTED_PATH
from roll.core.configs.engines import DRAFTS
from roll.core.configs.estimators import ESTIMATORS, usable_estimators
from roll.core.configs.losses import POLICY_LOSSES, anchor_of, knob_problems
from roll.core.configs.ppo import PPOConfig
from roll.core.configs.problems import MISSING_VALUE, Problem, did_you_mean
from roll.core.configs.worker import ActorLogProbConfig
from roll.plan.rules.role_rules import free_device

RECIPES = {"dapo": "ppo, with pg_clip: [0.2, 0.28] and loss_agg_mode: token-mean"}
"""Names of papers that are combinations of keys here."""


def loss_problems(config: PPOConfig) -> Iterator[Problem]:
    for rule in (_policy_loss, _clipping, _drafts, _router_replay, _correction, _kl, _log_probs, _critic):
        yield from rule(config)


def _policy_loss(config: PPOConfig) -> Iterator[Problem]:
    knobs, variant, key = config.actor_train, config.actor_train.pg_variant, "actor_train.pg_variant"
    loss = POLICY_LOSSES.get(variant)
    if loss is None and not DOTTED_PATH.fullmatch(variant):
        fix = did_you_mean(variant, POLICY_LOSSES, f"one of {', '.join(POLICY_LOSSES)}, or the path of your own function")
        if variant in ESTIMATORS:
            fix = f"adv_estimator: {variant}, with a loss such as actor_train.pg_variant: ppo"
        yield Problem(key, variant, "is not a policy loss", RECIPES.get(variant, fix))
    yield from knob_problems(knobs, "actor_train.")
    if config.old_logprobs == "bypass":
        if loss is not None and loss.needs_proximal:
            message = f"pg_variant {variant} needs the log-probs of the step's first weights"
            yield Problem("old_logprobs", "bypass", message, "auto")
        elif config.train_infer_correction.is_weight.enabled and loss is not None and loss.takes_ratio:
            message = f"pg_variant {variant} takes its ratio to the sampler already, is_weight would correct for it twice"
            yield Problem("old_logprobs", "bypass", message, "auto, or train_infer_correction.is_weight.enabled: false")


def _drafts(config: PPOConfig) -> Iterator[Problem]:
    if not config.actor_infer.strategy_args.strategy_config.get(DRAFTS):
        return
    kept = config.keep_sampling_mask and config.actor_infer.generating_args.truncates
    for taken, key, fix in (
        (kept, "keep_sampling_mask", "keep_sampling_mask: false, or top_p: 1 and top_k: 0"),
        (replays_routing(config), "actor_train.router_replay.mode", "router_replay.mode: disable"),
    ):
        if taken:
            message = f"{key} needs a report of each token, which verified drafts have not"
            yield Problem(f"actor_infer.strategy_args.strategy_config.{DRAFTS}", "set", message, f"leave it out, or {fix}")


def _router_replay(config: PPOConfig) -> Iterator[Problem]:
    if not replays_routing(config):
        return
    off = "router_replay.mode: disable"
    given = config.actor_infer.strategy_args.engine.given
    block = "actor_infer.strategy_args.strategy_config"
    if (stages := given.get("pipeline_parallel_size", 1)) != 1:
        message = "router_replay needs the experts of all layers, and no process of such an engine has them"
        yield Problem(f"{block}.pipeline_parallel_size", stages, message, f"tensor_parallel_size, or {off}")
    if given.get("enable_prefix_caching") is False:
        message = "router_replay: the engine keeps its experts by the blocks of the prefix cache"
        yield Problem(f"{block}.enable_prefix_caching", False, message, f"true, or {off}")


def _clipping(config: PPOConfig) -> Iterator[Problem]:
    clip = config.pg_clip
    if isinstance(clip, list) and len(clip) != 2:
        yield Problem("pg_clip", clip, "is no range", "[0.2, 0.28] for [low, high], or one number")


def _correction(config: PPOConfig) -> Iterator[Problem]:
    weight, key = config.train_infer_correction.is_weight, "train_infer_correction"
    variant = config.actor_train.pg_variant
    if weight.enabled and anchor_of(variant) == "behaviour":
        message = f"{variant} takes its ratio to the sampler itself, is_weight would correct for it twice"
        yield Problem(f"{key}.is_weight.enabled", True, message, "false, or actor_train.pg_variant: ppo")
    if weight.mode == "mask" and weight.lower_bound >= weight.upper_bound:
        message = f"{weight.lower_bound:g} >= upper_bound {weight.upper_bound:g}: every token is masked"
        yield Problem(f"{key}.is_weight.lower_bound", weight.lower_bound, message, f"less than {weight.upper_bound:g}")
    for index, rule in enumerate(config.train_infer_correction.filters):
        name = f"{key}.filters[{index}]"
        if rule.enabled and not (rule.ratio_enabled or rule.diff_enabled):
            yield Problem(f"{name}.enabled", True, "filters by nothing", "ratio_enabled: true or diff_enabled: true")
        for low, high in (("ratio_low", "ratio_high"), ("diff_low", "diff_high")):
            if getattr(rule, low) >= getattr(rule, high):
                message = f"{getattr(rule, low):g} >= {high} {getattr(rule, high):g}: every token is left out"
                yield Problem(f"{name}.{low}", getattr(rule, low), message, f"less than {getattr(rule, high):g}")


def _kl(config: PPOConfig) -> Iterator[Problem]:
    if config.use_kl_loss and config.kl_loss_coef == 0:
        yield Problem("kl_loss_coef", 0.0, "use_kl_loss is true, but the weight is 0", "e.g. 0.001")
    if config.kl_loss_coef > 0 and not config.use_kl_loss:
        yield Problem("kl_loss_coef", config.kl_loss_coef, "has no effect: use_kl_loss is false", "use_kl_loss: true")
    if config.add_token_level_kl and config.init_kl_coef == 0:
        yield Problem("init_kl_coef", 0.0, "add_token_level_kl is true, but the weight is 0 and stays so", "e.g. 0.01")
    if config.target_kl is not None and not config.add_token_level_kl:
        yield Problem("target_kl", config.target_kl, "has no effect: add_token_level_kl is false", "add_token_level_kl: true")
    if config.uses_reference and config.reference is None and config.mode in ("both", "train"):
        user = "online_pairs" if config.pair_loss is not None else "use_kl_loss" if config.use_kl_loss else "add_token_level_kl"
        yield Problem("reference", MISSING_VALUE, f"{user} needs it", f"reference: {_beside(config)}")


def _beside(config: PPOConfig) -> str:
    """A role on the trainer's devices."""
    return f'{{device_mapping: "{",".join(map(str, config.actor_train.devices))}"}}'


LOG_PROB = "actor_log_prob"


def _log_probs(config: PPOConfig) -> Iterator[Problem]:
    role = config.actor_log_prob
    if role is None or not config.trains:
        return
    recomputed, reason = old_logprobs_recomputed(config)
    if not recomputed:
        message = f"no log-probs are recomputed ({reason})"
        yield Problem(LOG_PROB, "given", message, "remove it, or old_logprobs: recompute")
    if role.lag == 1 and not scores_ahead(config):
        ratio = config.async_generation_ratio
        message = f"at async_generation_ratio {ratio:g} no batch is complete while a step trains: older log-probs win no time"
        yield Problem(f"{LOG_PROB}.lag", 1, message, "0 or auto, or async_generation_ratio: 1")
    yield from _same_model(config, role)
    yield from _own_devices(config, role)


def _same_model(config: PPOConfig, role: ActorLogProbConfig) -> Iterator[Problem]:
    trained, key = config.actor_train.model_args, f"{LOG_PROB}.model_args"
    named, own = config.model_folder(config.actor_train), config.model_folder(role)
    if named and own != named:
        yield Problem(f"{key}.model_name_or_path", own, "is not the model that actor_train trains", named)
    for option in ("dtype", "head_dtype"):
        given, wanted = getattr(role.model_args, option), getattr(trained, option) or "null"
        if (given or "null") != wanted:
            message = f"that of actor_train is {wanted}: ratios would measure the difference of the types"
            yield Problem(f"{key}.{option}", given, message, wanted)


def _own_devices(config: PPOConfig, role: ActorLogProbConfig) -> Iterator[Problem]:
    roles = config.configured_roles()
    for name in ("actor_train", "actor_infer"):
        if name in roles and not set(roles[name].devices).isdisjoint(role.devices):
            fix = f'devices of its own, e.g. "{free_device(config)}", or remove the role: actor_train computes the log-probs'
            yield Problem(f"{LOG_PROB}.device_mapping", role.device_mapping, f"shares devices with {name}", fix)


def _critic(config: PPOConfig) -> Iterator[Problem]:
    estimator = config.adv_estimator
    if config.uses_critic:
        if config.critic is None:
            fix = f"critic: {_beside(config)}, or adv_estimator: grpo"
            yield Problem("critic", MISSING_VALUE, "adv_estimator gae needs it", fix)
        if config.critic_warmup >= config.max_steps:
            message = f"{config.critic_warmup} >= max_steps {config.max_steps}: the policy would never be trained"
            yield Problem("critic_warmup", config.critic_warmup, message, f"at most {config.max_steps - 1}")
        return
    if config.critic is not None:
        yield Problem("critic", "given", f"adv_estimator {estimator} uses no critic", "remove it, or adv_estimator: gae")
    unread = {"lambd": 0.95, "value_clip": None, "critic_warmup": 0}
    for key, unset in unread.items():
        if (value := getattr(config, key)) != unset:
            yield Problem(key, value, f"has no effect: adv_estimator is {estimator}", "remove it, or adv_estimator: gae")


def unusable_estimator(estimator: str, refused: Mapping[str, str]) -> Iterator[Problem]:
    """Yields a problem for an unusable estimator. `refused`: see `PPOConfig.refused_estimators`."""
    known = usable_estimators(refused)
    if estimator in refused:
        yield Problem("adv_estimator", estimator, refused[estimator], "e.g. grpo or rloo")
    elif estimator not in known and not DOTTED_PATH.fullmatch(estimator):
        fix = did_you_mean(estimator, known, f"one of {', '.join(known)}, or the dotted path of your own function")
        if estimator in POLICY_LOSSES:
            critic = ", or gae for PPO with a critic" if estimator == "ppo" else ""
            fix = f"actor_train.pg_variant: {estimator}, with adv_estimator: grpo{critic}"
        yield Problem("adv_estimator", estimator, "is not an advantage estimator", fix)
