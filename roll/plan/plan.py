"""Plan of a run, derived from its configuration alone: devices, amounts, staleness, log-probs, loss, memory. Pure.

`roll check` prints it, whole; every run prints its short form before it starts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from roll.core.configs.agentic import AgenticConfig
from roll.core.configs.derived import Derived, derive
from roll.core.configs.engines import engine_of
from roll.core.configs.losses import anchor_of
from roll.core.configs.ppo import PPOConfig
from roll.core.configs.redact import redact_text
from roll.core.configs.rows import WarmStartConfig
from roll.core.configs.staleness import deepest_pipeline
from roll.core.configs.worker import TEACHERS
from roll.plan import turn_bytes
from roll.plan.counts import Quantity, RolePlan, quantities, role_plans
from roll.plan.expected_left import ENGINES_NOISE, LEAST, expected, fix_of, weight_of
from roll.plan.formulas import LossFormula, loss_formula
from roll.plan.host_memory import host_memory
from roll.plan.memory import Model, Part
from roll.plan.memory_plan import DeviceMemory, RoleMemories, RoleMemory, device_memory
from roll.plan.rows_config import RowsConfig
from roll.plan.rows_formulas import answers, pair_formula, rows_formula, rows_of_step
from roll.plan.rules.doubts import doubts


@dataclass(frozen=True, slots=True)
class Staleness:
    """The staleness of a run, in policy versions, with B groups a step, ratio α and version v."""

    bound: int
    arithmetic: str
    admission: str
    depth: str
    late_groups: str
    order: str
    weight_update: str


@dataclass(frozen=True, slots=True)
class LogProbs:
    """Origins of the log-probs of each kind, and when they are computed."""

    behaviour: str
    proximal: str
    reference: str
    teachers: str = ""
    """Empty: there are none."""


@dataclass(frozen=True, slots=True)
class Plan:
    pipeline: str
    exp_name: str
    trains: bool
    """This process or another one of the run; false: models are only evaluated."""
    generates: bool
    """False: rows of files are trained as they stand."""
    device_count: int
    nodes: int
    accelerators: bool
    """True if `dtype: auto` was taken for bf16."""
    roles: tuple[RolePlan, ...]
    quantities: tuple[Quantity, ...]
    staleness: Staleness
    log_probs: LogProbs
    sampling: tuple[str, ...]
    """Deviations of sampling from the distribution whose log-probs are recorded; empty if there are none."""
    loss: LossFormula
    memory: tuple[RoleMemory, ...]
    devices: tuple[DeviceMemory, ...]
    host: tuple[Part, ...]
    """Parts of a node's host memory that serve its devices."""
    notes: tuple[str, ...]


def model_folders(config: PPOConfig) -> list[str]:
    """Returns the model folders of the roles that a run starts, each once."""
    return list(dict.fromkeys(config.model_folder(role) for role in config.roles().values()))


def make_plan(
    config: PPOConfig,
    device_count: int,
    models: Mapping[str, Model | str],
    accelerators: bool,
    device_bytes: int | None = None,
) -> Plan:
    """Returns the plan of a configuration without problems (`check_config`). `models`: for each of `model_folders`, its content,
    or why it is unknown. `device_bytes`: memory of an accelerator, if known."""
    derived, roles = derive(config), role_plans(config)
    trainer = next((role for role in roles if role.role == "actor_train"), None)
    needed, workers = RoleMemories(config, derived, accelerators, device_bytes), config.roles()
    memories = [needed.of(role, models[config.model_folder(workers[role.role])]) for role in roles]
    return Plan(
        pipeline=config.kind,
        exp_name=config.exp_name,
        trains=not config.only_evaluates,
        device_count=device_count,
        nodes=config.num_nodes,
        accelerators=accelerators,
        roles=tuple(roles),
        generates=not config.from_rows,
        quantities=tuple(_quantities(config, derived, trainer.data if trainer is not None else 1)),
        staleness=_staleness(config, derived),
        log_probs=_log_probs(config, derived),
        sampling=tuple(_sampling(config, derived)),
        loss=_loss(config, derived),
        memory=tuple(memories),
        devices=tuple(device_memory(roles, memories)),
        host=tuple(host_memory(config, roles, memories, models, device_count // config.num_nodes, accelerators)),
        notes=(*map(str, doubts(config)), *_notes(config, derived, roles)),
    )


def _loss(config: PPOConfig, derived: Derived) -> LossFormula:
    if isinstance(config, RowsConfig):
        return rows_formula(config)
    return loss_formula(config, derived) if config.pair_loss is None else pair_formula(config.pair_loss)


def _quantities(config: PPOConfig, derived: Derived, data_parallel: int) -> list[Quantity]:
    if not config.from_rows:
        return quantities(config, derived, data_parallel)
    return [Quantity("pipeline steps", None, config.max_steps, "max_steps"), *rows_of_step(config)]


def _staleness(config: PPOConfig, derived: Derived) -> Staleness:
    ratio, groups = config.async_generation_ratio, config.groups_per_step
    ahead = math.ceil((1 + ratio) * groups - 1e-9)
    depth = config.async_pipeline_depth
    if ratio == 0:
        when = (
            "groups are trained as they come (train_on_arrival)" if config.train_on_arrival else "rollouts and training alternate"
        )
        shown = f"{when}; every token is trained by the version that sampled it"
    elif depth == "auto":
        limit = deepest_pipeline(ratio, config.weight_push_interval, config.max_reuse)
        shown = f"auto: as few batches ahead as keep the trainer busy, between {config.weight_push_interval - 1} and {limit:.3g}"
    else:
        shown = f"{depth:g} batches ahead (async_pipeline_depth)"
    waits = {
        "wait": "the trainer waits for a group that would become too old",
        "drop": "a group that would become too old is dropped and counted",
    }
    updates = {
        "interrupt": "running requests keep their tokens and are prefilled again under the new weights",
        "in_flight": "running requests go on with the KV cache of the old weights",
        "drain": "running requests are finished first",
    }
    update = updates[config.weight_update_mode]
    if config.weight_push_interval > 1:
        update += f"; weights are published every {config.weight_push_interval} steps"
    if config.weight_pull_interval:
        update += f"; an engine takes newer ones after {config.weight_pull_interval:,} groups, or when rollouts wait for them"
    return Staleness(
        bound=derived.staleness_bound,
        arithmetic=f"⌈async_generation_ratio {ratio:g}⌉ = {derived.staleness_bound}",
        admission=f"a group starts while fewer than (v + 1 + {ratio:g}) × {groups:,} are trained or outstanding: "
        f"at most {ahead:,} groups = {ahead * config.group_size:,} rollouts under way",
        depth=shown,
        order=_order(config),
        late_groups=waits[config.staleness_policy] if derived.staleness_bound else "there are none",
        weight_update=update,
    )


def _order(config: PPOConfig) -> str:
    first = {"fifo": "groups are trained in the order of admission", "newest": "the newest ready groups are trained first"}
    again = f"; where a step lacks ready groups it trains others again, each by {config.max_reuse} steps at most (max_reuse)"
    return first[config.groups_order] + (again if config.max_reuse > 1 else ", once")


def _log_probs(config: PPOConfig, derived: Derived) -> LogProbs:
    temperature = config.actor_infer.generating_args.temperature
    engine = config.actor_infer.strategy_args.strategy_name
    over = ", over the kept set," if derived.keeps_sampling_mask else ""
    behaviour = f"ℓ_b: {engine} records log_softmax(logits / {temperature:g}){over} of each token as it samples it"
    if derived.replays_routing:
        behaviour += "; the policy is scored and trained with the experts that the engine chose (router_replay)"
    reason = derived.old_logprobs_reason
    proximal = f"ℓ_p: {_proximal(config, derived)} ({reason})" if derived.recompute_old_logprobs else f"none ({reason})"
    reference = "none (neither use_kl_loss nor add_token_level_kl)"
    if users := [name for name in ("use_kl_loss", "add_token_level_kl") if getattr(config, name)]:
        reference = f"ℓ_r: the reference role, {_scored(derived, 'reference')} ({' and '.join(users)})"
    teaching = [f"{role}, {_scored(derived, role)}" for role in config.roles() if role.startswith(TEACHERS)]
    for role in derived.teachers_elsewhere:
        endpoint = config.teachers[role.removeprefix(TEACHERS)].endpoint
        where = "the policy with the weights of the step's start" if endpoint is None else redact_text(endpoint)
        teaching.append(f"{role}, {where}")
    teachers = f"ℓ_T: {'; '.join(teaching)}{_answers(config, derived)}" if teaching else ""
    return LogProbs(behaviour, proximal, reference, teachers)


def _answers(config: PPOConfig, derived: Derived) -> str:
    """Returns the size of the teachers' answers, which stay with the samples."""
    top = config.distillation.top
    each = 4 + 8 * top
    most = config.rollouts_per_step * config.samples_per_rollout * derived.max_new_tokens * each
    said = f"its {top:,} most probable tokens with their log-probs, " if top else ""
    return f"; {said}{each:,} bytes a token, up to {most / 1e6:,.2f} MB a step, once for each sample"


def _scored(derived: Derived, role: str) -> str:
    return "while the step before trains" if role in derived.scored_ahead else "once a step"


def _proximal(config: PPOConfig, derived: Derived) -> str:
    if config.actor_log_prob is None:
        return "actor_train recomputes them at the start of each step"
    if derived.log_prob_lag == 0:
        return "actor_log_prob recomputes them with the newest version, for which each step waits"
    return "actor_log_prob recomputes them while the step before trains, with the version that that one starts from"


def _sampling(config: PPOConfig, derived: Derived) -> Iterator[str]:
    given = config.actor_infer.generating_args
    cut = [f"{name} {value:g}" for name, value, on in (
        ("top_p", given.top_p, given.top_p < 1), ("top_k", given.top_k, given.top_k > 0)) if on]  # fmt: skip
    if not cut:
        return
    drawn = f"{' and '.join(cut)}: tokens are drawn from the kept set S only, with probability p / p(S)"
    if derived.keeps_sampling_mask:
        yield f"{drawn}; the engine says what S is, and all log-probs, entropies and ratios are those over S (keep_sampling_mask)"
        return
    yield (
        f"{drawn}; ℓ_b stays log p of the whole distribution, so the ratio is 1 on fresh samples, but they are samples of the "
        f"cut policy, not of p, and the gradient is not that of either (keep_sampling_mask mends this)"
    )
    if given.top_p < 1 and given.top_k == 0:
        each = -math.log(given.top_p)
        yield (
            f"the true log-prob is ℓ_b − log p(S), larger by at most −log top_p = {each:.4f} a token, "
            f"{each * derived.max_new_tokens:,.1f} over {derived.max_new_tokens:,} tokens"
        )
    else:
        yield "the true log-prob is ℓ_b − log p(S); top_k bounds no p(S), so the difference has no bound"


def _notes(config: PPOConfig, derived: Derived, roles: list[RolePlan]) -> Iterator[str]:
    if config.only_evaluates:
        yield f"mode bench: nothing is trained; evaluated are {', '.join(config.bench_checkpoints)}"
        return
    if config.mode == "replay":
        yield f"mode replay: groups are those that {config.replay.run} has recorded"
    elif isinstance(config, RowsConfig):
        yield from answers(config)
        return
    elif not config.has_both_sides:
        place = redact_text(config.groups_address or "")
        others = "explorers are" if config.trains else "the trainer and other explorers are"
        yield f"mode {config.mode}: {others} processes of their own; groups are in {place}"
    yield from _running(config, derived, roles)
    if config.has_engines and isinstance(config, AgenticConfig):
        yield _environments(config)
        yield from turn_bytes.note(config, derived.sequence_length)
    if config.warm_start is not None and config.warm_steps:
        yield _warm_start(config, config.warm_start)
    if unshared := [name for name in config.reward_configs if name not in derived.domain_shares]:
        yield f"no prompt of {', '.join(unshared)} is trained: domain_interleave_probs gives no share"
    if config.uses_critic:
        clip = "" if config.value_clip is None else f", the larger of V and V limited to V_old ± {config.value_clip:g}"
        warmup = f"; alone in the first {config.critic_warmup:,} steps" if config.critic_warmup else ""
        yield f"the critic learns ½·(V_t − return_t)², return_t = A_t + V_t before the step{clip}{warmup}"
    if config.reference is not None and not config.uses_reference:
        yield "the reference is not started: neither use_kl_loss nor add_token_level_kl is set"
    if config.trains:
        yield from (*_long_responses(config, derived), *_recorded(config, derived))
    if config.async_generation_ratio > 0 and any(
        "actor_infer" in role.shares_with for role in roles if role.role == "actor_train"
    ):
        yield TURNS


def _running(config: PPOConfig, derived: Derived, roles: list[RolePlan]) -> Iterator[str]:
    """Yields how many requests run together, beside the rollouts that admission lets start."""
    engines = sum(role.data for role in roles if role.role == "actor_infer")
    wanted = math.ceil((1 + config.async_generation_ratio) * config.groups_per_step) * config.group_size
    if running := engines * derived.requests_per_engine:
        cache = config.actor_infer.strategy_args.strategy_config.get("kv_cache_tokens")
        bound = f", as far as a cache of {cache:,} tokens holds them" if cache else ""
        yield (
            f"{engines} engine{'s' * (engines > 1)} × {derived.requests_per_engine} requests = {running:,} run together{bound}; "
            f"admission has up to {wanted:,} rollouts under way"
        )


def _environments(config: AgenticConfig) -> str:
    manager = config.train_env_manager
    return (
        f"{manager.num_env_groups:,} groups × {manager.group_size + manager.group_size_redundancy} = {manager.env_count:,} "
        f"environments play together, {manager.max_env_num_per_worker} per worker process"
    )


def _warm_start(config: PPOConfig, rows: WarmStartConfig) -> str:
    return (
        f"the first {config.warm_steps:,} of {config.max_steps:,} steps train {config.groups_per_step:,} rows each, by −ℓ of "
        f"loss_on: {rows.loss_on}, mean over tokens; nothing is rolled out before version {config.warm_steps:,}"
    )


TURNS = (
    "actor_train and actor_infer share devices: they take turns, and asynchrony gains only where rewards are slow; "
    "sharing: overlap lets both work at the same time"
)
RECORDED_TOKEN = 12
"""Bytes of a response's token in batches.jsonl: id, log-prob and mask, in base64."""
RECORDED_SAMPLE = 1000
"""Bytes of a sample besides: versions, rewards, names."""
RECORDED_CONTEXT = 24
"""Bytes of a prompt's token: its id in JSON and its text, in base64."""


def _recorded(config: PPOConfig, derived: Derived) -> Iterator[str]:
    if config.rollout_log_per_step != "all" or config.mode == "replay":
        return
    samples = config.rollouts_per_step * config.samples_per_rollout
    prompts = samples if config.multi_turn else config.groups_per_step
    contexts = prompts * max(derived.sequence_length - derived.max_new_tokens, 0)
    most = samples * (RECORDED_SAMPLE + derived.max_new_tokens * RECORDED_TOKEN) + contexts * RECORDED_CONTEXT
    limit = f"{config.rollout_log_limit_gb:g} GB in all" if config.rollout_log_limit_gb else "no limit"
    more = " besides what top_p keeps or experts are recorded" if derived.keeps_sampling_mask or derived.replays_routing else ""
    yield f"batches.jsonl, for roll replay: up to {most / 1e6:,.2f} MB a step{more}, {limit}"


def _long_responses(config: PPOConfig, derived: Derived) -> Iterator[str]:
    """Yields notes on the expected rest of a long response's gradient; none for an engine that computes as the trainer does."""
    engine, tokens = config.actor_infer.strategy_args.strategy_name, derived.max_new_tokens
    if engine_of(engine).computes_as_trainer:
        return
    given = (config.actor_train.pg_variant, derived.policy_loss, config.train_infer_correction)
    # Whether the loss takes its ratio to the sampler's log-probs.
    own = not derived.recompute_old_logprobs or anchor_of(config.actor_train.pg_variant) == "behaviour"
    for name, good in (("right", True), ("wrong", False)):
        left = expected(weight_of(*given, tokens, good=good, own_ratio=own), tokens, ENGINES_NOISE)
        if left < LEAST:
            yield (
                f"of a {name} response of {tokens:,} tokens about {left:.0%} of the gradient is left, if log-probs of {engine} "
                f"and trainer differ by {ENGINES_NOISE:g} per token (assumed; actor/gradient_left measures it): {fix_of(*given)}"
            )
