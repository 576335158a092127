"""vLLM engines that cannot be the one of test_strategy.py: of two processes, bfloat16. One that starts without
weights, of another interpreter, is in a whole run (tests/integration/test_other_engines.py)."""

import asyncio

import pytest
import torch

from roll.core.errors import EngineError

pytest.importorskip("vllm", reason="needs requirements/vllm.txt")
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.slow,
    pytest.mark.xdist_group("vllm"),
    pytest.mark.usefixtures("forked_engines"),
]

PROMPT, LONG = [1, 2, 3], 60


@pytest.fixture
def before_and_after(lab, tmp_path):
    """Of an engine with these options: a response, an update to other weights, a response; and the models of both versions."""
    from roll.core.workers.infer_engines import make_infer_strategy

    models = [lab.model("qwen3", seed, head_dim=32) for seed in (0, 1)]
    models[0].save_pretrained(tmp_path)
    lab.tokenizer().save_pretrained(tmp_path)
    buckets, manifest = lab.weights(models[1], version=1)

    async def respond(options):
        engine = make_infer_strategy("vllm", {"model_path": str(tmp_path), "max_length": 128, "threads": 1, **options})
        results = [await engine.generate(lab.request("before", PROMPT, max_new_tokens=LONG, seed=1))]
        for bucket in buckets:
            await engine.receive_bucket(1, bucket)
        await engine.activate_weights(manifest, "interrupt")
        results.append(await engine.generate(lab.request("after", PROMPT, max_new_tokens=LONG, seed=1)))
        await engine.close()
        assert [result.versions for result in results] == [[(0, LONG, version, 0)] for version in (0, 1)]
        return results

    return lambda **options: (asyncio.run(respond({"max_running_requests": 4, **options})), models)


@pytest.mark.parametrize("split", ["tensor_parallel_size", "pipeline_parallel_size"])
def test_two_processes_tell_the_log_probs_of_one_model(lab, before_and_after, split):
    """Half of every layer in each, or half of the layers: to 1e-4 of a plain forward in float32. Another version's are off by
    nats. The size of blocks is one that files for GPUs have, and that vLLM refuses on a CPU."""
    results, models = before_and_after(engine_args={split: 2, "block_size": 16})
    for result, model in zip(results, models, strict=True):
        true = lab.true_logprobs(model, PROMPT, result.token_ids)
        assert (torch.tensor(result.logprobs) - true).abs().max() < 1e-4


def test_a_bfloat16_engine_takes_float32_weights(lab, before_and_after):
    """On CPUs with AMX, too, which vLLM uses without asking for it. A plain forward of the rounded weights in float32 is the
    truth: what bfloat16 makes of the activations is off by some hundredths, other weights by nats."""
    results, models = before_and_after(dtype="bfloat16")
    rounded = [model.bfloat16().float() for model in models]
    for result, model, other in zip(results, rounded, reversed(rounded), strict=True):
        told = torch.tensor(result.logprobs)
        assert (told - lab.true_logprobs(model, PROMPT, result.token_ids)).abs().mean() < 0.05
        assert (told - lab.true_logprobs(other, PROMPT, result.token_ids)).abs().mean() > 0.5


def test_an_engine_that_does_not_start_says_why(lab, before_and_after):
    """The last line tells what the engine's own process failed with, not that it failed."""
    with pytest.raises(EngineError, match="the vLLM engine did not start: ValueError: No available memory for the cache blocks"):
        before_and_after(engine_args={"kv_cache_memory_bytes": 1000})
