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
from roll.strategies.infer.engine_argument import EXACT_LOGPROBS

SERIES = "0.5.23"
"""The update sessions and pause modes change between releases; this is the one that the tests run against."""
VARIABLE, USUAL = "SGLANG_PYTHON", Path(".venv-sglang", "bin", "python")
"""What names the interpreter of all engines, and where `make env-sglang` makes it."""
INSTALL = (
    f"install sglang=={SERIES} in an environment of its own: ./{USUAL} is found; another is named by {VARIABLE}, or by "
    "strategy_config: {python: ...}"
)
STARTUP_TIMEOUT_S = 600.0

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
    "speculative_algorithm": f"{EXACT_LOGPROBS}; drafted tokens have others",
    "quantization": "weight updates of a server that quantises are not tested; vllm has quantization: fp8",
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
    """What is taken here in the place of what the `strategy_args` of that key leave open."""
    if "python" not in given and (found := interpreter(None)):
        yield f"{key}: SGLang runs from {found}"


def check_folder(folder: str, given: Mapping[str, Any], dtype: str, device_kind: str) -> None:
    pass


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
    version: int,
) -> dict[str, object]:
    """All arguments of a server: the user's laid over our defaults, and the arguments that only this project sets."""
    kind = devices[0].partition(":")[0]
    defaults: dict[str, object] = {"load_format": "safetensors"}
    if kind == "cpu":
        # No CPU kernels are published: attention is torch's. The cache has room for what may run, instead of half the memory.
        defaults |= {"attention_backend": "torch_native", "max_total_tokens": max_running_requests * (max_length + 1)}
    return {
        **defaults,
        **{name: value for name, value in given.items() if name not in STRATEGY_KEYS},
        "model_path": model_path,
        "device": kind,
        "base_gpu_id": None if kind == "cpu" else 0,  # the server sees its own devices only
        "tp_size": len(devices),
        "dtype": dtype,
        "random_seed": seed,
        # One more: SGLang counts the token that would follow.
        "context_length": max_length + 1,
        "max_running_requests": max_running_requests,
        "weight_version": str(version),
        "skip_server_warmup": True,
        "log_level": "warning",
    }
