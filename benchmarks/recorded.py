"""Costs of vLLM's reports with each token, of the set that it was drawn from or of the experts that computed it: tokens/s
with and without, in turns in one run, and the bytes that a sample keeps of a token.

    python benchmarks/recorded.py [--rounds 5] [--slots 32] [--response 128]

The sets are those of a random model, whose distributions are far flatter than a trained one's: `top_k 50` stands for a usual
size, `top_p alone` for the widest. The mixture is tiny, so that its experts are many bytes beside little work.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from engines import make_model, make_prompts, save
from pipeline_run import save_results
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from roll.core.workers.infer_engines import make_infer_strategy
from roll.core.workers.infer_interface import GenerateRequest, GenerateResult, InferStrategy, SamplingParams

LAYERS, EXPERTS, EACH = 8, 32, 4


def mixture() -> Any:
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=4096,
        hidden_size=256,
        intermediate_size=512,
        moe_intermediate_size=128,
        num_hidden_layers=LAYERS,
        num_experts=EXPERTS,
        num_experts_per_tok=EACH,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=1024,
        bos_token_id=None,
        eos_token_id=None,
    )
    return Qwen3MoeForCausalLM(config).eval()


async def round_of(
    engine: InferStrategy, sampling: SamplingParams, vocabulary: int, slots: int
) -> tuple[float, list[GenerateResult]]:
    requests = [GenerateRequest(str(i), prompt, sampling) for i, prompt in enumerate(make_prompts(slots, vocabulary))]
    began = time.perf_counter()
    results = await asyncio.gather(*map(engine.generate, requests))
    return slots * sampling.max_new_tokens / (time.perf_counter() - began), list(results)


def bytes_of_a_token(results: list[GenerateResult]) -> float:
    total = 0
    for result in results:
        if (kept := result.extras.kept) is not None:
            total += kept.counts.nbytes + kept.ids.nbytes
        if (routes := result.extras.routes) is not None:
            total += routes.experts.nbytes
    return total / sum(len(result.token_ids) for result in results)


async def compare(
    name: str, sides: dict[str, tuple[InferStrategy, SamplingParams]], vocabulary: int, args: Any
) -> dict[str, Any]:
    for engine, sampling in sides.values():  # a round that is not counted
        await round_of(engine, replace(sampling, max_new_tokens=8), vocabulary, args.slots)
    speeds: dict[str, list[float]] = {side: [] for side in sides}
    cost = 0.0
    for _ in range(args.rounds):
        for side, (engine, sampling) in sides.items():
            speed, results = await round_of(engine, sampling, vocabulary, args.slots)
            speeds[side].append(speed)
            cost = bytes_of_a_token(results) or cost
    without, with_ = (statistics.median(each) for each in speeds.values())
    row = {"what": name, "without": without, "with": with_, "ratio": with_ / without, "bytes_per_token": cost}
    print(
        f"{name:32} {without:9,.0f} {with_:9,.0f} tokens/s   ratio {with_ / without:.3f}   {cost:9,.1f} bytes a token", flush=True
    )
    return row


async def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    longest = 24 + args.response
    options = {"max_running_requests": args.slots, "max_length": longest, "threads": 1}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        plain = SamplingParams(max_new_tokens=args.response)
        cuts = {"top_k 50, top_p 0.9": {"top_k": 50, "top_p": 0.9}, "top_p 0.9 alone": {"top_p": 0.9}}
        dense = make_model("50M")
        save(dense, folder)
        engine = make_infer_strategy("vllm", {"model_path": folder, **options})
        for name, cut in cuts.items():
            sampling = replace(plain, **cut)
            sides = {"without": (engine, sampling), "with": (engine, replace(sampling, with_kept=True))}
            rows.append(await compare(f"kept sets, 50M, {name}", sides, dense.config.vocab_size, args))
        await engine.close()
        folder = str(Path(folder) / "mixture")
        save(mixture(), folder)
        recording = {"engine_args": {"enable_return_routed_experts": True}}
        without, with_ = (make_infer_strategy("vllm", {"model_path": folder, **options, **more}) for more in ({}, recording))
        sides = {"without": (without, plain), "with": (with_, replace(plain, with_routes=True))}
        rows.append(await compare(f"experts, {LAYERS} layers, {EACH} of {EXPERTS}", sides, 4096, args))
        await asyncio.gather(without.close(), with_.close())
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--response", type=int, default=128)
    args = parser.parse_args()
    save_results("recorded", {"rows": asyncio.run(measure(args))})
    return 0


if __name__ == "__main__":
    sys.exit(main())
