"""`head_dtype: fp32` of vLLM and SGLang, engines and teachers, against float64 of the weights as bfloat16 rounds them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from other_engines import ENGINES
from tiny_models import FOR_VLLM, tiny_qwen2

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("forked_engines")]

PROMPTS = [[1, 2, 3], [9, 8], [200, 100, 50, 25]]


def model(seed: int) -> Any:
    """Its layers add nothing, so that the hidden states are those of a norm, which vLLM rounds as transformers does but for a
    last bit here and there; logits are up to 30."""
    made = tiny_qwen2(256, seed=seed, **FOR_VLLM)
    for layer in made.model.layers:
        layer.self_attn.o_proj.weight.data.zero_()
        layer.mlp.down_proj.weight.data.zero_()
    made.model.norm.weight.data[::2] *= -1  # a token is not the most probable one after itself
    made.model.embed_tokens.weight.data *= 3.0
    return made.bfloat16()


@torch.no_grad()
def exact(of: Any, prompt: list[int], tokens: list[int]) -> torch.Tensor:
    hidden = of.model(torch.tensor([[*prompt, *tokens]])).last_hidden_state[0, len(prompt) - 1 : -1]
    logits = hidden.double() @ of.lm_head.weight.double().t()
    return logits.log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])[:, 0]


def distance(of: Any, prompt: list[int], tokens: Any, logprobs: Any) -> torch.Tensor:
    return (torch.as_tensor(logprobs).double() - exact(of, prompt, list(tokens))).abs()


def of_engine(name: str, python: str, folder: Path, **more: Any) -> dict[str, Any]:
    """Options; SGLang has an interpreter of its own."""
    options = {"model_path": str(folder), "max_running_requests": 8, "max_length": 128, "threads": 1, "dtype": "bfloat16"}
    return options | more | ({"engine_args": {"python": python}} if name == "sglang" else {})


@pytest.mark.parametrize("head_dtype", ["fp32", None])
@pytest.mark.parametrize(("name", "python"), ENGINES)
def test_log_probs_are_those_of_logits_that_are_not_rounded_in_each_version(
    lab: Any, tmp_path: Path, name: str, python: str, head_dtype: str | None
) -> None:
    from roll.core.workers.infer_engines import make_infer_strategy

    model(0).save_pretrained(tmp_path)
    lab.tokenizer().save_pretrained(tmp_path)
    options = of_engine(name, python, tmp_path, head_dtype=head_dtype)

    async def respond() -> list[list[Any]]:
        engine: Any = make_infer_strategy(name, options)
        found = []
        for version in (0, 1):
            if version:
                buckets, manifest = lab.weights(model(version), version)
                for bucket in buckets:
                    await engine.receive_bucket(version, bucket)
                await engine.activate_weights(manifest, "interrupt")
            requests = [lab.request(f"{version}.{i}", prompt, max_new_tokens=60) for i, prompt in enumerate(PROMPTS)]
            found.append(await asyncio.gather(*map(engine.generate, requests)))
        await engine.close()
        return found

    for version, results in enumerate(asyncio.run(respond())):
        of = model(version)
        off = torch.cat([distance(of, p, r.token_ids, r.logprobs) for p, r in zip(PROMPTS, results, strict=True)])
        assert float(off.mean()) < 1e-3 if head_dtype else float(off.mean()) > 5e-3


@pytest.mark.parametrize(("name", "python"), ENGINES)
def test_a_teacher_says_them_too(lab: Any, tmp_path: Path, name: str, python: str) -> None:
    from roll.strategies.score import make_teacher

    model(0).save_pretrained(tmp_path)
    lab.tokenizer().save_pretrained(tmp_path)
    more = {"max_tokens": 128, "top": 2, "temperature": 1.0, "seed": 0, "head_dtype": "fp32"}
    options = of_engine(name, python, tmp_path, **more)
    text = [5, 3, 8, 200, 17, 4, 90, 31]

    async def ask() -> Any:
        teacher = make_teacher(name, options)
        answer = await teacher.answer(text, list(range(1, len(text))))
        await teacher.close()
        return answer

    off = distance(model(0), text[:1], text[1:], asyncio.run(ask()).logprobs)
    assert float(off.mean()) < 1e-3
