"""The engines against each other: tokens/s of plain `generate`, `hf_infer`, vLLM and SGLang on the same model, one thread for
each, the sides taking turns. Two loads as in `hf_infer_vs_generate.py`, groups share their prompts; tokens/s counts the tokens
asked for. 500M needs 16 GB and, with all engines, half an hour.

    python benchmarks/engines.py [--size 1M 50M 500M] [--rounds 3] [--slots 64] [--engines hf_infer vllm sglang]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Sequence
from typing import Any

import torch
from hf_infer_vs_generate import log_normal_lengths, with_generate
from pipeline_run import save_results
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from roll.core.workers.infer_engines import make_infer_strategy
from roll.core.workers.infer_interface import GenerateRequest, InferStrategy, SamplingParams

PROMPT, LONGEST = 24, 512
GROUP = 8
WARM_UP = 8
"""Tokens of each response of the round that is not counted."""
SLOTS_AND_ROUNDS = {"1M": (64, 3), "50M": (16, 3), "100M": (16, 3), "500M": (8, 1), "1.5B": (8, 1), "7B": (8, 1)}
"""By default: large models take a batch's time for few requests."""
SIZES: dict[str, dict[str, Any]] = {
    "1M": {"vocab_size": 512, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4},
    "50M": {
        "vocab_size": 16384,
        "hidden_size": 512,
        "intermediate_size": 2048,
        "num_hidden_layers": 12,
        "num_attention_heads": 8,
    },
    "100M": {
        "vocab_size": 32768,
        "hidden_size": 768,
        "intermediate_size": 2048,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
    },
    # Qwen2.5-0.5B
    "500M": {
        "vocab_size": 151936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
    },
    # Qwen2.5-1.5B and -7B: for accelerators
    "1.5B": {
        "vocab_size": 151936,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
    },
    "7B": {
        "vocab_size": 152064,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "tie_word_embeddings": False,
    },
}


def make_model(size: str, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    config = Qwen2Config(
        **{"num_key_value_heads": 2, "tie_word_embeddings": True, **SIZES[size]},
        max_position_embeddings=PROMPT + LONGEST + 1,  # SGLang wants a position more
        bos_token_id=None,
        eos_token_id=None,
    )
    return Qwen2ForCausalLM(config).eval()


def save(model: Any, folder: str) -> None:
    model.save_pretrained(folder)
    core = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))  # results are not read
    PreTrainedTokenizerFast(tokenizer_object=core).save_pretrained(folder)


def requests(prompts: Sequence[tuple[int, ...]], lengths: Sequence[int]) -> list[GenerateRequest]:
    return [
        GenerateRequest(str(i), prompt, SamplingParams(max_new_tokens=length))
        for i, (prompt, length) in enumerate(zip(prompts, lengths, strict=True))
    ]


def make_prompts(count: int, vocabulary: int) -> list[tuple[int, ...]]:
    draw = random.Random(1)
    groups = [tuple(draw.randrange(vocabulary) for _ in range(PROMPT)) for _ in range(-(-count // GROUP))]
    return [groups[i // GROUP] for i in range(count)]


async def seconds(work: Awaitable[Any]) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


async def speed(engines: dict[str, InferStrategy], model: Any, slots: int, rounds: int) -> list[dict[str, Any]]:
    loads = {
        f"equal: {slots} x 128 tokens": [128] * slots,
        f"long-tailed: {2 * slots}, log-normal": log_normal_lengths(2 * slots, 60.0, 0.9, LONGEST),
    }
    rows = []
    for name, lengths in loads.items():
        prompts = make_prompts(len(lengths), model.config.vocab_size)
        spent: dict[str, list[float]] = {side: [] for side in ("generate", *engines)}
        warm_up = [min(WARM_UP, length) for length in lengths]
        for asked in (warm_up, *(lengths,) * rounds):
            took = {"generate": await seconds(asyncio.to_thread(with_generate, model, prompts, asked, slots))}
            for side, engine in engines.items():
                took[side] = await seconds(asyncio.gather(*map(engine.generate, requests(prompts, asked))))
            if asked is lengths:
                for side, value in took.items():
                    spent[side].append(value)
        rates = {side: sum(lengths) / statistics.median(values) for side, values in spent.items()}
        rows.append({"load": name, "tokens": sum(lengths), "tokens_per_s": rates})
        print(f"{name:34} {sum(lengths):8d} " + " ".join(f"{rate:10.0f} tok/s" for rate in rates.values()), flush=True)
    return rows


async def measure(size: str, args: argparse.Namespace) -> dict[str, Any]:
    model = make_model(size)
    slots, rounds = (given or default for given, default in zip((args.slots, args.rounds), SLOTS_AND_ROUNDS[size], strict=True))
    print(f"\n== {size}: {model.num_parameters() / 1e6:.1f} M parameters, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        save(model, folder)
        options = {"model_path": folder, "max_running_requests": slots, "max_length": PROMPT + LONGEST, "threads": 1}
        engines: dict[str, InferStrategy] = {}
        for name in args.engines:
            began = time.perf_counter()
            interpreter = {"engine_args": {"python": args.sglang}} if name == "sglang" else {}
            engines[name] = make_infer_strategy(name, options | interpreter)
            print(f"{name} started in {time.perf_counter() - began:.1f} s")
        print(f"{'load':34} {'tokens':>8} " + " ".join(f"{side:>16}" for side in ("generate", *engines)))
        rows = await speed(engines, model, slots, rounds)
        for engine in engines.values():
            await engine.close()
    return {"size": size, "slots": slots, "rounds": rounds, "speed": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", nargs="+", choices=SIZES, default=["1M", "50M"])
    parser.add_argument("--rounds", type=int, help="by default 3, of 500M 1")
    parser.add_argument("--slots", type=int, help="by default 64, 16 and 8")
    parser.add_argument("--engines", nargs="+", choices=("hf_infer", "vllm", "sglang"), default=["hf_infer", "vllm"])
    parser.add_argument("--sglang", default=".venv-sglang/bin/python", help="the interpreter that has SGLang")
    args = parser.parse_args()
    torch.set_num_threads(1)
    save_results("engines", {"sizes": [asyncio.run(measure(size, args)) for size in args.size]})


if __name__ == "__main__":
    main()
