"""Bytes of each role on its devices, and their sums where roles share them. Pure; `memory` computes the bytes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from roll.core.configs.arguments import CACHE_BYTES, FSDP2Config, HFInferConfig
from roll.core.configs.backend_arguments import DeepSpeedConfig, MegatronConfig
from roll.core.configs.derived import Derived, adapter_updates, optimizer_batch_size
from roll.core.configs.engines import ENGINES, engine_of
from roll.core.configs.ppo import PPOConfig
from roll.core.configs.sizes import MIB, WINDOW
from roll.core.configs.worker import ActorTrainConfig, CriticConfig, ScoringConfig, TrainedConfig, WorkerConfig
from roll.plan import memory
from roll.plan.counts import RolePlan, prompt_sharing
from roll.plan.memory import Microbatch, Model, ModelLayout, Part, cpu_cache_tokens, element_bytes, total

CONTEXT, GRAPHS = 600 * MIB, 1024 * MIB
"""Bytes of a sleeping process on a device, about: CUDA's context and the libraries' workspaces, and an engine's graphs."""
_WITHOUT_GRAPHS = ("enforce_eager", "disable_cuda_graph")


@dataclass(frozen=True, slots=True)
class Pass:
    """Memory that is needed only during a pass; passes of a role come one after the other."""

    name: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class RoleMemory:
    """Bytes on one device of the role."""

    role: str
    resident: tuple[Part, ...]
    passes: tuple[Pass, ...]
    asleep: int
    """Bytes that stay on the device while another role has its turn."""
    moved: int = 0
    """Bytes that wait in the host's memory meanwhile."""
    note: str = ""
    """The reason why nothing is known, or the parts that are not counted."""
    fault: str = ""
    """The reason why the role would not start."""

    @property
    def awake(self) -> int:
        return total(self.resident) + max((total(each.parts) for each in self.passes), default=0)


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Devices that carry the same roles."""

    devices: tuple[int, ...]
    roles: tuple[str, ...]
    bytes: int
    """Peak on one of these devices: the role whose turn it is, the other roles' remains, and the engines if they work at
    the same time."""


def drops_weights(config: PPOConfig, engines: RolePlan) -> bool:
    """Returns True if sleeping engines on an accelerator drop their weights."""
    return engine_of(engines.strategy).drops_weights and not adapter_updates(config)[0]


@dataclass(frozen=True, slots=True)
class RoleMemories:
    """Memory of each role, from the facts that all roles share."""

    config: PPOConfig
    derived: Derived
    accelerators: bool
    """`dtype: auto` is bf16 there, else fp32."""
    device_bytes: int | None = None
    """Memory of one of them, if known; vLLM takes a share of it."""

    def of(self, role: RolePlan, model: Model | str) -> RoleMemory:
        """`model`: the content of the role's folder, or why it is unknown."""
        worker = self.config.roles()[role.role]
        if isinstance(model, str):
            return RoleMemory(role.role, (), (), 0, note=model)
        found = self._of_model(role, worker, model, element_bytes(worker, self.accelerators))
        return replace(found, asleep=found.asleep + _of_process(role, worker)) if self.accelerators else found

    def _of_model(self, role: RolePlan, worker: WorkerConfig, model: Model, element: int) -> RoleMemory:
        if isinstance(worker, ActorTrainConfig | CriticConfig):
            return self._trained(role, worker, as_trained(model, worker), element)
        if isinstance(worker, ScoringConfig) and role.strategy not in ENGINES:
            return self._frozen(role, worker, model, element)
        return self._engine(role, worker, model, element)

    def _trained(self, role: RolePlan, worker: ActorTrainConfig | CriticConfig, model: Model, element: int) -> RoleMemory:
        """A critic's head of one output has no logits to speak of; the model's own head, if it is untied, is counted though it is
        left out."""
        derived, layout = self.derived, _layout(role, worker, element)
        rollouts = min(optimizer_batch_size(worker), derived.samples_per_step)
        share = -(-rollouts * self.config.samples_per_rollout // role.data)
        group = prompt_sharing(self.config, worker, derived.optimizer_steps_per_epoch)
        budget = worker.max_tokens_per_microbatch_in_train
        micro = memory.microbatch(budget, share, derived.sequence_length, derived.response_length, group)
        parts, passes = [_activations(worker, model, layout, micro, element)], []
        if model.sees:
            kept: memory.Kept = "all" if worker.model_args.disable_gradient_checkpointing else "inputs"
            kept = "none" if model.frozen or model.adapters is not None else kept
            parts.append(memory.images(model.sees, micro.asked, element, kept))
        if isinstance(worker, ActorTrainConfig):
            parts.append(self._head(worker, model, layout, micro, element, train=True))
            if derived.recompute_old_logprobs and self.config.actor_log_prob is None:
                passes.append(self._log_probs(role, worker, model, layout, element))
        resident = memory.trained_weights(model, layout, element)
        training = Pass("training a micro-batch", tuple(parts))
        asleep, moved = _asleep(worker, layout, resident, self.accelerators)
        lent = self._lent_buckets(model, element) if isinstance(worker, ActorTrainConfig) else []
        return RoleMemory(role.role, (*resident, *lent), (training, *passes), asleep + total(lent), moved)

    def _lent_buckets(self, model: Model, element: int) -> list[Part]:
        if not (self.accelerators and self.config.lends_weights):
            return []
        each = min(self.config.model_update_buffer_size_mb * MIB, element * model.parameters)
        return [Part("lent buckets", WINDOW * each, f"{WINDOW} buffers that the engines copy from")]

    def _frozen(self, role: RolePlan, worker: ScoringConfig, model: Model, element: int) -> RoleMemory:
        layout = _layout(role, worker, element)
        resident = memory.frozen_weights(model, layout, element)
        scoring = self._log_probs(role, worker, model, layout, element)
        return RoleMemory(role.role, tuple(resident), (scoring,), *_asleep(worker, layout, resident, self.accelerators))

    def _log_probs(
        self, role: RolePlan, worker: ActorTrainConfig | ScoringConfig, model: Model, layout: ModelLayout, element: int
    ) -> Pass:
        share = -(-self.derived.samples_per_step * self.config.samples_per_rollout // role.data)
        budget, group = worker.max_tokens_per_microbatch_in_infer, prompt_sharing(self.config, worker)
        micro = memory.microbatch(budget, share, self.derived.sequence_length, self.derived.response_length, group)
        parts = [self._head(worker, model, layout, micro, element, train=False)]
        parts += [memory.images(model.sees, micro.asked, element, "none")] if model.sees else []
        return Pass("log-probs of a micro-batch", tuple(parts))

    def _head(
        self, worker: WorkerConfig, model: Model, layout: ModelLayout, micro: Microbatch, element: int, train: bool
    ) -> Part:
        return memory.head(model, layout, micro, element, train, self.accelerators, worker.model_args.head_dtype is not None)

    def _engine(self, role: RolePlan, worker: WorkerConfig, model: Model, element: int) -> RoleMemory:
        """vLLM and SGLang take a share of the device and fill the rest of it, after the weights, with KV cache. Asleep they keep
        none of it (`sleep_arguments`); on CPUs they keep all."""
        engine = engine_of(role.strategy)
        if engine.memory_share is None:
            weights = memory.engine_weights(model, element, shadow=True)
            parts = self._cache(worker, model, element)
            return RoleMemory(role.role, (*weights, *parts), self._prefill(model, element), weights[0].bytes)
        if engine.cpu_cache_variable and not self.accelerators:
            return self._cpu_engine(role, worker, model, element)
        fp8, cache_fp8 = worker.strategy_args.engine.in_fp8
        (served,) = memory.engine_weights(model, element, shadow=False, tensor=role.tensor, fp8=fp8)
        given = worker.strategy_args.strategy_config
        asked = given.get(engine.share_argument)
        share = asked if isinstance(asked, (int, float)) else engine.memory_share
        asleep = (0, 0 if drops_weights(self.config, role) else served.bytes) if self.accelerators else (served.bytes, 0)
        if self.device_bytes is None:
            return RoleMemory(role.role, (served,), (), *asleep, note=f"and KV cache up to {share:g} of the device")
        left = max(0, int(share * self.device_bytes) - served.bytes)
        tokens = left * role.tensor // model.shape.kv_bytes(1 if cache_fp8 else element)
        cache = Part("KV cache", left, f"{share:g} of the device less the weights: about {tokens:,} tokens")
        return RoleMemory(role.role, (served, cache, *self.borrowed(role, model, element)), (), *asleep)

    def borrowed(self, role: RolePlan, model: Model, element: int) -> list[Part]:
        """Copy of a version that lies beside an engine's weights until it loads it, in the type that the trainer sends; this
        project's own engine has a second set for it."""
        whole, engine = role.tensor * role.pipeline == 1 and not adapter_updates(self.config)[0], engine_of(role.strategy)
        if not (self.accelerators and self.config.lends_weights and engine.package and whole):
            return []
        copies = Part("borrowed weights", element * model.parameters, "copied from the trainer's buckets until they are loaded")
        context = [Part("context of the worker", CONTEXT, "which copies them")] if engine.worker_copies else []
        return [copies, *context]

    def _cache(self, worker: WorkerConfig, model: Model, element: int) -> Iterator[Part]:
        """KV cache of hf_infer and, on an accelerator, its graphs; a model that sees, or a deterministic run, has none. On a CPU
        perhaps its output layer in float32."""
        options, config = worker.strategy_args.options, self.config
        given = options if isinstance(options, HFInferConfig) else HFInferConfig()
        sizes = model, self.derived.requests_per_engine, self.derived.sequence_length, element
        blocks = self.accelerators and element < memory.FP32 and config.images_dir is None
        yield (memory.kv_blocks if blocks else memory.kv_cache)(*sizes, given.kv_cache_tokens)
        if self.accelerators and given.cuda_graphs and not config.deterministic and config.images_dir is None:
            yield memory.decode_graphs(*sizes, blocks)
        if not self.accelerators and element < memory.FP32 and worker.model_args.head_dtype is not None:
            yield memory.engine_head(model)

    def _prefill(self, model: Model, element: int) -> tuple[Pass, ...]:
        """The vision tower, in the largest prefill."""
        if model.sees is None:
            return ()
        longest = self.derived.prompt_length
        places = min(max(memory.PREFILL_TOKENS, longest), self.derived.requests_per_engine * longest)
        return (Pass("seeing the images of a prefill", (memory.images(model.sees, places, element, "none"),)),)

    def _cpu_engine(self, role: RolePlan, worker: WorkerConfig, model: Model, element: int) -> RoleMemory:
        """On a CPU vLLM's KV cache has room for all running requests, unless its size is given; a share of memory is not read."""
        given = worker.strategy_args.strategy_config
        fp8, cache_fp8 = worker.strategy_args.engine.in_fp8
        (weights,) = memory.engine_weights(model, element, shadow=False, tensor=role.tensor, fp8=fp8)
        each = model.shape.kv_bytes(1 if cache_fp8 else element)
        requests, length = self.derived.requests_per_engine, self.derived.sequence_length
        tokens = cpu_cache_tokens(given, requests, length)
        formula, fault = f"{tokens:,} tokens × {each:,} B, for {requests} requests", ""
        cache = Part("KV cache", tokens * each, formula)
        if type(size := given.get(CACHE_BYTES)) is int:
            cache = Part("KV cache", size, f"{CACHE_BYTES}: about {size * role.tensor // each:,} tokens")
            if size < (least := -(-cpu_cache_tokens(given, 1, length) * each // role.tensor)):
                fault = f"{CACHE_BYTES} {size:,} has no room for a request of sequence_length {length:,}: at least {least:,}"
        return RoleMemory(role.role, (weights, cache), (), weights.bytes + cache.bytes, fault=fault)


def device_memory(roles: Sequence[RolePlan], memories: Sequence[RoleMemory]) -> list[DeviceMemory]:
    of_role = {each.role: each for each in memories}
    by_roles: dict[tuple[str, ...], list[int]] = {}
    for device in sorted({device for role in roles for device in role.devices}):
        by_roles.setdefault(tuple(role.role for role in roles if device in role.devices), []).append(device)
    beside = {role.role for role in roles if role.role == "actor_infer" and role.overlaps}
    return [DeviceMemory(tuple(devices), names, _peak(of_role, names, beside)) for names, devices in by_roles.items()]


def _peak(of_role: Mapping[str, RoleMemory], names: Sequence[str], beside: Collection[str]) -> int:
    """`beside`: the roles that are awake all the time."""
    in_turn = [name for name in names if name not in beside]
    asleep = sum(of_role[name].asleep for name in in_turn)
    most = max((of_role[name].awake + asleep - of_role[name].asleep for name in in_turn), default=0)
    return most + sum(of_role[name].awake for name in names if name in beside)


def _of_process(role: RolePlan, worker: WorkerConfig) -> int:
    """Returns the bytes of a sleeping process on a device, besides those of its model."""
    given, engine = worker.strategy_args.strategy_config, engine_of(role.strategy)
    eager = engine.memory_share is None or any(given.get(name) is True for name in _WITHOUT_GRAPHS)
    return CONTEXT + (0 if eager else GRAPHS)


def _asleep(
    worker: ActorTrainConfig | CriticConfig | ScoringConfig, layout: ModelLayout, resident: Sequence[Part], accelerators: bool
) -> tuple[int, int]:
    """Bytes that stay on a device while another role has its turn, and those that wait on the host: weights and the optimiser's
    state. DeepSpeed's flat buffers stay, so of a trained model only the moments go, of a divided frozen one nothing."""
    size = {part.name: part.bytes for part in resident}
    if not accelerators:
        return total(resident), 0
    options = worker.strategy_args.options
    moved = sum(size.get(name, 0) for name in ("weights", "frozen weights", "optimiser"))
    if not isinstance(options, DeepSpeedConfig):
        return 0, moved
    stage = options.zero_optimization.stage
    if isinstance(worker, TrainedConfig):
        moved = size.get("optimiser", 0) * 2 // (3 if layout.masters else 2) if stage > 0 else 0
    elif stage == 3:
        moved = 0
    return total(resident) - size.get("gathered", 0) - moved, moved


def _activations(
    worker: ActorTrainConfig | CriticConfig, model: Model, layout: ModelLayout, micro: Microbatch, element: int
) -> Part:
    recompute = not worker.model_args.disable_gradient_checkpointing
    attention: memory.Attention = "eager" if worker.model_args.attn_implementation == "eager" else "forest"
    if isinstance(worker.strategy_args.options, MegatronConfig):
        attention = "plain"
        recompute = recompute or worker.strategy_args.options.recompute_granularity == "full"
    return memory.activations(model, layout, micro, element, recompute, attention)


def _layout(role: RolePlan, worker: WorkerConfig, element: int) -> ModelLayout:
    """Returns the division of the model by the role's back end: see each `roll.strategies.train` module."""
    ranks, ulysses = role.data * role.context, worker.model_args.ulysses_size
    base = ModelLayout(data=ranks, tensor=role.tensor, pipeline=role.pipeline, ulysses=ulysses)
    options = worker.strategy_args.options
    if isinstance(options, DeepSpeedConfig):
        zero = options.zero_optimization
        return replace(
            base,
            shard_weights=zero.stage >= 3,
            shard_gradients=zero.stage >= 2,
            shard_optimizer=zero.stage >= 1,
            masters=zero.stage >= 1 or element < memory.FP32,
            optimizer_on_host=zero.offload_optimizer.device == "cpu",
            weights_on_host=zero.stage >= 3 and zero.offload_param.device == "cpu",
        )
    if isinstance(options, FSDP2Config):
        return replace(
            base,
            data=options.shards(ranks),
            shard_gradients=options.reduce_scatter_during_grad_accumulation,
            regathered=options.reshard_after_forward,
            masters=ranks == 1 and element < memory.FP32,
        )
    megatron = options if isinstance(options, MegatronConfig) else MegatronConfig()
    return replace(
        base,
        shard_weights=False,
        shard_gradients=False,
        shard_optimizer=megatron.use_distributed_optimizer,
        sequence_parallel=megatron.sequence_parallel,
        masters=element < memory.FP32,
    )


def as_trained(model: Model, worker: WorkerConfig) -> Model:
    """Returns the model as its trainer sees it: with `lora_target` only adapters are trained, with `freeze_vision` only the
    language model."""
    target, rank = worker.model_args.lora_target, worker.model_args.adapter_rank
    if target is not None:
        return replace(model, adapters=model.shape.adapter_parameters(target, rank), adapts_head=model.shape.adapts_head(target))
    return replace(model, frozen=model.sees.parameters) if model.sees and worker.model_args.freeze_vision else model
