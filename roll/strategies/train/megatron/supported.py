"""Which models and layouts the Megatron back end takes. Known from the model's `config.json` alone, so before a worker starts."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from transformers import AutoConfig

MODEL_TYPES = ("llama", "qwen2", "qwen3")
ROPE_TYPES = ("default", "linear", "llama3")


def rope_type(hf_config: Any) -> str:
    parameters = getattr(hf_config, "rope_parameters", None) or {}
    return str(parameters.get("rope_type", "default"))


def check_folder(folder: str | Path, tensor_parallel: int, pipeline_parallel: int) -> None:
    """`check_model` of a Hugging Face folder, and whether Megatron is there at all."""
    if importlib.util.find_spec("megatron") is None:
        raise ValueError("megatron-core is not installed: pip install -r requirements/megatron.txt")
    check_model(AutoConfig.from_pretrained(folder, local_files_only=True), tensor_parallel, pipeline_parallel)


def check_model(hf_config: Any, tensor_parallel: int, pipeline_parallel: int) -> None:
    """Raises `ValueError`, naming what is not supported or does not divide."""
    kind = hf_config.model_type
    if kind not in MODEL_TYPES:
        experts = "mixtures of experts and " if "moe" in kind or getattr(hf_config, "num_experts", None) else ""
        raise ValueError(f"the Megatron back end does not support {experts}model_type '{kind}', only {', '.join(MODEL_TYPES)}")
    if rope_type(hf_config) not in ROPE_TYPES:
        raise ValueError(
            f"the Megatron back end does not support rope_type '{rope_type(hf_config)}', only {', '.join(ROPE_TYPES)}"
        )
    if hf_config.hidden_act != "silu":
        raise ValueError(f"the Megatron back end does not support hidden_act '{hf_config.hidden_act}', only silu")
    for name in ("attention_bias", "mlp_bias", "use_sliding_window"):
        if getattr(hf_config, name, False):
            raise ValueError(f"the Megatron back end does not support {name}: true")
    for name, size in (("num_attention_heads", tensor_parallel), ("num_key_value_heads", tensor_parallel)):
        if getattr(hf_config, name) % size:
            raise ValueError(f"tensor_model_parallel_size {size} does not divide the model's {name} {getattr(hf_config, name)}")
    if hf_config.intermediate_size % tensor_parallel:
        raise ValueError(
            f"tensor_model_parallel_size {tensor_parallel} does not divide the model's intermediate_size "
            f"{hf_config.intermediate_size}"
        )
    if hf_config.num_hidden_layers % pipeline_parallel:
        raise ValueError(
            f"pipeline_model_parallel_size {pipeline_parallel} does not divide the model's num_hidden_layers "
            f"{hf_config.num_hidden_layers}"
        )
