"""Weights in FP8: vLLM quantises each version as it arrives, one scale for each output of a linear layer (`fp8_per_channel`,
which is its one method that CPUs with and without AMX have as well). Embedding, output layer, norms and routers stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

METHODS = {"fp8": "fp8_per_channel"} | {name: name for name in ("fp8_per_channel", "fp8_per_tensor", "fp8_per_block")}
"""The user's name and vLLM's. Its own `fp8` has one scale a tensor."""
_INT8 = (
    "vLLM quantises online to INT8 the experts of a mixture alone, on CPUs those with AMX, and leaves dense layers as they are"
)
_OTHERS = {"int8": _INT8, "int8_per_channel_weight_only": _INT8}
_NO_KERNEL = {
    "fp8_per_tensor": "vLLM has no kernel for it on CPUs",
    "fp8_per_block": "vLLM has a kernel for it on CPUs with AMX alone, which is not tested",
}


def check_quantization(value: object) -> None:
    """`ValueError` for a method whose weights cannot be replaced by a trainer's."""
    if value is not None and value not in METHODS:
        reason = _OTHERS.get(str(value), "its weights are of a file that is quantised already, and those of a trainer are not")
        raise ValueError(f"is not one of {', '.join(METHODS)}: {reason}")


def quantization_of(given: Mapping[str, Any]) -> dict[str, str]:
    """vLLM's argument for the user's."""
    return {"quantization": METHODS[given["quantization"]]} if given.get("quantization") else {}


def check_quantised(given: Mapping[str, Any], model: Any, dtype: str, device_kind: str) -> None:
    """`ValueError` where the weights of the model (its transformers configuration) cannot be in FP8. `dtype`: what the engine
    computes in."""
    method = quantization_of(given).get("quantization")
    if method is None:
        return
    if dtype == "float32":
        raise ValueError("quantization: FP8 is for engines in bf16, and this one computes in fp32: write model_args.dtype: bf16")
    if device_kind == "cpu" and method in _NO_KERNEL:
        raise ValueError(f"quantization: {method}: {_NO_KERNEL[method]}; fp8 is there")
    if device_kind == "cpu" and (getattr(model, "num_experts", None) or getattr(model, "num_local_experts", None)):
        raise ValueError("quantization: vLLM has no kernel for experts in FP8 on this CPU; it has one for dense models")
