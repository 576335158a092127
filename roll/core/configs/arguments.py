"""The `*_args` blocks of a role: model, optimiser, sampling, data and back end."""

from __future__ import annotations

import math
from dataclasses import dataclass
from posixpath import normpath
from typing import Any, Literal, get_args

from roll.core.configs.backend_arguments import Compiling, DeepSpeedConfig, MegatronConfig
from roll.core.configs.engines import ENGINES
from roll.core.configs.fields import Bounds, option
from roll.core.configs.sizes import Dtype

LRSchedulerType = Literal["constant", "linear", "cosine"]
AttentionName = Literal["sdpa", "eager"]
EngineName = Literal["hf_infer", "vllm", "sglang"]
StrategyName = Literal[
    EngineName, "fsdp2_train", "fsdp2_infer", "deepspeed_train", "deepspeed_infer", "megatron_train", "megatron_infer"
]
TRAINING_STRATEGIES = tuple(name for name in get_args(StrategyName) if name.endswith("_train"))
FROZEN_STRATEGIES = tuple(name for name in get_args(StrategyName) if name not in (*ENGINES, *TRAINING_STRATEGIES))
Template = Literal["native", "none", "chatml"]


@dataclass(frozen=True, kw_only=True)
class ModelArguments:
    model_name_or_path: str | None = option(None, "As `pretrain`, for this role; null means `pretrain`.", path="model")
    attn_implementation: AttentionName = option("sdpa", "Attention implementation of transformers.")
    dtype: Dtype = option("auto", "Compute type; auto means bf16 on an accelerator and fp32 on a CPU.")
    head_dtype: Literal["fp32"] | None = option(None, "fp32: logits are float32, of weights in `dtype`; null: rounded to it.")
    disable_gradient_checkpointing: bool = option(
        True, "False recomputes activations in the backward pass: less memory, about a third more time."
    )
    ulysses_size: int = option(1, "fsdp2, deepspeed: ranks that divide tokens, and in attention heads.", bounds=Bounds(ge=1))
    freeze_vision: bool = option(False, "A model that sees: true trains the part that writes alone, not the part that sees.")
    lora_target: str | None = option(
        None,
        "Linear layers that get LoRA adapters, the only weights trained then: names separated by commas (q_proj,v_proj), a "
        "regular expression of the whole path, or all-linear; null trains all weights.",
    )
    lora_rank: int | None = option(None, "LoRA: rank r of each adapter; null means 8.", bounds=Bounds(ge=1))
    lora_alpha: float | None = option(
        None, "LoRA: adapters are scaled by lora_alpha / lora_rank; null means 2 x lora_rank.", bounds=Bounds(gt=0)
    )
    lora_update: Literal["auto", "adapter", "merged"] = option(
        "auto",
        "LoRA: what a weight update sends.\n"
        "adapter: A and B alone, to engines that have the base (hf_infer, vllm).\n"
        "merged: all weights of the model.\n"
        "auto: adapters to hf_infer, which merges them, else merged weights.",
    )
    lora_dropout: float = option(
        0.0, "LoRA: must be 0: dropout makes the ratio of two log-probs depend on chance.", bounds=Bounds(ge=0, lt=1)
    )

    @property
    def adapter_rank(self) -> int:
        return 8 if self.lora_rank is None else self.lora_rank

    @property
    def adapter_alpha(self) -> float:
        return 2.0 * self.adapter_rank if self.lora_alpha is None else self.lora_alpha


@dataclass(frozen=True, kw_only=True)
class TrainingArguments:
    learning_rate: float = option(1e-6, "Peak learning rate of AdamW.", bounds=Bounds(gt=0))
    lr_scheduler_type: LRSchedulerType = option("linear", "Shape of the learning rate after the warm-up.")
    weight_decay: float = option(0.0, "Decoupled weight decay.", bounds=Bounds(ge=0))
    adam_beta1: float = option(0.9, "Decay of the first moment.", bounds=Bounds(ge=0, lt=1))
    adam_beta2: float = option(0.999, "Decay of the second moment.", bounds=Bounds(ge=0, lt=1))
    per_device_train_batch_size: int = option(
        8,
        "Samples of an optimiser step per data-parallel rank and accumulation step; micro-batches are cut by tokens.",
        bounds=Bounds(ge=1),
    )
    gradient_accumulation_steps: int = option(
        1, "Multiplies the samples of an optimiser step without changing the memory it needs.", bounds=Bounds(ge=1)
    )
    warmup_ratio: float = option(0.0, "Warm-up as a share of all optimiser steps.", bounds=Bounds(ge=0, lt=1))
    warmup_steps: int = option(0, "Warm-up in optimiser steps.", bounds=Bounds(ge=0))


@dataclass(frozen=True, kw_only=True)
class GeneratingArguments:
    """Sampling. The defaults sample from the whole distribution, so the sampled policy is the one that is trained."""

    temperature: float = option(1.0, "Divides the logits; 0 means greedy (validation only).", bounds=Bounds(ge=0))
    top_p: float = option(1.0, "Samples from the smallest set of tokens with this probability.", bounds=Bounds(gt=0, le=1))
    top_k: int = option(0, "Samples from this many most probable tokens; 0 means no limit.", bounds=Bounds(ge=0))
    max_new_tokens: int | None = option(None, "Longest response in tokens; null means the response length.", bounds=Bounds(ge=1))
    num_return_sequences: int | None = option(
        None,
        "Responses per prompt; null means `num_return_sequences_in_group` in training and 1 in validation.",
        bounds=Bounds(ge=1),
    )
    eos_token_id: int | list[int] | None = option(
        None,
        "Tokens that end a response, one id or a list, in the place of those that the model's files name: the end of text of "
        "the tokenizer, of generation_config.json and of config.json, and the padding token. []: none does.",
        bounds=Bounds(ge=0),
    )
    stop_strings: list[str] = option([], "A response ends where one of these texts appears.")
    include_stop_str_in_output: bool = option(
        True, "true: the text that rewards see ends after the stop string; false: before it. Its tokens stay either way."
    )

    @property
    def end_ids(self) -> tuple[int, ...] | None:
        """`eos_token_id` as a tuple; None if the model's folder decides."""
        given = [self.eos_token_id] if isinstance(self.eos_token_id, int) else self.eos_token_id
        return None if given is None else tuple(given)

    @property
    def truncates(self) -> bool:
        """True if tokens are sampled from a part of the distribution."""
        return self.temperature > 0 and (self.top_p < 1 or self.top_k > 0)


@dataclass(frozen=True, kw_only=True)
class ImageArguments:
    """Images in prompts, for a model that sees: parts of messages, or a column of them beside `<image>` in the text."""

    column: str = option("images", "Column with a list of images, in the order of the marks `<image>` in the row's text.")
    max_pixels: int | None = option(
        None,
        "Larger images are made so small before the model's own processor gets them; null: as they are.",
        bounds=Bounds(ge=1),
    )


@dataclass(frozen=True, kw_only=True)
class DataArguments:
    file_name: str | list[str] = option(
        [],
        "File or files of prompts: JSON Lines, or by their endings .csv, .tsv, .parquet, .arrow; one prompt a line, or a row.",
        path="file",
    )
    path: str | None = option(
        None,
        "Instead of file_name: a data set of the Hugging Face hub, owner/name, or a folder that `datasets` can load.",
        path="data set",
    )
    subset_name: str | None = option(None, "path: the data set's subset; null means its only one.")
    split: str = option("train", "path: the split.")
    revision: str | None = option(None, "path: commit, branch or tag of the data set; null means its newest commit.")
    template: Template = option(
        "native",
        "How a prompt becomes text.\n"
        "native: by the tokenizer's own chat template.\n"
        "none: the prompt's text as it stands.\n"
        "chatml (RLVR only): each message between <|im_start|> and <|im_end|>, for every tokenizer.",
    )
    system_prompt: str | None = option(
        None,
        "System message that leads each prompt; rows whose messages begin with one keep that. Not with template none.",
    )
    continue_final_message: bool = option(
        False,
        "true: the policy goes on from the answer that a row's messages end with, and rewards see both as one; false: such rows "
        "are refused.",
    )
    id: str = option("id", "Column with the row's identity; rows without it are called file:line.")
    tag: str = option("tag", "Column with the tag that selects the domain; where there is one tag only, rows may lack it.")
    default_tag: str | None = option(None, "Tag of the rows that have no such column.")
    prompt: str = option("prompt", "Column with the prompt text.")
    messages: str = option("messages", "Column with chat messages (a list, or JSON text).")
    ground_truth: str = option("ground_truth", "Column with the reference answer.")
    images: ImageArguments | None = option(
        None,
        "A model that sees: how rows of RLVR bring images; environments and programs may show some. Null: any is refused.",
    )

    @property
    def files(self) -> list[str]:
        return [self.file_name] if isinstance(self.file_name, str) else list(self.file_name)

    @property
    def named_twice(self) -> str | None:
        """A file that is listed twice, after normalisation of the paths; None if there is none."""
        paths = [normpath(file) for file in self.files]
        return next((file for i, file in enumerate(self.files) if paths[i] in paths[:i]), None)


@dataclass(frozen=True, kw_only=True)
class CurriculumConfig:
    """Serves each domain's easy prompts first. Every prompt is still served once per epoch."""

    column: str = option("difficulty", "Column with a number that says how hard a prompt is.")
    easiest: Literal["low", "high"] = option("low", "Which numbers are easy: low ones (a difficulty) or high ones (a pass rate).")
    spread: float = option(
        0.0, "How far a prompt may come before or after its place, at random, as a share of the epoch.", bounds=Bounds(ge=0, le=1)
    )
    epochs: int = option(1, "Epochs in this order; later ones are in random order.", bounds=Bounds(ge=1))


@dataclass(frozen=True, kw_only=True)
class PassRateConfig:
    """From its first visit on, a prompt takes part in an epoch with probability least + (1 - least) 4 p (1 - p), with p its
    measured pass rate: prompts that always pass, or never, teach nothing."""

    least: float = option(
        0.25, "Probability of a prompt that always passes, or never: 0.25 asks it every fourth epoch.", bounds=Bounds(gt=0, le=1)
    )
    visits: int = option(2, "A prompt's pass rate is that of its last so many visits.", bounds=Bounds(ge=1))


@dataclass(frozen=True, kw_only=True)
class TrainDataArguments(DataArguments):
    chat_template_kwargs: dict[str, Any] = option(
        {},
        "template native: variables of the tokenizer's chat template, e.g. {enable_thinking: false}, for all conversations of "
        "the run, validation and episodes included.",
    )
    curriculum: CurriculumConfig | None = option(None, "Which prompts of an epoch come first; null means a random order.")
    pass_rate_curriculum: PassRateConfig | None = option(
        None, "Which prompts an epoch leaves out, by the pass rates that this run has measured; null means none."
    )
    domain_interleave_probs: dict[str, float] = option(
        {},
        "Relative share of each domain in a batch; empty means equal shares, and a domain left out is only validated.",
        bounds=Bounds(gt=0),
    )


KV_GRANULE = 16
"""The KV cache of hf_infer holds a multiple of this many tokens per request, so all slots have the same memory alignment."""
KV_BLOCK = 256
"""On an accelerator it is in blocks of so many tokens, the fewest that FlashAttention 2 takes."""


@dataclass(frozen=True, kw_only=True)
class HFInferConfig:
    """`strategy_config` of hf_infer, the embedded continuous-batching engine."""

    kv_cache_tokens: int | None = option(
        None,
        "Tokens the KV cache of one engine may hold. On GPUs it is in blocks, and requests wait for free ones; on CPUs no more "
        "than kv_cache_tokens // sequence_length requests run at once.",
        bounds=Bounds(ge=1),
    )
    cuda_graphs: bool = option(True, "On GPUs a token step is one graph. false: thousands of launches.")


@dataclass(frozen=True, kw_only=True)
class FSDP2Config(Compiling):
    """`strategy_config` of fsdp2_train and fsdp2_infer."""

    reshard_after_forward: bool = option(
        True,
        "Free gathered weights after each layer's forward pass: less memory, one more all-gather in the backward pass. "
        "false: gather, and round, them once in an optimiser step.",
    )
    fsdp_size: int = option(
        -1,
        "So many devices, one after the other in device_mapping, divide the weights among them, and each such group has all of "
        "them. -1, or more than there are: all devices of the role. With those of a node layers are gathered within nodes, and "
        "gradients alone travel between them.",
        bounds=Bounds(ge=-1),
    )
    reduce_scatter_during_grad_accumulation: bool = option(
        True,
        "Sum gradients over the devices after each micro-batch. false: after the last one of an optimiser step; meanwhile each "
        "device holds the gradients of all weights.",
    )

    def shards(self, world_size: int) -> int:
        """Returns the number of shards of the weights."""
        return world_size if self.fsdp_size == -1 else min(self.fsdp_size, world_size)


PARALLEL_SIZES = ("tensor_parallel_size", "pipeline_parallel_size")
"""Their product is the number of devices of one engine."""
REPLICAS = "data_parallel_size"
"""A divisor of the number of engines, which are replicas of one another anyway."""
CACHE_BYTES = "kv_cache_memory_bytes"
"""vLLM's argument for the size of each device's KV cache."""


@dataclass(frozen=True, slots=True)
class EngineArguments:
    """`strategy_config` of an engine with hundreds of its own options, passed on unchanged. `prepare` checks their names against
    the installed engine, before any worker starts."""

    given: dict[str, Any]

    @property
    def devices_per_engine(self) -> int:
        sizes = [self.given.get(name, 1) for name in PARALLEL_SIZES]
        return math.prod(size for size in sizes if isinstance(size, int))

    @property
    def starts_empty(self) -> bool:
        """True if engines begin with random weights, and get the trainer's before they serve."""
        return self.given.get("load_format") == "dummy"

    @property
    def in_fp8(self) -> tuple[bool, bool]:
        """True for weights, and for the KV cache, in FP8."""
        weights, cache = (str(self.given.get(name)).startswith("fp8") for name in ("quantization", "kv_cache_dtype"))
        return weights, cache


TrainBackendConfig = FSDP2Config | DeepSpeedConfig | MegatronConfig
StrategyConfig = HFInferConfig | TrainBackendConfig
STRATEGY_CONFIGS: dict[str, type[StrategyConfig]] = {
    "hf_infer": HFInferConfig,
    "fsdp2_train": FSDP2Config,
    "fsdp2_infer": FSDP2Config,
    "deepspeed_train": DeepSpeedConfig,
    "deepspeed_infer": DeepSpeedConfig,
    "megatron_train": MegatronConfig,
    "megatron_infer": MegatronConfig,
}


@dataclass(frozen=True, kw_only=True)
class StrategyArguments:
    strategy_name: StrategyName = option("fsdp2_train", "Back end of the role.")
    strategy_config: dict[str, Any] = option(
        {},
        "Options of the back end; unknown ones are refused. vllm, sglang: the engine's own arguments.",
        schema_by=("strategy_name", STRATEGY_CONFIGS),
        path="options of an engine",
    )

    @property
    def options(self) -> StrategyConfig | EngineArguments:
        """`strategy_config` with the back end's defaults filled in."""
        own = STRATEGY_CONFIGS.get(self.strategy_name)
        return EngineArguments(self.strategy_config) if own is None else own(**self.strategy_config)

    @property
    def engine(self) -> EngineArguments:
        """The arguments of another project's engine; none where there is none."""
        return EngineArguments({} if self.strategy_name in STRATEGY_CONFIGS else self.strategy_config)
