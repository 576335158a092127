"""SGLang's server arguments: which of them a user may give, and what this project gives.

SGLang lives in another interpreter, so the names are read from its source there; nothing of it is imported or started.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from roll.core.configs.problems import Problem
from roll.platform.interpreters import inspect_interpreter, usual
from roll.strategies.infer import engine_argument
from roll.strategies.infer.engine_argument import EXACT_LOGPROBS, with_head

SERIES = "0.5.23"
"""The update sessions and pause modes change between releases; this is the one that the tests run against."""
VARIABLE, USUAL = "SGLANG_PYTHON", Path(".venv-sglang", "bin", "python")
"""The variable with the interpreter of all engines, and the place where `make env-sglang` makes it."""
INSTALL = (
    f"install sglang=={SERIES} in an environment of its own: ./{USUAL} is found; another is named by {VARIABLE}, or by "
    "strategy_config: {python: ...}"
)
STARTUP_TIMEOUT_S = 600.0

ROUTES = "enable_return_routed_experts"
"""The argument of a server that records which experts computed a token."""
SPARE = 8
"""Places of its context that SGLang gives to nothing that it is to read, and one more."""

UNTIED = ("mixtral", "olmoe", "qwen2_moe", "qwen3_moe")
"""Types of models that SGLang has with an output layer of its own, whatever their configuration says."""
ALL_SPARSE = ("qwen2_moe", "qwen3_moe")
"""Types of models that SGLang has with experts in each layer, whatever their configuration says."""

LOADER = "roll.strategies.infer.sglang.loader.load_or_end"
"""What the server calls to load a version."""

STRATEGY_KEYS = ("python", "startup_timeout_s", "tensor_parallel_size")
"""The keys of `strategy_config` that are read here, and not by the server."""

OURS: dict[str, str] = {
    "model_path": "the model is actor_infer.model_args.model_name_or_path, or pretrain",
    "tokenizer_path": "the tokenizer is the model folder's",
    "skip_tokenizer_init": "stop strings need the tokenizer",
    "trust_remote_code": "code from model folders is never run",
    "host": "the server listens on loopback only",
    "port": "a free one is taken",
    "api_key": "each server has a random one",
    "admin_api_key": "each server has a random one",
    "grpc_port": "the server is spoken to over HTTP, which has a key",
    "tokenizer_worker_num": "the server checks its key only with one",
    "device": "it follows from device_mapping",
    "base_gpu_id": "it follows from device_mapping",
    "tp_size": "write tensor_parallel_size",
    "dp_size": "engines are counted by device_mapping",
    "pp_size": "an engine's devices are split by tensor_parallel_size",
    "nnodes": "an engine's devices are on one node",
    "dtype": "write actor_infer.model_args.dtype",
    "random_seed": "write seed",
    "context_length": "write sequence_length",
    "max_running_requests": "write max_running_requests at the top level",
    "weight_version": "it is the policy version",
    "custom_weight_loader": "weights are loaded by this project's",
    "startup_weight_load_mode": "SGLang has serial alone beside a custom_weight_loader, which is this project's",
    "speculative_algorithm": f"{EXACT_LOGPROBS}: on a CPU SGLang verifies drafts by the most probable token, whatever the "
    "temperature, and what it does on GPUs is not tested; vllm has speculative_config: {method: ngram, ...}",
    "quantization": "weight updates of a server that quantises are not tested; vllm has quantization: fp8",
    "sampling_mask_max_tokens": "it is the size of the vocabulary",
    "skip_server_warmup": "it is always on",
    "log_level": "errors show the server's log",
}
"""Arguments that are set here or have no place in a run, with the reason for the user."""


def interpreter(named: str | None) -> str | None:
    """The interpreter that was named; else that of the environment; else the usual one, where the run is started or beside the
    package. None if there is none."""
    found = usual("sglang")
    return named or os.environ.get(VARIABLE) or (None if found is None else str(found))


def check_installed(python: str | None) -> Path:
    """The folder of the SGLang that this interpreter has. `ValueError` if there is none, or one this project does not know."""
    if python is None:
        raise ValueError(f"SGLang runs from an interpreter of its own, which is not named, and there is no ./{USUAL}")
    seen = inspect_interpreter(python, "sglang", ["sglang"], [])
    if seen["folder"] is None:
        raise ValueError(f"{python} has no sglang")
    if seen["version"] != SERIES:
        raise ValueError(f"{python} has sglang {seen['version']}, this project works with {SERIES}")
    return Path(seen["folder"])


def environment_problems() -> Iterable[Problem]:
    return ()


def remarks(key: str, given: Mapping[str, Any], accelerators: bool) -> Iterator[str]:
    """Yields the choices made here for the `strategy_args` of that key, where these leave them open."""
    if "python" not in given and (found := interpreter(None)):
        yield f"{key}: SGLang runs from {found}"


def check_folder(folder: str, given: Mapping[str, Any], dtype: str, device_kind: str) -> None:
    """`ValueError` for a model of which SGLang would leave a part empty, without an error of its own."""
    from transformers import AutoConfig  # which takes a second

    config: Any = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    lacks = None
    if config.tie_word_embeddings and config.model_type in UNTIED:
        lacks = "tie_word_embeddings is true, and SGLang has an output layer of its own for such a model"
    elif config.model_type in ALL_SPARSE and (config.mlp_only_layers or config.decoder_sparse_step != 1):
        lacks = "there are layers without experts (mlp_only_layers, decoder_sparse_step), and SGLang gives some to each"
    if lacks:
        raise ValueError(f"{folder}/config.json: {lacks}, which nothing would fill: use hf_infer or vllm")


def check_argument(python: str | None, name: str, value: object) -> None:
    """`ValueError` with the reason if the user may not give it. `python`: the interpreter that has the engine."""
    engine_argument.check_argument(name, value, argument_names(python), STRATEGY_KEYS, OURS, "SGLang's server")


@cache
def argument_names(python: str | None) -> frozenset[str]:
    """The server's arguments, declared in groups by the interpreter's SGLang."""
    return engine_argument.declared((check_installed(python) / "srt" / "arg_groups" / "fields").glob("*.py"))


def server_arguments(
    model_path: str,
    given: Mapping[str, object],
    *,
    devices: Sequence[str],
    dtype: str,
    seed: int,
    max_length: int,
    max_running_requests: int,
    version: int = 0,
    most_kept: int | None = None,
    head_dtype: str | None = None,
) -> dict[str, object]:
    """All arguments of a server: the user's laid over our defaults, and the arguments that only this project sets. `most_kept`:
    tokens of a kept set. `head_dtype`: of the output layer, if not the layers'."""
    kind = devices[0].partition(":")[0]
    defaults: dict[str, object] = {"load_format": "safetensors"}
    if kind == "cpu":
        # No CPU kernels are published: attention is torch's. The cache has room for what may run, instead of half the memory.
        defaults |= {"attention_backend": "torch_native", "max_total_tokens": max_running_requests * (max_length + SPARE)}
    return {
        **defaults,
        **{name: value for name, value in with_head("sglang", given, head_dtype).items() if name not in STRATEGY_KEYS},
        "model_path": model_path,
        "device": kind,
        "base_gpu_id": None if kind == "cpu" else 0,  # the server sees its own devices only
        "tp_size": len(devices),
        "dtype": dtype,
        "random_seed": seed,
        "context_length": max_length + SPARE,
        "max_running_requests": max_running_requests,
        "weight_version": str(version),
        "custom_weight_loader": LOADER,
        "sampling_mask_max_tokens": most_kept,
        "skip_server_warmup": True,
        "log_level": "warning",
    }


def teaching_arguments(
    model_path: str, given: Mapping[str, object], *, max_tokens: int, devices: Sequence[str], **others: Any
) -> dict[str, object]:
    """Returns those of a server that says the log-probs of texts. `max_tokens`: of a batch; longer texts are read in parts.
    `others`: as `server_arguments`."""
    defaults: dict[str, object] = {"chunked_prefill_size": max_tokens}
    if devices[0] == "cpu":
        # By itself it takes off what a GPU would need for so large a batch; here the number of tokens bounds its cache.
        defaults["mem_fraction_static"] = 0.8
    return server_arguments(model_path, {**defaults, **given}, devices=devices, **others)
