"""What of the machine each part uses: a training step of its arithmetic, decoding of its memory bandwidth, with a real model.

Both limits are measured in the same run, in the process of the side, before and after it, with as many threads: the FLOP/s of a
2048³ matrix product in the model's type, and the bytes a second of a matrix-vector product in float32 whose matrix does not fit
any cache.

* train: FLOPs that the model needs for the tokens of a step (forward and backward, as in gpu.py: nothing that is computed
  twice, or padded, counts) against the matrix product's.
* decode: each token step reads all weights once, for all requests that run together. So tokens/s <= requests x bandwidth /
  bytes of the weights, and <= FLOP/s / FLOPs of a token: the share is of the smaller one. The time of the prompts is taken off:
  it is that of the same requests with one token each.

With `--profile` it says besides what the time of one token of one request goes to in hf_infer: matrix products, attention, other
operations, and what is between them (Python, and torch's dispatch).

vLLM's engine is processes of its own, which stand still while the limits are measured. Others that use the cores meanwhile
shift the shares, too: the load average stands beside each.

    python benchmarks/roofline.py --model examples/smollm2/cache/model [--sides train hf_infer vllm] [--dtypes bf16 fp32]
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from gpu import Arithmetic, arithmetic, positive, random_batch
from pipeline_run import save_results
from transformers import AutoConfig, AutoModelForCausalLM

from roll.core.algorithms.loss import LossSpec
from roll.core.configs.arguments import FSDP2Config, ModelArguments, TrainingArguments
from roll.core.workers.infer_engines import make_infer_strategy
from roll.core.workers.infer_interface import GenerateRequest, SamplingParams
from roll.core.workers.train_backends import make_train_strategy
from roll.core.workers.train_interface import BatchTotals, RankContext
from roll.core.workers.train_spec import Optimisation, TrainSpec
from roll.strategies.infer.hf.slot_model import SlotModel

TYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
SIZE, MATRIX = 2048, (65536, 4096)
PROMPT = 32
"""Tokens; each request has a prompt of its own."""


def best(work: Callable[[], Any], times: int = 5) -> float:
    """Seconds of the fastest call: what the machine can do when nobody disturbs it."""
    spent = []
    for _ in range(times + 1):
        began = time.perf_counter()
        work()
        spent.append(time.perf_counter() - began)
    return min(spent[1:])


def limits(dtype: torch.dtype, threads: int) -> tuple[float, float]:
    """FLOP/s and bytes/s of this process, in a thread that ends: its pool of torch's threads, if it stayed, would slow the side
    down."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_limits, dtype, threads).result()


def _limits(dtype: torch.dtype, threads: int) -> tuple[float, float]:
    torch.set_num_threads(threads)
    a, b = torch.randn(SIZE, SIZE).to(dtype), torch.randn(SIZE, SIZE).to(dtype)
    flops = 2 * SIZE**3 / best(lambda: a @ b)
    matrix, vector = torch.ones(MATRIX), torch.ones(MATRIX[1])
    return flops, matrix.nbytes / best(lambda: matrix @ vector)


def counted(model_path: Path) -> tuple[Arithmetic, int]:
    """What a token multiplies, and the model's vocabulary."""
    config: Any = AutoConfig.from_pretrained(model_path)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return arithmetic(model), config.vocab_size


def train(args: argparse.Namespace, dtype: str) -> list[dict[str, Any]]:
    spec = TrainSpec(
        model_path=str(args.model),
        model=ModelArguments(dtype=dtype),  # type: ignore[arg-type]
        backend=FSDP2Config(),
        optimisation=Optimisation(
            arguments=TrainingArguments(lr_scheduler_type="constant"),
            total_steps=None,
            max_grad_norm=1.0,
            max_tokens_per_microbatch=args.sequences * args.length,
        ),
        max_tokens_per_microbatch_infer=args.sequences * args.length,
        collective_timeout_s=600.0,
    )
    strategy: Any = make_train_strategy(RankContext(threads=args.threads), spec)
    counts, vocabulary = counted(args.model)
    batch = random_batch(args.sequences, args.length, vocabulary)
    totals = BatchTotals(int(batch.loss_mask.sum()), len(batch))
    before = limits(TYPES[dtype], args.threads)
    seconds = best(lambda: strategy.train_step(batch, LossSpec(pg_variant="ppo"), totals), args.rounds)
    flops, _ = mean(before, limits(TYPES[dtype], args.threads))
    strategy.close()
    rate = batch.num_tokens / seconds
    return [row("train", f"{args.sequences} x {args.length} tokens", rate, flops / counts.training(args.length), "FLOP/s")]


def decode(side: str, args: argparse.Namespace, dtype: str) -> list[dict[str, Any]]:
    return asyncio.run(decoding(side, args, dtype))


async def decoding(side: str, args: argparse.Namespace, dtype: str) -> list[dict[str, Any]]:
    most = max(args.requests)
    options = {"model_path": str(args.model), "max_running_requests": most, "max_length": PROMPT + args.response + 1}
    engine = make_infer_strategy(side, {**options, "threads": args.threads, "dtype": str(TYPES[dtype]).removeprefix("torch.")})
    counts, vocabulary = counted(args.model)
    nbytes = counts.parameters * TYPES[dtype].itemsize
    rows = []
    for together in args.requests:
        prompts = torch.randint(3, vocabulary, (args.rounds + 1, together, PROMPT), generator=torch.Generator().manual_seed(0))

        async def seconds(tokens: int, number: int, prompts: torch.Tensor = prompts, together: int = together) -> float:
            sampling = SamplingParams(max_new_tokens=tokens)
            asked = [
                GenerateRequest(f"{tokens}/{number}/{i}", tuple(prompts[number, i].tolist()), sampling) for i in range(together)
            ]
            began = time.perf_counter()
            await asyncio.gather(*map(engine.generate, asked))
            return time.perf_counter() - began

        before = limits(TYPES[dtype], args.threads)
        whole = [await seconds(args.response, number) for number in range(args.rounds + 1)][1:]
        prefill = [await seconds(1, number) for number in range(args.rounds + 1)][1:]
        flops, bandwidth = mean(before, limits(TYPES[dtype], args.threads))
        rate = together * (args.response - 1) / max(min(whole) - min(prefill), 1e-9)
        by_memory, by_arithmetic = together * bandwidth / nbytes, flops / counts.generation(PROMPT, args.response)
        named = "bytes/s" if by_memory <= by_arithmetic else "FLOP/s"
        rows.append(row(side, f"{together} together", rate, min(by_memory, by_arithmetic), named))
    await engine.close()
    return rows


def profiled(args: argparse.Namespace, dtype: str) -> dict[str, float]:
    """Milliseconds of a token of one request, by what they go to; the fastest of the tokens, divided as all of them."""
    torch.set_num_threads(args.threads)
    model = SlotModel(AutoModelForCausalLM.from_pretrained(args.model, dtype=TYPES[dtype]), 1, PROMPT + 2 * args.response)
    positions = iter(range(PROMPT, PROMPT + 2 * args.response))

    def token() -> None:
        model.forward_tokens(0, [7], [next(positions)])

    with torch.inference_mode():
        model.forward_contexts(0, [tuple(range(3, 3 + PROMPT))])
        fastest = 1e3 * best(token, args.response - 1)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            began = time.perf_counter()
            for _ in range(args.response // 2):
                token()
            whole = time.perf_counter() - began
    spent = {each.key: each.self_cpu_time_total / 1e6 for each in profile.key_averages()}
    products = sum(seconds for name, seconds in spent.items() if name in ("aten::mm", "aten::addmm", "aten::bmm"))
    attention = sum(seconds for name, seconds in spent.items() if "attention" in name)
    others = sum(seconds for name, seconds in spent.items() if name.startswith("aten::")) - products - attention
    parts = {"matrix products": products, "attention": attention, "other operations": others}
    return {name: fastest * part / whole for name, part in (parts | {"between them": whole - sum(parts.values())}).items()}


def mean(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    return statistics.fmean((one[0], other[0])), statistics.fmean((one[1], other[1]))


def row(side: str, work: str, rate: float, bound: float, of: str) -> dict[str, Any]:
    return {"side": side, "work": work, "tokens_per_s": rate, "bound": bound, "of": of, "load": os.getloadavg()[0]}


def measure(side: str, args: argparse.Namespace, dtype: str) -> list[dict[str, Any]]:
    torch.set_num_threads(args.threads)
    return train(args, dtype) if side == "train" else decode(side, args, dtype)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a Hugging Face folder")
    parser.add_argument("--sides", nargs="+", default=["train", "hf_infer", "vllm"], choices=["train", "hf_infer", "vllm"])
    parser.add_argument("--dtypes", nargs="+", default=["bf16", "fp32"], choices=list(TYPES))
    parser.add_argument("--threads", type=positive, default=1)
    parser.add_argument("--rounds", type=positive, default=3, help="the fastest counts; one more comes first")
    parser.add_argument("--sequences", type=positive, default=8)
    parser.add_argument("--length", type=positive, default=128, help="tokens of a trained sample")
    parser.add_argument("--requests", type=positive, nargs="+", default=[1, 8, 64], help="that decode together")
    parser.add_argument("--response", type=positive, default=48)
    parser.add_argument("--profile", action="store_true", help="what a token of hf_infer takes its time for")
    args = parser.parse_args()
    if not (args.model / "config.json").exists():
        parser.error(
            f"argument --model: there is no config.json in {args.model}; `make smollm2` makes examples/smollm2/cache/model"
        )
    if args.response < 2 or args.length < 2:
        parser.error("argument --response, --length: at least 2")
    return args


def main() -> None:
    args = arguments()
    rows = []
    print(f"{'side':9} {'type':5} {'work':18} {'tokens/s':>9} {'limit':>9} {'share':>6} {'of':8} {'load':>5}")
    for dtype in args.dtypes:
        for side in args.sides:
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
                found = pool.submit(measure, side, args, dtype).result()
            for one in found:
                share = one["tokens_per_s"] / one["bound"]
                figures = f"{one['tokens_per_s']:9.1f} {one['bound']:9.1f} {share:6.1%}"
                print(f"{side:9} {dtype:5} {one['work']:18} {figures} {one['of']:8} {one['load']:5.1f}", flush=True)
            rows += [one | {"dtype": dtype} for one in found]
        if args.profile:
            print(
                f"hf_infer  {dtype:5} one token: "
                + ", ".join(f"{ms:.1f} ms {part}" for part, ms in profiled(args, dtype).items())
            )
    save_results("roofline", {"arguments": {key: str(value) for key, value in vars(args).items()}, "rows": rows})


if __name__ == "__main__":
    main()
