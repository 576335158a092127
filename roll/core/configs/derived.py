"""Numbers derived from a configuration. The user's own values are never overwritten."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from roll.core.configs.engines import DRAFTS, engine_of
from roll.core.configs.losses import POLICY_LOSSES, PolicyLossArgs, anchor_of, loss_args
from roll.core.configs.ppo import PPOConfig
from roll.core.configs.staleness import staleness_bound
from roll.core.configs.worker import TEACHERS, TrainedConfig


@dataclass(frozen=True, slots=True)
class Derived:
    """Numbers derived from a configuration; all lengths are in tokens."""

    prompt_length: int
    response_length: int
    sequence_length: int
    max_new_tokens: int
    """Longest training response: `max_new_tokens` of `actor_infer.generating_args`, else `response_length`."""
    samples_per_step: int
    """Rollouts per step; an episode may become more than one sample, or none."""
    optimizer_batch_size: int
    """Maximum rollouts of one optimiser step over all ranks; 0 in an explorer's process, as are the numbers of steps."""
    optimizer_steps_per_epoch: int
    """Optimiser steps of one pass over a pipeline step's samples, independent of the number of samples."""
    total_optimizer_steps: int
    """Optimiser steps of the policy in the whole run."""
    critic_steps_per_epoch: int
    """Optimiser steps of the critic in a pipeline step; 0 without a critic."""
    critic_total_steps: int
    staleness_bound: int
    """No token is trained more than this many versions after it was sampled: ⌈async_generation_ratio⌉."""
    requests_per_engine: int
    """`max_running_requests`, or fewer where the engine's KV cache holds fewer whole sequences."""
    policy_loss: PolicyLossArgs
    recompute_old_logprobs: bool
    """True if log-probs are recomputed at the start of a step, as the denominator of ratios."""
    old_logprobs_reason: str
    keeps_sampling_mask: bool
    """True if samples carry the sets kept by top_p and top_k; all log-probs are then taken over these sets."""
    replays_routing: bool
    """True if samples carry the engine's experts for each token; the policy is then trained with the same experts."""
    log_prob_lag: int
    """Versions by which actor_log_prob lags behind the newest published one when it scores a step's groups."""
    scored_ahead: tuple[str, ...]
    """Roles that score the next step's groups while a step trains."""
    teachers_elsewhere: Mapping[str, str | None]
    """Teachers without devices of their own, and the role that each is; None: another's server."""
    adapter_updates: bool
    """True if weight updates are adapters alone."""
    adapter_updates_reason: str
    engines_start_empty: bool
    """True if engines start with random weights, and get their first real ones from the trainer."""
    domain_shares: Mapping[str, float]
    """Share of each domain in a batch; they sum to 1."""
    tag_to_domain: Mapping[str, str]
    trackers: tuple[str, ...]
    """Trackers besides metrics.jsonl."""
    run_dir: str


def optimizer_batch_size(worker: TrainedConfig) -> int:
    """Samples of one optimiser step: per_device_train_batch_size x gradient_accumulation_steps x data-parallel ranks."""
    training = worker.training_args
    return training.per_device_train_batch_size * training.gradient_accumulation_steps * worker.data_parallel_size


def optimizer_steps(config: PPOConfig, worker: TrainedConfig) -> int:
    """Returns the optimiser steps of one pass over a pipeline step's samples. A partial batch counts; it occurs only if each turn
    of an episode is a sample, so that the number of samples is not known in advance."""
    return -(-config.rollouts_per_step // optimizer_batch_size(worker))


def derive(config: PPOConfig) -> Derived:
    """Derives the numbers of a configuration without problems (`check_config`)."""
    prompt_length, response_length, sequence_length = config.lengths()
    samples = config.rollouts_per_step
    trains = "actor_train" in config.roles()
    steps = optimizer_steps(config, config.actor_train) if trains else 0
    critic = config.critic if trains and config.uses_critic else None
    critic_steps = optimizer_steps(config, critic) if critic is not None else 0
    recompute, reason = old_logprobs_recomputed(config)
    adapters, adapters_reason = adapter_updates(config)
    return Derived(
        prompt_length=prompt_length,
        response_length=response_length,
        sequence_length=sequence_length,
        max_new_tokens=config.actor_infer.generating_args.max_new_tokens or response_length,
        samples_per_step=samples,
        optimizer_batch_size=-(-samples // steps) if steps else 0,
        optimizer_steps_per_epoch=steps,
        total_optimizer_steps=_total_steps(config, steps),
        critic_steps_per_epoch=critic_steps,
        critic_total_steps=critic_steps * config.ppo_epochs * config.max_steps,
        staleness_bound=staleness_bound(config.async_generation_ratio),
        requests_per_engine=config.max_running_requests,
        policy_loss=_policy_loss(config),
        recompute_old_logprobs=recompute,
        old_logprobs_reason=reason,
        keeps_sampling_mask=keeps_sampling_mask(config),
        replays_routing=replays_routing(config),
        log_prob_lag=_log_prob_lag(config),
        scored_ahead=_scored_ahead(config),
        teachers_elsewhere=dict(_elsewhere(config)),
        adapter_updates=adapters,
        adapter_updates_reason=adapters_reason,
        engines_start_empty=config.actor_infer.strategy_args.engine.starts_empty,
        domain_shares=_domain_shares(config.domain_weights),
        tag_to_domain=config.tag_to_domain,
        trackers=_trackers(config),
        run_dir=config.run_dir,
    )


def _elsewhere(config: PPOConfig) -> Iterator[tuple[str, str | None]]:
    for name, teacher in config.teachers.items():
        if teacher.live or teacher.endpoint:
            yield f"{TEACHERS}{name}", "actor_train" if teacher.live else None


def _total_steps(config: PPOConfig, steps: int) -> int:
    warm = config.warm_steps
    return warm + steps * config.ppo_epochs * (config.max_steps - config.critic_warmup - warm)


def _trackers(config: PPOConfig) -> tuple[str, ...]:
    names = [config.track_with] if isinstance(config.track_with, str) else config.track_with
    return tuple(name for name in names if name != "none")


def _policy_loss(config: PPOConfig) -> PolicyLossArgs:
    low, high = config.pg_clip if isinstance(config.pg_clip, list) else (config.pg_clip, config.pg_clip)
    return loss_args(config.actor_train, low, high, config.dual_clip_c)


def old_logprobs_recomputed(config: PPOConfig) -> tuple[bool, str]:
    """Returns True if log-probs are recomputed at the start of a step, and the reason."""
    variant = config.pg_variant
    loss = POLICY_LOSSES.get(variant)
    if config.from_rows or config.pair_loss is not None:
        return config.pair_loss is not None, "what a token weighs follows from the log-probs of both answers"
    if config.old_logprobs != "auto":
        return config.old_logprobs == "recompute", f"old_logprobs: {config.old_logprobs}"
    if loss is not None and loss.needs_proximal:
        return True, f"pg_variant {variant} needs them"
    if loss is not None and not loss.takes_ratio:
        return False, f"pg_variant {variant} takes no ratio to them"
    if config.train_infer_correction.is_weight.enabled:
        return True, f"is_weight weighs them against the sampler's, pg_variant {variant} takes its ratio to them"
    engine = config.actor_infer.strategy_args.strategy_name
    if samples_in_fp8(config) and anchor_of(variant) == "step":
        return True, f"{engine} samples in FP8: tokens are weighted for what it and the trainer differ by, and not clipped for it"
    if loss is not None and loss.clips_noise and config.async_generation_ratio == 0 and not engine_of(engine).computes_as_trainer:
        return True, f"pg_variant {variant} would clip what {engine} and the trainer differ by"
    return False, f"pg_variant {variant} takes its ratio to the sampler's"


def samples_in_fp8(config: PPOConfig) -> bool:
    """True if the engine computes with weights or a KV cache in FP8."""
    return any(config.actor_infer.strategy_args.engine.in_fp8)


def keeps_sampling_mask(config: PPOConfig) -> bool:
    """True if samples carry the sets kept by top_p and top_k."""
    drafts = config.actor_infer.strategy_args.strategy_config.get(DRAFTS)
    return not drafts and config.actor_infer.generating_args.truncates and config.keep_sampling_mask is not False


def replays_routing(config: PPOConfig) -> bool:
    """True if samples carry the experts chosen by the engine."""
    return config.actor_train.router_replay.mode == "R3"


def scores_ahead(config: PPOConfig) -> bool:
    """True if the next step's groups can be complete while a step trains; below a ratio of 1 they never are."""
    return config.async_generation_ratio >= 1


def _log_prob_lag(config: PPOConfig) -> int:
    role = config.actor_log_prob
    if role is None:
        return 0
    return int(scores_ahead(config)) if role.lag == "auto" else role.lag


def _scored_ahead(config: PPOConfig) -> tuple[str, ...]:
    roles = config.roles()
    if not scores_ahead(config) or "actor_train" not in roles:
        return ()
    policy = set(roles["actor_train"].devices)
    teachers = [name for name in roles if name.startswith(TEACHERS)]
    names = ("reference", *teachers, "critic", *["actor_log_prob"] * _log_prob_lag(config))
    return tuple(name for name in names if name in roles and policy.isdisjoint(roles[name].devices))


def _domain_shares(weights: Mapping[str, float]) -> dict[str, float]:
    total = sum(weights.values())
    return {domain: weight / total for domain, weight in weights.items()}


def needed_arguments(config: PPOConfig, accelerators: bool) -> dict[str, tuple[str, str]]:
    """Returns the engine arguments that must be true, each with the reason and the alternative."""
    engine = engine_of(config.actor_infer.strategy_args.strategy_name)
    needed: dict[str, tuple[str, str]] = {}
    if replays_routing(config) and engine.routes_argument:
        needed[engine.routes_argument] = "the engine has to report its experts", "actor_train.router_replay.mode: disable"
    if not accelerators:
        return needed
    if "actor_infer" in config.roles() and config.on_devices_of("actor_infer", at_once=False):
        why = "the engines take turns with other roles on their devices, and have to give the memory back meanwhile"
        needed |= dict.fromkeys(engine.sleep_arguments, (why, "devices that no other role has"))
    if engine.in_flight_argument is not None and config.weight_update_mode == "in_flight":
        argument, why = engine.in_flight_argument
        needed[argument] = (why, "weight_update_mode: interrupt")
    return needed


def adapter_updates(config: PPOConfig) -> tuple[bool, str]:
    """Returns True if weight updates are adapters alone, and the reason."""
    trained = config.actor_train.model_args
    if trained.lora_target is None:
        return False, "all weights are trained"
    if config.only_evaluates:
        return False, "what is evaluated are merged weights"
    if trained.lora_update != "auto":
        return trained.lora_update == "adapter", f"lora_update: {trained.lora_update}"
    if reason := adapter_obstacle(config):
        return False, reason
    name = config.actor_infer.strategy_args.strategy_name
    if engine_of(name).adapters == "beside":
        return (
            False,
            f"{name} computes adapters beside their base: shorter updates, slower tokens; lora_update: adapter takes it",
        )
    return True, f"{name} merges them with the base that it has"


def adapter_obstacle(config: PPOConfig) -> str:
    """Returns the reason that the engines cannot take adapters; empty if they can."""
    name, rank = config.actor_infer.strategy_args.strategy_name, config.actor_train.model_args.adapter_rank
    engine = engine_of(name)
    if engine.adapters == "none":
        return f"{name} is not wired to take adapters"
    if engine.largest_rank is not None and rank > engine.largest_rank:
        return f"{name} serves adapters of rank {engine.largest_rank} at most, lora_rank is {rank}"
    base, served = config.model_folder(config.actor_train), config.model_folder(config.actor_infer)
    if config.actor_infer.strategy_args.engine.in_fp8[0]:
        return "adapters over weights in FP8 are not tested"
    if base != served:
        return f"the engines start from '{served}', the trainer from '{base}'"
    return ""


def decisions(config: PPOConfig, derived: Derived) -> Iterator[str]:
    """Yields the choices made for the user, with their reasons."""
    if config.only_evaluates or config.from_rows:
        return
    chosen = "recomputed at the start of each step" if derived.recompute_old_logprobs else "the sampler's"
    if config.actor_log_prob is not None:
        behind = "with the newest version" if derived.log_prob_lag == 0 else "with the version before"
        chosen = f"recomputed by actor_log_prob, {behind}"
    yield f"old log-probs: {chosen} ({derived.old_logprobs_reason})"
    if samples_in_fp8(config) and not derived.recompute_old_logprobs:
        yield "samples in FP8 are not weighted for it: train_infer_correction.is_weight.enabled: true does, for any pg_variant"
    if derived.scored_ahead:
        yield f"{' and '.join(derived.scored_ahead)}: one step ahead of actor_train, on devices of their own"
    if config.actor_train.model_args.lora_target is not None:
        yield f"weight updates: {'adapters' if derived.adapter_updates else 'merged weights'} ({derived.adapter_updates_reason})"
    if config.reference is not None and not config.uses_reference:
        yield "reference: not started (neither use_kl_loss nor add_token_level_kl is set)"
    if derived.engines_start_empty:
        yield "actor_infer: its first weights are the trainer's (load_format: dummy)"
