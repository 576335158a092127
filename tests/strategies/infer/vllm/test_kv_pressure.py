"""A real vLLM engine whose KV cache holds three responses, and eight are asked for at once; a step reads three prompts."""

import asyncio

import pytest
import torch

from roll.core.distributed.backend import WorkerSpec
from roll.core.distributed.cluster import Cluster
from roll.core.distributed.devices import Placement
from roll.core.engines.rollout_client import RolloutClient
from roll.core.engines.router import Router
from roll.platform.local_backend import LocalBackend

pytest.importorskip("vllm", reason="needs requirements/vllm.txt")
pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("vllm"), pytest.mark.usefixtures("forked_engines")]

ASKED, PROMPT, LONG = 8, 100, 200
BLOCKS_OF_A_RESPONSE = 3
"""Of 128 tokens, which is a block on CPUs; vLLM keeps one block of all for itself."""


def test_the_explorer_finds_out_how_many_responses_the_cache_holds(lab, tmp_path):
    """Preemption costs time and nothing else: every response is whole, and its log-probs are those of a plain forward."""
    model = lab.model("qwen3", head_dim=32)  # a size that vLLM's attention on CPUs knows
    model.save_pretrained(tmp_path)
    lab.tokenizer().save_pretrained(tmp_path)
    options = {
        "model_path": str(tmp_path),
        "max_running_requests": ASKED,
        "max_length": 320,
        "threads": 1,
        "engine_args": {"num_gpu_blocks_override": 3 * BLOCKS_OF_A_RESPONSE + 1, "max_num_batched_tokens": 320},
    }
    spec = WorkerSpec(
        "actor_infer-0",
        "roll.core.workers.workers.InferWorker",
        Placement(0, 1, (0,), 0, (0,), 1),
        {"strategy_name": "vllm", "options": options},
    )

    async def main():
        engines = await Cluster.start("actor_infer", LocalBackend(), [spec], 120)
        router = Router(1, ASKED)
        client = RolloutClient(engines, router, None, seed=0, keeper=None, expand=True)
        short, limits, rounds = [], [], []
        told = router.release

        def release(route, preempted=False):
            short[-1] += preempted
            return told(route, preempted)

        router.release = release
        for wave in range(4):
            short.append(0)
            prompts = [[wave, *[i] * (PROMPT - 1)] for i in range(ASKED)]
            requests = [lab.request(f"{wave}/{i}", p, max_new_tokens=LONG, seed=i) for i, p in enumerate(prompts)]
            rounds.append(await client.complete(f"p{wave}", requests))
            limits.append(router.limits[0])
        await engines.call_all("close")
        return short, limits, rounds

    short, limits, rounds = asyncio.run(main())
    assert short[0] > 0 and limits[0] < ASKED, "the first wave runs out of cache, and is told so"
    # The limit goes on probing: one shortage is told to all the responses that ran then, so a single wave says little.
    assert all(1 <= limit <= 4 for limit in limits[1:]), limits
    assert sum(short[1:]) < 3 * short[0], short
    for completion in (completion for wave in (rounds[0], rounds[-1]) for completion in wave):
        assert len(completion.token_ids) == LONG
        true = lab.true_logprobs(model, completion.request.prompt_ids, completion.token_ids, 1.0)
        assert (torch.tensor(completion.logprobs) - true).abs().max() < 1e-4
