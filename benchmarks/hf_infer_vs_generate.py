"""`hf_infer` against `model.generate` of the same model, alternating in one run on one torch thread: prints a table.

Two loads: equal lengths (one batch, every response the same length) and long-tailed lengths (log-normal; `generate` takes
batches of `--slots` requests, each batch running to its longest response, the engine keeps that many slots busy). Both sides
sample at temperature 1; the engine also returns the log-prob of every token, `generate` does not. tokens/s counts the tokens
asked for, not those generated beyond. `--group 1` takes away the advantage of prefilling the prompt of a group once.

    python benchmarks/hf_infer_vs_generate.py [--rounds 3] [--slots 64]
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from roll.core.workers.infer_interface import GenerateRequest, SamplingParams
from roll.strategies.infer.hf.strategy import HFInferStrategy

PROMPT = 24


def small_model(max_length: int) -> Any:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=max_length,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    return Qwen2ForCausalLM(config).eval()


def log_normal_lengths(count: int, median: float, sigma: float, longest: int) -> list[int]:
    draw = random.Random(0)
    return [max(1, min(longest, round(median * math.exp(sigma * draw.gauss(0, 1))))) for _ in range(count)]


def with_engine(engine: HFInferStrategy, prompts: list[tuple[int, ...]], lengths: list[int]) -> None:
    async def run() -> int:
        requests = [
            GenerateRequest(str(i), prompt, SamplingParams(max_new_tokens=length))
            for i, (prompt, length) in enumerate(zip(prompts, lengths, strict=True))
        ]
        return sum(len(result.token_ids) for result in await asyncio.gather(*map(engine.generate, requests)))

    assert asyncio.run(run()) == sum(lengths)


def with_generate(model: Any, prompts: list[tuple[int, ...]], lengths: list[int], slots: int) -> None:
    for start in range(0, len(prompts), slots):
        ids = torch.tensor(prompts[start : start + slots])
        longest = max(lengths[start : start + slots])
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=longest,
            pad_token_id=0,
        )


def timed(function: Callable[[], None]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--group", type=int, default=8, help="requests that share a prompt")
    args = parser.parse_args()
    torch.set_num_threads(1)

    longest = 512
    model, engine_model = small_model(PROMPT + longest), small_model(PROMPT + longest)
    draw = random.Random(1)
    loads = {
        f"equal: {args.slots} x 128 tokens": [128] * args.slots,
        f"long-tailed: {4 * args.slots}, log-normal": log_normal_lengths(4 * args.slots, 60.0, 0.9, longest),
    }
    print(
        f"model: {model.num_parameters() / 1e6:.2f} M parameters, {args.slots} slots, one thread, median of {args.rounds} rounds"
    )
    print(f"{'load':34} {'tokens':>8} {'longest':>8} {'generate tok/s':>15} {'hf_infer tok/s':>15} {'ratio':>7}")
    for name, lengths in loads.items():
        groups = [tuple(draw.randrange(512) for _ in range(PROMPT)) for _ in range(-(-len(lengths) // args.group))]
        prompts = [groups[i // args.group] for i in range(len(lengths))]
        engine = HFInferStrategy.from_model(
            engine_model, None, max_running_requests=args.slots, max_length=PROMPT + longest, threads=1
        )
        seconds: dict[str, list[float]] = {"generate": [], "hf_infer": []}
        for warm_up in (True, *(False,) * args.rounds):
            spent = {
                "generate": timed(lambda: with_generate(model, prompts, lengths, args.slots)),  # noqa: B023
                "hf_infer": timed(lambda: with_engine(engine, prompts, lengths)),  # noqa: B023
            }
            if not warm_up:
                for side, value in spent.items():
                    seconds[side].append(value)
        asyncio.run(engine.close())
        rate = {side: sum(lengths) / statistics.median(values) for side, values in seconds.items()}
        print(
            f"{name:34} {sum(lengths):8d} {max(lengths):8d} {rate['generate']:15.0f} {rate['hf_infer']:15.0f} "
            f"{rate['hf_infer'] / rate['generate']:6.2f}x"
        )


if __name__ == "__main__":
    main()
