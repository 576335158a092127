"""`strategy_config` of the training back ends, and its rules.

megatron_train, megatron_infer: the division of the model among the ranks, and recomputation. Ranks are numbered in Megatron's
order: tensor-parallel ranks first, then data-parallel ones, then pipeline stages.

deepspeed_train, deepspeed_infer: the keys of a DeepSpeed JSON, as in ROLL's `${deepspeed_zero3}`. Settings of the run (batch
sizes, optimiser, schedule, clipping, number type) are other keys of the role; their places in the JSON are read only to refuse a
contradicting value."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from roll.core.configs.fields import Bounds, option
from roll.core.configs.sizes import Dtype

_SIZE = Bounds(ge=1)
Auto = Literal["auto"]


@dataclass(frozen=True, kw_only=True)
class Compiling:
    compile: bool | Auto = option(
        "auto", "Decoder layers and the head are compiled by torch.compile, which takes seconds at first; auto: on accelerators."
    )

    def compiles(self, accelerator: bool) -> bool:
        return accelerator if self.compile == "auto" else self.compile


@dataclass(frozen=True, kw_only=True)
class MegatronConfig(Compiling):
    tensor_model_parallel_size: int = option(1, "Ranks that divide each layer's matrices.", bounds=_SIZE)
    pipeline_model_parallel_size: int = option(1, "Ranks that divide the layers, as stages of a 1F1B pipeline.", bounds=_SIZE)
    account_for_embedding_in_pipeline_split: bool = option(
        False, "The embedding counts as a layer of the first stage: it has one layer less than the others."
    )
    account_for_loss_in_pipeline_split: bool = option(
        False, "The output layer counts as a layer of the last stage: it has one layer less than the others."
    )
    context_parallel_size: int = option(
        1, "Ranks that divide each sequence among them; keys and values are gathered layer by layer.", bounds=_SIZE
    )
    expert_model_parallel_size: int = option(
        1, "Mixtures of experts: ranks that divide the experts of each layer; must divide their number.", bounds=_SIZE
    )
    expert_tensor_parallel_size: int | None = option(
        None, "Mixtures of experts: ranks that divide each expert's matrices; null: tensor_model_parallel_size.", bounds=_SIZE
    )
    sequence_parallel: bool = option(
        False, "The ranks of tensor parallelism divide the tokens between its matrices as well: less memory for activations."
    )
    use_distributed_optimizer: bool = option(
        True, "Data-parallel ranks divide masters and moments among them (ZeRO 1), instead of each keeping all."
    )
    overlap_grad_reduce: bool = option(False, "Reduce gradients over data-parallel ranks while the backward pass goes on.")
    recompute_granularity: Literal["full", "selective"] | None = option(
        None,
        "Recompute in the backward pass: full, whole layers; selective, attention; null: as disable_gradient_checkpointing says.",
    )
    recompute_method: Literal["uniform", "block"] | None = option(
        None, "full only. uniform (null): all layers, in chunks; block: the first layers of a stage."
    )
    recompute_num_layers: int | None = option(
        None, "full only: layers of a chunk (uniform), or how many of a stage (block); null: 1.", bounds=_SIZE
    )

    def data_parallel_rank(self, rank: int, world_size: int) -> int:
        """Returns the data-parallel rank of a rank; ranks that divide one model among them have the same one."""
        return rank // (self.tensor_model_parallel_size * self.context_parallel_size) % (world_size // self.ranks_per_model)

    @property
    def ranks_per_model(self) -> int:
        return self.tensor_model_parallel_size * self.pipeline_model_parallel_size * self.context_parallel_size

    @property
    def expert_tensor_parallel(self) -> int:
        return self.expert_tensor_parallel_size or self.tensor_model_parallel_size


_ELEMENTS = Bounds(ge=1)


@dataclass(frozen=True, kw_only=True)
class OffloadConfig:
    device: Literal["none", "cpu"] = option("none", "Where it is kept: none, on the accelerator; cpu, in the host's memory.")
    pin_memory: bool = option(True, "Page-locked host memory: faster copies.")


@dataclass(frozen=True, kw_only=True)
class ZeroConfig:
    """`zero_optimization`. Sizes are numbers of elements; auto means DeepSpeed's own default."""

    stage: Literal[0, 1, 2, 3] = option(
        2, "What the ranks divide among them: 1 optimiser state, 2 gradients too, 3 weights too, 0 nothing."
    )
    overlap_comm: bool | Auto = option("auto", "Reduce gradients while the backward pass goes on.")
    contiguous_gradients: bool | Auto = option("auto", "Copy gradients into one buffer as they come.")
    reduce_scatter: bool | Auto = option("auto", "Stages 1, 2: reduce each gradient to its owner only.")
    reduce_bucket_size: float | Auto = option("auto", "Elements reduced at a time.", bounds=_ELEMENTS)
    allgather_partitions: bool | Auto = option("auto", "Stages 1, 2: gather new weights by all-gather, not by broadcasts.")
    allgather_bucket_size: float | Auto = option("auto", "Stages 1, 2: elements gathered at a time.", bounds=_ELEMENTS)
    round_robin_gradients: bool | Auto = option("auto", "Stages 1, 2: spread the copying of offloaded gradients over the ranks.")
    sub_group_size: float | Auto = option("auto", "Stage 3: elements updated at a time.", bounds=_ELEMENTS)
    stage3_prefetch_bucket_size: float | Auto = option("auto", "Stage 3: elements gathered ahead of use.", bounds=Bounds(ge=0))
    stage3_param_persistence_threshold: float | Auto = option(
        "auto", "Stage 3: parameters with fewer elements are not divided.", bounds=Bounds(ge=0)
    )
    stage3_max_live_parameters: float | Auto = option("auto", "Stage 3: most elements gathered together.", bounds=Bounds(ge=0))
    stage3_max_reuse_distance: float | Auto = option(
        "auto", "Stage 3: gathered weights stay if used again within so many elements.", bounds=Bounds(ge=0)
    )
    stage3_gather_16bit_weights_on_model_save: bool = option(
        True, "Accepted, no effect: checkpoints always hold whole weights, gathered one by one."
    )
    offload_optimizer: OffloadConfig = option(OffloadConfig(), "Stages 1 to 3: masters, moments and the optimiser's step.")
    offload_param: OffloadConfig = option(OffloadConfig(), "Stage 3: the weights.")


@dataclass(frozen=True, kw_only=True)
class Bf16Config:
    enabled: bool | Auto = option("auto", "auto: as model_args.dtype says; true where that is auto: bf16.")


@dataclass(frozen=True, kw_only=True)
class DeepSpeedConfig(Compiling):
    zero_optimization: ZeroConfig = option(ZeroConfig(), "ZeRO.")
    bf16: Bf16Config = option(Bf16Config(), "Mixed precision.")
    fp16: dict[str, Any] = option({}, "Accepted where `enabled` is false or auto: training is bf16 or fp32.")
    train_batch_size: int | Auto = option("auto", "auto: micro-batches are cut by tokens (max_tokens_per_microbatch_in_train).")
    train_micro_batch_size_per_gpu: int | Auto = option("auto", "auto, as train_batch_size.")
    gradient_accumulation_steps: int | Auto = option("auto", "auto: training_args.gradient_accumulation_steps.")
    gradient_clipping: float | Auto = option("auto", "auto: max_grad_norm.")
    optimizer: dict[str, Any] | None = option(None, "null: AdamW as training_args says.")
    scheduler: dict[str, Any] | None = option(None, "null: training_args.lr_scheduler_type.")
    zero_allow_untested_optimizer: bool = option(True, "true: torch's AdamW is used, which DeepSpeed does not list.")
    zero_force_ds_cpu_optimizer: bool = option(False, "false: DeepSpeed's own CPU Adam needs a compiler at run time.")

    def zero_json(self) -> dict[str, Any]:
        """`zero_optimization` as DeepSpeed reads it."""
        zero = {name: value for name, value in asdict(self.zero_optimization).items() if value != "auto"}
        for name, value in list(zero.items()):
            if isinstance(value, float):
                zero[name] = int(value)
            elif isinstance(value, dict) and value["device"] == "none":
                del zero[name]
        return zero

    def computed_in(self, dtype: Dtype) -> Dtype:
        """Returns the number type: `bf16.enabled` decides if `dtype` of `model_args` is auto; contradictions are refused."""
        enabled = self.bf16.enabled
        return dtype if dtype != "auto" or enabled == "auto" else "bf16" if enabled else "fp32"
