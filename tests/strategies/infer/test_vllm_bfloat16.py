"""A bfloat16 engine takes the float32 weights of its trainer: on CPUs with AMX, which vLLM uses without asking for it."""

import asyncio

import pytest
import torch

pytest.importorskip("vllm", reason="needs requirements/vllm.txt")
pytestmark = [pytest.mark.timeout(200), pytest.mark.xdist_group("vllm")]


def test_log_probs_are_those_of_the_rounded_weights_before_and_after_an_update(lab, tmp_path):
    """A plain forward of the same rounded weights in float32 is the truth. A log-prob here is a few nats; what bfloat16 makes of
    the activations is off by some hundredths, other weights by nats."""
    from roll.strategies.infer import make_infer_strategy

    models = [lab.model("qwen3", seed, head_dim=32) for seed in (0, 1)]
    models[0].save_pretrained(tmp_path)
    lab.tokenizer().save_pretrained(tmp_path)
    buckets, manifest = lab.weights(models[1], version=1)
    options = {"model_path": str(tmp_path), "max_running_requests": 4, "max_length": 128, "threads": 1, "dtype": "bfloat16"}

    async def main():
        engine = make_infer_strategy("vllm", options)
        before = await engine.generate(lab.request("before", [1, 2, 3], max_new_tokens=60, seed=1))
        for bucket in buckets:
            await engine.receive_bucket(1, bucket)
        await engine.activate_weights(manifest, "interrupt")
        after = await engine.generate(lab.request("after", [1, 2, 3], max_new_tokens=60, seed=1))
        await engine.close()
        return before, after

    results = asyncio.run(main())
    rounded = [model.bfloat16().float() for model in models]
    for result, model, other in zip(results, rounded, reversed(rounded), strict=True):
        told = torch.tensor(result.logprobs)
        assert (told - lab.true_logprobs(model, [1, 2, 3], result.token_ids)).abs().mean() < 0.05
        assert (told - lab.true_logprobs(other, [1, 2, 3], result.token_ids)).abs().mean() > 0.5
