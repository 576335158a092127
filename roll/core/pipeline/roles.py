"""The workers of each role of a configuration: classes, placements and options. Pure but for a free port, and for the user's
environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from roll.core.algorithms.correction import Correction, Filter, ImportanceWeight
from roll.core.algorithms.loss import LossSpec
from roll.core.configs.arguments import EngineArguments, HFInferConfig, ModelArguments, StrategyArguments
from roll.core.configs.backend_arguments import MegatronConfig
from roll.core.configs.derived import Derived, needed_arguments
from roll.core.configs.losses import TrainInferCorrectionConfig
from roll.core.configs.ppo import PPOConfig
from roll.core.configs.sizes import TORCH_NAMES, compute_dtype
from roll.core.configs.worker import (
    TEACHERS,
    ActorLogProbConfig,
    CriticConfig,
    JudgingModelConfig,
    TeacherConfig,
    TrainedConfig,
    TrainingRole,
    WorkerConfig,
)
from roll.core.distributed.backend import Backend, WorkerSpec
from roll.core.distributed.devices import Inventory, Placement, place
from roll.core.weights.adapter import AdapterSource
from roll.core.workers.infer_interface import NO_VERSION
from roll.core.workers.train_interface import RankContext
from roll.core.workers.train_spec import Optimisation, TrainSpec

ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Both names of the variable that torch's allocator reads."""
QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"
TRAIN_WORKER = "roll.core.workers.workers.TrainWorker"
CRITIC_WORKER = "roll.core.workers.workers.CriticWorker"
LOG_PROB_WORKER = "roll.core.workers.workers.LogProbWorker"
INFER_WORKER = "roll.core.workers.workers.InferWorker"
ENGINE_TEACHER = "roll.topologies.teaching.engine_teacher.EngineTeacher"


def of_trainer(role: str) -> bool:
    """True for the roles without which a step cannot end."""
    return role in ("actor_train", "actor_log_prob", "critic", "reference") or role.startswith(TEACHERS)


def loss_spec(config: PPOConfig, derived: Derived) -> LossSpec:
    return LossSpec(
        pg_variant=config.pg_variant,
        args=derived.policy_loss,
        aggregation=config.loss_agg_mode,
        norm_length=derived.response_length,
        kl_loss_coef=config.kl_loss_coef if config.use_kl_loss else 0.0,
        kl_estimator=config.kl_loss_type,
        kl_clamp=config.kl_loss_clamp,
        entropy_coef=config.entropy_loss_coef,
        divergence=config.distillation.beta if config.teachers else None,
        correction=_correction(config.train_infer_correction),
        full_rate_ess=config.staleness_tuning.target_ess if config.staleness_tuning.learning_rate else None,
    )


def _correction(config: TrainInferCorrectionConfig) -> Correction:
    weighting = config.is_weight
    weight = ImportanceWeight(
        level=weighting.weight_type, upper_bound=weighting.upper_bound, mode=weighting.mode, lower_bound=weighting.lower_bound
    )
    filters = tuple(
        Filter(
            level=rule.agg_type,
            ratio=(rule.ratio_low, rule.ratio_high) if rule.ratio_enabled else None,
            difference=(rule.diff_low, rule.diff_high) if rule.diff_enabled else None,
        )
        for rule in config.filters
        if rule.enabled
    )
    return Correction(weight=weight if weighting.enabled else None, filters=filters, veto_threshold=config.veto_threshold)


def train_spec(config: PPOConfig, derived: Derived, worker: TrainingRole, model_path: str) -> TrainSpec:
    """Returns the specification of every rank of the role. `model_path`: the default for a role that names none of its own."""
    model, backend = worker.model_args, worker.strategy_args.options
    assert not isinstance(backend, (HFInferConfig, EngineArguments)), "no engine trains; one that teaches has teaching_specs"
    optimisation = None
    if isinstance(worker, TrainedConfig):
        optimisation = Optimisation(
            arguments=worker.training_args,
            total_steps=derived.critic_total_steps if isinstance(worker, CriticConfig) else derived.total_optimizer_steps,
            max_grad_norm=config.max_grad_norm,
            max_tokens_per_microbatch=worker.max_tokens_per_microbatch_in_train,
        )
    return TrainSpec(
        model_path=model.model_name_or_path or model_path,
        model=model,
        backend=backend,
        optimisation=optimisation,
        max_tokens_per_microbatch_infer=worker.max_tokens_per_microbatch_in_infer,
        collective_timeout_s=config.rpc_timeout,
        images=config.images_dir,
        export_adapters=model.lora_target is not None and derived.adapter_updates,
    )


def train_specs(
    role: str,
    config: PPOConfig,
    derived: Derived,
    worker: TrainingRole,
    model_path: str,
    inventory: Inventory,
    backend: Backend,
) -> list[WorkerSpec]:
    """Returns one worker per device, together the ranks of one data-parallel group."""
    placements = place(worker.devices, inventory, at_once=1 + bool(config.on_devices_of(role, at_once=True)))
    first = placements[0].node
    address, port = backend.node_address(first), backend.free_port(first)
    environment = allocator(inventory.kind) | queues(inventory.kind, worker.strategy_args.options)
    spec = train_spec(config, derived, worker, model_path)
    specs = []
    for placement in placements:
        context = RankContext(
            rank=placement.rank,
            world_size=placement.world_size,
            master_addr=address,
            master_port=port,
            device=_torch_devices(placement, inventory, backend)[0],
            threads=placement.threads,
            borrows_cores=borrows_cores(config, inventory),
            seed=config.seed,
            deterministic=bool(config.deterministic),
        )
        kwargs: dict[str, Any] = {"context": context, "spec": spec}
        if isinstance(worker, ActorLogProbConfig) and derived.adapter_updates:
            kwargs["adapters"] = _adapter_source(config)
        worker_cls = worker.worker_cls or _built_in(worker)
        specs.append(WorkerSpec(f"{role}-{placement.rank}", worker_cls, placement, kwargs, environment))
    return specs


def _built_in(worker: TrainingRole) -> str:
    if isinstance(worker, CriticConfig):
        return CRITIC_WORKER
    return LOG_PROB_WORKER if isinstance(worker, ActorLogProbConfig) else TRAIN_WORKER


def _adapter_source(config: PPOConfig, start: str | None = None) -> AdapterSource:
    return AdapterSource(config.model_folder(config.actor_train), config.actor_train.model_args.adapter_rank, start)


def allocator(kind: str) -> dict[str, str]:
    """Variables for processes that train. Micro-batches are of many sizes: without segments that grow, the allocator's gaps are
    memory lost. Not for engines, whose memory pools do without; nor where the user has said something else."""
    if kind == "cpu" or any(name in os.environ for name in ALLOCATOR):
        return {}
    return {ALLOCATOR[0]: "expandable_segments:True"}


def queues(kind: str, options: object) -> dict[str, str]:
    """Returns variables for Megatron's ranks that divide layers: a collective overlaps the matrix product issued after it only if
    the device starts work in the order of issue. Empty if the user has set another value."""
    divided = isinstance(options, MegatronConfig) and options.tensor_model_parallel_size > 1
    return {QUEUES: "1"} if divided and kind == "cuda" and QUEUES not in os.environ else {}


def borrows_cores(config: PPOConfig, inventory: Inventory) -> bool:
    """True if workers on CPUs use the cores of waiting ones. False if the user sets the number of threads of a process, or if
    results have to be reproducible: other numbers of threads change their rounding."""
    return inventory.kind == "cpu" and not config.deterministic and inventory.threads is None


def infer_specs(
    config: PPOConfig,
    derived: Derived,
    model_path: str,
    version: int,
    inventory: Inventory,
    backend: Backend,
    adapters: str | None = None,
) -> list[WorkerSpec]:
    """Returns one engine per device, or as many devices as its options say, serving `version` from the start (unless engines
    start empty). `adapters`: folder of the adapters in that version."""
    worker: WorkerConfig = config.actor_infer
    model, chosen = worker.model_args, worker.strategy_args.options
    specs = []
    at_once = 1 + bool(config.on_devices_of("actor_infer", at_once=True))
    for placement in place(worker.devices, inventory, worker.strategy_args.engine.devices_per_engine, at_once):
        options: dict[str, Any] = {
            "model_path": model_path,
            "max_running_requests": derived.requests_per_engine,
            "max_length": derived.sequence_length,
            "version": NO_VERSION if derived.engines_start_empty else version,
        }
        if config.images_dir is not None:
            options["images"] = config.images_dir
        if derived.adapter_updates:
            options["adapters"] = _adapter_source(config, adapters)
        options |= _engine_options(config, worker.strategy_args, model, placement, inventory, backend)
        if isinstance(chosen, EngineArguments):
            options["engine_args"] = dict.fromkeys(needed_arguments(config, inventory.kind == "cuda"), True) | chosen.given
        kwargs = {"strategy_name": worker.strategy_args.strategy_name, "options": options}
        specs.append(WorkerSpec(f"actor_infer-{placement.rank}", worker.worker_cls or INFER_WORKER, placement, kwargs))
    return specs


def teaching_specs(
    role: str, config: PPOConfig, derived: Derived, worker: TeacherConfig, inventory: Inventory, backend: Backend
) -> list[WorkerSpec]:
    """Returns one worker per engine that computes log-probs of the policy's samples."""
    given = {"model_path": config.model_folder(worker), "max_running_requests": derived.requests_per_engine}
    given |= {"max_length": derived.sequence_length, "max_tokens": worker.max_tokens_per_microbatch_in_infer}
    given |= {"top": config.distillation.top, "temperature": config.actor_infer.generating_args.temperature}
    engines = engines_on(config, worker, worker.model_args, given, inventory, backend)
    return [WorkerSpec(f"{role}-{at.rank}", worker.worker_cls or ENGINE_TEACHER, at, engine) for at, engine in engines]


def engines_on(
    config: PPOConfig,
    on: JudgingModelConfig | TeacherConfig,
    model: ModelArguments | JudgingModelConfig,
    given: Mapping[str, Any],
    inventory: Inventory,
    backend: Backend,
) -> list[tuple[Placement, dict[str, Any]]]:
    """Returns, for each engine, its placement, and its name and options. `given`: options of all."""
    args = on.strategy_args
    return [
        (at, {"name": args.strategy_name, "options": {**given, **_engine_options(config, args, model, at, inventory, backend)}})
        for at in place(on.devices, inventory, args.engine.devices_per_engine)
    ]


def _engine_options(
    config: PPOConfig,
    strategy: StrategyArguments,
    model: ModelArguments | JudgingModelConfig,
    placement: Placement,
    inventory: Inventory,
    backend: Backend,
) -> dict[str, Any]:
    chosen, devices = strategy.options, _torch_devices(placement, inventory, backend)
    dtype = TORCH_NAMES[compute_dtype(model.dtype, inventory.kind == "cuda")]
    # Engines of one seed would draw the same numbers for the samples of a prompt that they share.
    seed = (config.seed + placement.rank) % 2**32
    options: dict[str, Any] = {"dtype": dtype, "threads": placement.threads, "seed": seed}
    options |= {"head_dtype": model.head_dtype} if isinstance(model, ModelArguments) else {}
    if isinstance(chosen, EngineArguments):
        return options | {"devices": devices, "engine_args": chosen.given}
    return options | {
        "device": devices[0],
        "attn_implementation": model.attn_implementation,
        "deterministic": config.deterministic is True,
        "graphs": isinstance(chosen, HFInferConfig) and chosen.cuda_graphs,
        "cache_tokens": chosen.kv_cache_tokens if isinstance(chosen, HFInferConfig) else None,
        "borrows_cores": borrows_cores(config, inventory),
    }


def _torch_devices(placement: Placement, inventory: Inventory, backend: Backend) -> list[str]:
    if inventory.kind == "cpu":
        return ["cpu"]
    # An isolated worker sees its own devices only, counted from 0.
    seen = range(len(placement.local_devices)) if backend.isolated else placement.local_devices
    return [f"cuda:{index}" for index in seen]
