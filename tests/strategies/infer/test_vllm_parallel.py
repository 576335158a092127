"""A vLLM engine of two processes: half of every layer in each, or half of the layers."""

import asyncio

import pytest
import torch

pytest.importorskip("vllm", reason="needs requirements/vllm.txt")
pytestmark = [pytest.mark.timeout(300), pytest.mark.slow, pytest.mark.xdist_group("vllm")]


@pytest.mark.parametrize("split", ["tensor_parallel_size", "pipeline_parallel_size"])
def test_log_probs_are_the_models_before_and_after_an_update(lab, tmp_path, split):
    """To 1e-4 of a plain forward in float32; another version's are off by nats."""
    from roll.strategies.infer import make_infer_strategy

    models = [lab.model("qwen3", seed, tied=True, head_dim=32) for seed in (0, 1)]
    models[0].save_pretrained(tmp_path)
    lab.tokenizer().save_pretrained(tmp_path)
    buckets, manifest = lab.weights(models[1], version=1)
    options = {"model_path": str(tmp_path), "max_running_requests": 4, "max_length": 128, "threads": 1, "engine_args": {split: 2}}

    async def main():
        engine = make_infer_strategy("vllm", options)
        before = await engine.generate(lab.request("before", [1, 2, 3], max_new_tokens=60, seed=1))
        for bucket in buckets:
            await engine.receive_bucket(1, bucket)
        await engine.activate_weights(manifest, "interrupt")
        after = await engine.generate(lab.request("after", [1, 2, 3], max_new_tokens=60, seed=1))
        await engine.close()
        return before, after

    for version, result in enumerate(asyncio.run(main())):
        assert result.versions == [(0, 60, version, 0)]
        true = lab.true_logprobs(models[version], [1, 2, 3], result.token_ids)
        assert (torch.tensor(result.logprobs) - true).abs().max() < 1e-4
