"""What a weight update of a LoRA run costs with adapters alone, and with merged weights: bytes, the trainer's export, sending and
the engine's pause while requests run, and tokens/s (vLLM computes adapters beside their base, `hf_infer` merges them).

`wait` is the whole of `activate_weights`, with the token step under way. Medians, after a first update that is not counted.

    python benchmarks/lora_updates.py [--size 50M] [--rank 16] [--slots 8] [--updates 5] [--engines hf_infer vllm]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from typing import Any

import torch
from engines import LONGEST, PROMPT, SIZES, make_model, make_prompts, requests, save, seconds
from pipeline_run import save_results

from roll.core.configs.arguments import FSDP2Config, ModelArguments, TrainingArguments
from roll.core.weights.adapter import AdapterSource
from roll.core.weights.bucket import Bucket, manifest_of
from roll.core.workers.infer_engines import make_infer_strategy
from roll.core.workers.infer_interface import InferStrategy
from roll.core.workers.train_interface import RankContext
from roll.core.workers.train_spec import Optimisation, TrainSpec
from roll.strategies.train.fsdp2 import FSDP2Strategy

BUCKET_BYTES = 256 << 20


async def update(engine: InferStrategy, buckets: list[Bucket], version: int, prompts: list[tuple[int, ...]]) -> list[float]:
    """Seconds of sending, of `activate_weights`, and of the pause in it, while a request for each prompt runs."""
    calls = [asyncio.ensure_future(engine.generate(one)) for one in requests(prompts, [LONGEST] * len(prompts))]
    goal = (await engine.stats()).generated_tokens + 4 * len(prompts)
    while (await engine.stats()).generated_tokens < goal:
        await asyncio.sleep(0.001)
    began = time.perf_counter()
    for bucket in buckets:
        await engine.receive_bucket(version, bucket)
    sent = time.perf_counter()
    pause = await engine.activate_weights(manifest_of(version, buckets), "interrupt")
    ended = time.perf_counter()
    await engine.abort()
    await asyncio.gather(*calls)
    return [sent - began, ended - sent, pause]


async def measure(folder: str, name: str, adapters: bool, args: argparse.Namespace) -> dict[str, Any]:
    optimisation = Optimisation(
        arguments=TrainingArguments(lr_scheduler_type="constant"),
        total_steps=None,
        max_grad_norm=1.0,
        max_tokens_per_microbatch=16384,
    )
    spec = TrainSpec(
        model_path=folder,
        model=ModelArguments(dtype="fp32", lora_target="all-linear", lora_rank=args.rank),
        backend=FSDP2Config(),
        optimisation=optimisation,
        max_tokens_per_microbatch_infer=16384,
        collective_timeout_s=600.0,
        export_adapters=adapters,
    )
    trainer = FSDP2Strategy(RankContext(), spec)
    began = time.perf_counter()
    buckets = list(trainer.export_weights(BUCKET_BYTES))
    export = time.perf_counter() - began
    options: dict[str, Any] = {"model_path": folder, "max_running_requests": args.slots, "max_length": PROMPT + LONGEST}
    if adapters:
        options["adapters"] = AdapterSource(folder, args.rank)
    engine = make_infer_strategy(name, {**options, "threads": 1})
    prompts = make_prompts(args.slots, SIZES[args.size]["vocab_size"])
    measured = [await update(engine, buckets, version, prompts) for version in range(1, args.updates + 2)]
    rates = []
    for _ in range(3):
        took = await seconds(asyncio.gather(*map(engine.generate, requests(prompts, [64] * args.slots))))
        rates.append(64 * args.slots / took)
    await engine.close()
    send, wait, pause = (statistics.median(column) for column in zip(*measured[1:], strict=True))  # the first warms up
    row = {
        "engine": name,
        "sent": "adapters" if adapters else "merged",
        "bytes": sum(bucket.nbytes for bucket in buckets),
        "export_s": export,
        "send_s": send,
        "wait_s": wait,
        "pause_s": pause,
        "tokens_per_s": statistics.median(rates),
    }
    print(
        f"{name:10} {row['sent']:9} {row['bytes'] / 1e6:8.1f} {export * 1e3:9.1f} {send * 1e3:9.1f} {wait * 1e3:9.1f} "
        f"{pause * 1e3:9.1f} {row['tokens_per_s']:9.0f}",
        flush=True,
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="50M")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--updates", type=int, default=5)
    parser.add_argument("--engines", nargs="+", choices=("hf_infer", "vllm"), default=["hf_infer", "vllm"])
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(
        f"{'engine':10} {'sent':9} {'MB':>8} {'export ms':>9} {'send ms':>9} {'wait ms':>9} {'pause ms':>9} {'tokens/s':>9}",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        save(make_model(args.size), folder)
        rows = [asyncio.run(measure(folder, name, kind, args)) for name in args.engines for kind in (False, True)]
    save_results("lora_updates", {"size": args.size, "rank": args.rank, "slots": args.slots, "rows": rows})


if __name__ == "__main__":
    main()
