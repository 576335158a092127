"""What is wrong with a vLLM role is said before any worker starts, without vLLM being imported."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from forked import Forks
from tiny_models import tiny_qwen2
from transformers import Qwen2Config

from roll.core.configs.arguments import StrategyArguments
from roll.core.configs.rlvr import RLVRConfig
from roll.core.workers.infer_interface import GenerateRequest, SamplingParams
from roll.plan.rules.loading import load_config
from roll.plan.rules.validation import check_config
from roll.platform import interpreters
from roll.strategies.infer.installed_engine import engine_problems
from roll.strategies.infer.vllm import arguments as vllm_arguments
from roll.strategies.infer.vllm.arguments import (
    OURS,
    argument_names,
    check_argument,
    check_folder,
    check_installed,
    engine_arguments,
)
from roll.strategies.infer.vllm.process import refusal

needs_vllm = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs requirements/vllm.txt")


def arguments(head_size: int = 64, cpu: bool = True, **given: Any) -> dict[str, Any]:
    model = Qwen2Config(hidden_size=head_size * 4, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=3)
    sizes = {"dtype": "bfloat16", "seed": 3, "max_length": 300, "max_running_requests": 4, "model": model}
    return engine_arguments("folder", given, **sizes, cpu=cpu)


@needs_vllm
@pytest.mark.parametrize(("asked", "cpu", "taken"), [(16, True, 32), (33, True, 64), (64, True, 64), (16, False, 16)])
def test_blocks_that_vllm_refuses_on_a_cpu_are_larger_there(asked: int, cpu: bool, taken: int) -> None:
    assert arguments(cpu=cpu, block_size=asked)["block_size"] == taken


@needs_vllm
def test_a_head_in_float32_is_asked_for_beside_the_users_overrides() -> None:
    model = Qwen2Config(hidden_size=256, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=3)
    sizes = {"dtype": "bfloat16", "seed": 3, "max_length": 300, "max_running_requests": 4, "model": model, "cpu": True}
    given = {"hf_overrides": {"rope_theta": 1e6}}
    assert engine_arguments("folder", given, **sizes, head_dtype="fp32")["hf_overrides"] == {
        "rope_theta": 1e6,
        "head_dtype": "float32",
    }
    assert engine_arguments("folder", {}, **sizes, head_dtype="fp32")["hf_overrides"] == {"head_dtype": "float32"}
    assert engine_arguments("folder", given, **sizes)["hf_overrides"] == {"rope_theta": 1e6}
    assert "hf_overrides" not in engine_arguments("folder", {}, **sizes)


def test_a_missing_vllm_is_named_with_the_series_that_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)  # as if it were not installed
    with pytest.raises(ValueError, match=r"needs vllm 0\.32, which is not installed"):
        check_installed()


@needs_vllm
@pytest.mark.parametrize(("found", "fits"), [("0.32.7", True), ("0.32.0+cpu", True), ("0.31.9", False), ("0.320.0", False)])
def test_only_the_series_that_is_tested_is_accepted(monkeypatch: pytest.MonkeyPatch, found: str, fits: bool) -> None:
    monkeypatch.setattr(interpreters, "version", lambda name: found)
    if fits:
        assert (check_installed() / "engine").is_dir()
    else:
        with pytest.raises(ValueError, match=rf"vllm {found} is installed, this project works with 0\.32"):
            check_installed()


@needs_vllm
def test_a_vllm_without_metadata_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(interpreters, "version", missing)
    with pytest.raises(ValueError, match="unknown version"):
        check_installed()


@needs_vllm
@pytest.mark.xdist_group("vllm")
def test_the_names_read_from_the_source_are_those_of_the_class(vllm_forks: Forks, tmp_path: Path) -> None:
    """In a process of its own, for importing vllm changes the process."""
    program = (
        "import dataclasses; from vllm.engine.arg_utils import AsyncEngineArgs\n"
        "print(*sorted(field.name for field in dataclasses.fields(AsyncEngineArgs) if field.name[0] != '_'))"
    )
    out = vllm_forks.run(["-c", program], tmp_path, os.environ, tmp_path / "log.txt")
    assert out.split("\n")[-2].split() == sorted(argument_names())


@needs_vllm
def test_every_argument_that_is_ours_exists() -> None:
    assert set(OURS) <= argument_names()
    assert set(arguments()) <= argument_names()


@needs_vllm
def test_unknown_and_reserved_arguments_are_refused_with_advice() -> None:
    for name in ("gpu_memory_utilization", "block_size", "tensor_parallel_size", "enable_sleep_mode"):
        check_argument(None, name, 1)
    with pytest.raises(ValueError, match="did you mean gpu_memory_utilization"):
        check_argument(None, "gpu_memory_utilisation", 0.5)
    with pytest.raises(ValueError, match="write max_running_requests"):
        check_argument(None, "max_num_seqs", 8)
    with pytest.raises(ValueError, match=r"strategy_config.trust_remote_code is not the user's"):
        arguments(trust_remote_code=True)


@needs_vllm
def test_weights_are_safetensors_or_come_from_the_trainer() -> None:
    assert arguments()["load_format"] == "safetensors"
    assert arguments(load_format="dummy")["load_format"] == "dummy"
    with pytest.raises(ValueError, match=r"load_format must be one of safetensors, dummy"):
        arguments(load_format="pt")


@needs_vllm
def test_a_size_of_the_cache_that_is_no_number_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM says "invalid literal for int()", after half a minute."""
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "4GB")
    (problem,) = engine_problems("actor_infer.strategy_args", StrategyArguments(strategy_name="vllm"))
    assert (problem.key, problem.value) == ("VLLM_CPU_KVCACHE_SPACE", "4GB") and "whole number of GiB" in problem.message


def test_what_vllm_refuses_is_named() -> None:
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("Arguments", enforce_eager=(bool, False))
    with pytest.raises(pydantic.ValidationError) as caught:
        model(enforce_eager="maybe")
    assert refusal(caught.value).startswith("enforce_eager: Input should be a valid boolean")
    assert refusal(ValueError("no such model")) == "no such model"


def test_another_interpreter_must_have_what_the_engine_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_installed(sys.executable) == check_installed()
    check_argument(sys.executable, "python", sys.executable)
    check_argument(sys.executable, "gpu_memory_utilization", 0.5)
    monkeypatch.setattr(vllm_arguments, "NEEDS", ("torch", "no_such_module"))
    with pytest.raises(ValueError, match=f"the engine needs no_such_module as well, not installed in {sys.executable}"):
        check_installed(sys.executable)


@needs_vllm
def test_the_cache_on_a_cpu_holds_all_running_requests_unless_the_user_says_otherwise() -> None:
    assert arguments()["kv_cache_memory_bytes"] == (4 * 3 + 1) * 128 * (2 * 3 * 2 * 64 * 2)  # 300 tokens: 3 blocks of 128
    given = arguments(kv_cache_memory_bytes=7, enable_prefix_caching=False)
    assert (given["kv_cache_memory_bytes"], given["enable_prefix_caching"], given["seed"]) == (7, False, 3)


@needs_vllm
def test_a_head_size_that_vllm_does_not_know_is_refused_on_cpus() -> None:
    with pytest.raises(ValueError, match="the model's have 8: use hf_infer"):
        arguments(head_size=8)


@needs_vllm
def test_the_batch_invariant_mode_is_refused_on_a_cpu_where_its_first_operation_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The mean of an RMS norm is the first. An engine would start, and die of it at its first request."""
    batch_invariant = pytest.importorskip("vllm.model_executor.determinism.batch_invariant")
    with pytest.raises(TypeError, match="'function' object is not subscriptable"):
        batch_invariant.mean_dim(pytest.importorskip("torch").ones(2, 3), 1)
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    with pytest.raises(ValueError, match="VLLM_BATCH_INVARIANT is 1: unset it; its operations are Triton's"):
        check_folder("no/folder", {}, "bf16", "cpu")
    tiny_qwen2(64).save_pretrained(tmp_path)
    check_folder(str(tmp_path), {}, "bf16", "cuda")


@needs_vllm
def test_requests_have_no_seed_unless_rounding_is_repeated_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A seed is a generator for each row, and the end of the fast sampler."""
    from vllm import envs

    from roll.strategies.infer.vllm.requests import vllm_sampling

    request = GenerateRequest("a", (1, 2), SamplingParams(seed=5))
    assert vllm_sampling(request, 3).seed is None
    monkeypatch.setattr(envs, "VLLM_BATCH_INVARIANT", True, raising=False)
    assert vllm_sampling(request, 3).seed == 5


def problems(infer: dict[str, Any], **top: Any) -> dict[str, str]:
    mapping = {
        "pretrain": "model",
        "rollout_batch_size": 8,
        "prompt_length": 8,
        "response_length": 8,
        "num_return_sequences_in_group": 8,
        "actor_train": {"device_mapping": "0", "data_args": {"file_name": "train.jsonl"}},
        "actor_infer": {"device_mapping": "1-3", "strategy_args": {"strategy_name": "vllm", "strategy_config": infer}},
        "rewards": {"math": {"worker_cls": "my.Math"}},
    }
    config = load_config(RLVRConfig, mapping | top)
    return {problem.key: str(problem) for problem in check_config(config, 4)}


@pytest.mark.parametrize(("engine", "key"), [("vllm", "enable_sleep_mode"), ("sglang", "enable_memory_saver")])
def test_engines_that_share_devices_cannot_do_without_giving_memory_back(engine: str, key: str) -> None:
    def refused(devices: str, value: bool) -> str | None:
        chosen = {"strategy_name": engine, "strategy_config": {key: value}}
        found = problems({}, actor_infer={"device_mapping": devices, "strategy_args": chosen})
        return found.get(f"actor_infer.strategy_args.strategy_config.{key}")

    assert "take turns with other roles" in (refused("0-3", False) or "")
    assert refused("0-3", True) is None and refused("1-3", False) is None


def test_sglang_cannot_be_told_to_run_ahead_of_updates_in_flight() -> None:
    key = "disable_overlap_schedule"

    def refused(mode: str, value: bool) -> str | None:
        chosen = {"strategy_name": "sglang", "strategy_config": {key: value}}
        found = problems({}, weight_update_mode=mode, actor_infer={"device_mapping": "1-3", "strategy_args": chosen})
        return found.get(f"actor_infer.strategy_args.strategy_config.{key}")

    assert "weight_update_mode: interrupt" in (refused("in_flight", False) or "")
    assert refused("in_flight", True) is None and refused("interrupt", False) is None


def test_rules_that_need_no_vllm() -> None:
    key = "actor_infer.strategy_args.strategy_config.tensor_parallel_size"
    assert problems({}) == {} == problems({"tensor_parallel_size": 3, "anything": {"of": "vLLM's"}})
    assert "3 devices of actor_infer do not divide into engines of 2" in problems({"tensor_parallel_size": 2})[key]
    parallel = {"tensor_parallel_size": 1, "pipeline_parallel_size": 2}
    assert "3 devices of actor_infer do not divide into engines of 2" in problems(parallel)[key.replace("tensor", "pipeline")]
    assert "integer >= 1" in problems({"tensor_parallel_size": 0})[key]
    assert "integer >= 1" in problems({"tensor_parallel_size": True})[key]
    assert "hf_infer" in problems({}, deterministic=True)["deterministic"]


def test_replicas_are_counted_by_the_devices() -> None:
    """Three devices: three engines of one."""
    key = "actor_infer.strategy_args.strategy_config.data_parallel_size"
    assert problems({"data_parallel_size": 3}) == {}
    assert "3 devices of actor_infer are 3 engines of 1" in problems({"data_parallel_size": 2})[key]
    assert "integer >= 1" in problems({"data_parallel_size": "two"})[key]
    assert "engines share nothing" in problems({"data_parallel_size": 3, "enable_expert_parallel": True})[key]


@needs_vllm
def test_what_is_not_for_vllm_does_not_reach_it() -> None:
    assert not {"python", "data_parallel_size"} & arguments(python="python3", data_parallel_size=2).keys()
