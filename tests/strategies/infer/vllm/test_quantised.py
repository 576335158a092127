"""A vLLM engine whose weights and KV cache are in FP8: each version is quantised as it arrives.

The truth is a plain forward in float32 of the weights as FP8 rounds them, one scale for each output of a linear layer. An
engine in bf16 is within 0.02 nats of a plain forward in the mean; activations that are in FP8, too, cost a tenth of a nat in a
model as small as this; weights of another version are off by more than one.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
from tiny_models import FOR_VLLM, tiny_mixture, tiny_qwen2

from roll.core.configs.arguments import EngineArguments
from roll.strategies.infer.vllm.arguments import check_argument, check_folder, engine_arguments

pytest.importorskip("vllm", reason="needs requirements/vllm.txt")
pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("vllm"), pytest.mark.usefixtures("forked_engines")]

PROMPTS = [[1, 2, 3], [9, 8], [200, 100, 50, 25]]
LONGEST_FP8 = 448.0
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def model(seed: int) -> Any:
    return tiny_qwen2(256, seed=seed, **FOR_VLLM)


def rounded(seed: int) -> Any:
    """The model whose linear layers have the numbers that FP8 has."""
    made = model(seed)
    for name, weight in made.named_parameters():
        if name.removesuffix(".weight").endswith(LINEAR):
            scale = weight.detach().bfloat16().float().abs().amax(1, keepdim=True) / LONGEST_FP8
            weight.data = (weight.detach().bfloat16().float() / scale).to(torch.float8_e4m3fn).float() * scale
    return made


@pytest.mark.parametrize("cache", ["auto", "fp8"])
def test_each_version_is_quantised_as_it_arrives(lab: Any, tmp_path: Any, cache: str) -> None:
    from roll.core.workers.infer_engines import make_infer_strategy

    model(0).save_pretrained(tmp_path)
    lab.tokenizer().save_pretrained(tmp_path)
    given = {"quantization": "fp8", "kv_cache_dtype": cache}
    options = {"model_path": str(tmp_path), "max_running_requests": 8, "max_length": 128, "threads": 1, "dtype": "bfloat16"}
    versions = [0, 1, 2]

    async def respond() -> list[list[Any]]:
        engine: Any = make_infer_strategy("vllm", options | {"engine_args": given})
        found = []
        for version in versions:
            if version:
                buckets, manifest = lab.weights(model(version), version)
                for bucket in buckets:
                    await engine.receive_bucket(version, bucket)
                await engine.activate_weights(manifest, "interrupt")
            requests = [lab.request(f"{version}.{i}", prompt, max_new_tokens=80) for i, prompt in enumerate(PROMPTS)]
            found.append(await asyncio.gather(*map(engine.generate, requests)))
        await engine.close()
        return found

    def error(of: Any, results: list[Any]) -> float:
        parts = [
            (torch.tensor(result.logprobs) - lab.true_logprobs(of, prompt, result.token_ids)).abs()
            for prompt, result in zip(PROMPTS, results, strict=True)
        ]
        return float(torch.cat(parts).mean())

    for version, results in zip(versions, asyncio.run(respond()), strict=True):
        assert {span.version for result in results for span in result.versions} == {version}
        ours, exact, other = error(rounded(version), results), error(model(version), results), error(model(version + 1), results)
        assert 0.04 < ours < exact < 0.3 and other > 1, "its own version's weights, in FP8"


def test_what_cannot_be_quantised_is_refused_with_the_reason(tmp_path: Any) -> None:
    for value, reason in (("int8", "leaves dense layers as they are"), ("awq", "of a file")):
        with pytest.raises(ValueError, match=reason):
            check_argument(None, "quantization", value)
    tiny_qwen2(64, **FOR_VLLM).save_pretrained(tmp_path / "dense")
    tiny_mixture(64, **FOR_VLLM, head_dim=32).save_pretrained(tmp_path / "mixture")
    fp8 = {"quantization": "fp8"}
    check_folder(str(tmp_path / "dense"), fp8, "bfloat16", "cpu")
    check_folder(str(tmp_path / "mixture"), fp8, "bfloat16", "cuda")
    for folder, given, dtype, reason in (
        ("dense", fp8, "float32", "dtype: bf16"),
        ("dense", {"quantization": "fp8_per_tensor"}, "bfloat16", "no kernel"),
        ("dense", {"quantization": "fp8_per_block"}, "bfloat16", "AMX"),
        ("mixture", fp8, "bfloat16", "experts in FP8"),
    ):
        with pytest.raises(ValueError, match=reason):
            check_folder(str(tmp_path / folder), given, dtype, "cpu")


def test_a_cache_in_fp8_takes_half_the_room_of_one_in_bf16() -> None:
    sizes = {"dtype": "bfloat16", "seed": 0, "max_length": 256, "max_running_requests": 4, "cpu": True}
    config = tiny_qwen2(64, **FOR_VLLM).config
    whole, half = (
        engine_arguments("m", given, model=config, **sizes)["kv_cache_memory_bytes"] for given in ({}, {"kv_cache_dtype": "fp8"})
    )
    assert whole == 2 * half
    assert EngineArguments({"quantization": "fp8", "kv_cache_dtype": "auto"}).in_fp8 == (True, False)
