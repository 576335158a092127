"""Models and layouts that the Megatron back end supports. The model's `config.json` decides it, before a worker starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from roll.core.configs.backend_arguments import MegatronConfig

DENSE = ("llama", "qwen2", "qwen3")
MIXTURES = ("qwen2_moe", "qwen3_moe")
ROPE_TYPES = ("default", "linear", "llama3")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelLayout:
    """The number of parts that a model is divided into, for each kind of parallelism."""

    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    expert_tensor: int = 1
    """Ranks that divide the matrices of one expert."""
    # Which layers a stage has is not compared: the groups of ranks, which a process has once, are the same.
    embedding_as_layer: bool = field(default=False, compare=False)
    """The first stage's embedding counts as one of the layers that the stages share equally."""
    output_as_layer: bool = field(default=False, compare=False)
    """So does the last stage's output layer."""

    @classmethod
    def of(cls, options: MegatronConfig) -> ParallelLayout:
        return cls(
            tensor=options.tensor_model_parallel_size,
            pipeline=options.pipeline_model_parallel_size,
            context=options.context_parallel_size,
            expert=options.expert_model_parallel_size,
            expert_tensor=options.expert_tensor_parallel,
            embedding_as_layer=options.account_for_embedding_in_pipeline_split,
            output_as_layer=options.account_for_loss_in_pipeline_split,
        )

    def check_ranks(self, ranks: int) -> None:
        """Raises `ValueError` if so many ranks cannot be divided like this."""
        model = self.tensor * self.pipeline * self.context
        if ranks % model:
            raise ValueError(
                f"{ranks} ranks are not a multiple of tensor_model_parallel_size {self.tensor} x "
                f"pipeline_model_parallel_size {self.pipeline} x context_parallel_size {self.context}"
            )
        experts = self.expert * self.expert_tensor * self.pipeline
        if ranks % experts:
            raise ValueError(
                f"{ranks} ranks are not a multiple of expert_model_parallel_size {self.expert} x expert_tensor_parallel_size "
                f"{self.expert_tensor} x pipeline_model_parallel_size {self.pipeline}"
            )

    @property
    def experts_span_batches(self) -> bool:
        """Ranks that exchange tokens in the layers of experts may have different micro-batches, and different numbers of them."""
        return self.expert > 1 or self.tensor * self.context % self.expert_tensor != 0

    def check_device(self, kind: str) -> None:
        """Raises `ValueError` if the collectives of this kind of device, cpu or cuda, do not support the layout."""
        if kind == "cpu" and self.expert_tensor > 1 and (self.expert > 1 or self.expert_tensor > self.tensor):
            raise ValueError(
                f"expert_tensor_parallel_size {self.expert_tensor} with expert_model_parallel_size {self.expert} and "
                f"tensor_model_parallel_size {self.tensor} needs GPUs: "
                "gloo gathers no tensors of unequal sizes; set expert_tensor_parallel_size: 1"
            )


def rope_type(hf_config: object) -> str:
    parameters = getattr(hf_config, "rope_parameters", None) or {}
    return str(parameters.get("rope_type", "default"))


def mixture_layers(hf_config: Any) -> list[bool]:
    """The indices of the layers that are mixtures of experts."""
    layers = range(hf_config.num_hidden_layers)
    if hf_config.model_type not in MIXTURES:
        return [False for _ in layers]
    return [i not in hf_config.mlp_only_layers and (i + 1) % hf_config.decoder_sparse_step == 0 for i in layers]


def check_folder(folder: str | Path, layout: ParallelLayout, sequence_parallel: bool, device_kind: str) -> None:
    """`check_model` of a Hugging Face folder, and `check_device`."""
    layout.check_device(device_kind)
    check_model(AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False), layout, sequence_parallel)


def check_model(hf_config: Any, layout: ParallelLayout, sequence_parallel: bool = False) -> None:
    """Raises `ValueError`, naming the feature that is not supported, or the size that does not divide."""
    kind = hf_config.model_type
    if kind not in DENSE + MIXTURES:
        raise ValueError(f"the Megatron back end does not support model_type '{kind}', only {', '.join(DENSE + MIXTURES)}")
    if rope_type(hf_config) not in ROPE_TYPES:
        raise ValueError(
            f"the Megatron back end does not support rope_type '{rope_type(hf_config)}', only {', '.join(ROPE_TYPES)}"
        )
    if hf_config.hidden_act != "silu":
        raise ValueError(f"the Megatron back end does not support hidden_act '{hf_config.hidden_act}', only silu")
    for name in ("attention_bias", "mlp_bias", "use_sliding_window"):
        if getattr(hf_config, name, False):
            raise ValueError(f"the Megatron back end does not support {name}: true")
    mixtures = mixture_layers(hf_config)
    divided = [(name, "tensor_model_parallel_size", layout.tensor) for name in ("num_attention_heads", "num_key_value_heads")]
    _check_stages(hf_config.num_hidden_layers, layout)
    if not all(mixtures):
        divided.append(("intermediate_size", "tensor_model_parallel_size", layout.tensor))
    if any(mixtures):
        _check_mixture(hf_config, layout, sequence_parallel)
        divided.append(("num_experts", "expert_model_parallel_size", layout.expert))
        divided.append(("moe_intermediate_size", "expert_tensor_parallel_size", layout.expert_tensor))
        if kind == "qwen2_moe":
            divided.append(("shared_expert_intermediate_size", "tensor_model_parallel_size", layout.tensor))
    elif layout.expert > 1:
        raise ValueError(f"expert_model_parallel_size {layout.expert}: model_type '{kind}' has no experts; remove it")
    for name, size_name, size in divided:
        if getattr(hf_config, name) % size:
            raise ValueError(f"{size_name} {size} does not divide the model's {name} {getattr(hf_config, name)}")


def _check_stages(layers: int, layout: ParallelLayout) -> None:
    """Raises `ValueError` unless every stage has as many layers, those counted in for the embedding and the output included."""
    counted = {
        "num_hidden_layers": layers,
        "embedding": int(layout.embedding_as_layer),
        "output layer": int(layout.output_as_layer),
    }
    total, terms = sum(counted.values()), [f"{name} {count}" for name, count in counted.items() if count]
    if total % layout.pipeline:
        raise ValueError(f"pipeline_model_parallel_size {layout.pipeline} does not divide the model's {' + '.join(terms)}")
    if total == layout.pipeline > layers:
        raise ValueError(f"pipeline_model_parallel_size {layout.pipeline} leaves a stage of {' + '.join(terms)} without a layer")


def _check_mixture(hf_config: Any, layout: ParallelLayout, sequence_parallel: bool) -> None:
    if layout.tensor > 1 and not sequence_parallel:
        raise ValueError(
            f"a mixture of experts with tensor_model_parallel_size {layout.tensor} needs sequence_parallel: true: every rank "
            "would send every token to the experts"
        )
    if getattr(hf_config, "qkv_bias", None) is False:
        raise ValueError("the Megatron back end does not support qkv_bias: false")
    if hf_config.num_experts_per_tok == 1 and hf_config.norm_topk_prob:
        raise ValueError("the Megatron back end does not support norm_topk_prob with one expert a token: its weight is always 1")
