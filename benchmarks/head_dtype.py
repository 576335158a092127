"""How far the log-probs of an engine and of the trainer are apart, of the same bfloat16 weights, with logits that are rounded to
bfloat16 on both sides, on one, and on none (`model_args.head_dtype`).

SmolLM2-135M-Instruct reads passages of this project's pages and goes on from each. The engine samples, in bfloat16; the trainer
(`fsdp2_train`, bfloat16, one rank) says the log-probs of the same tokens. Nothing is trained between.

    mean, p99, max of |log p(trainer) - log p(engine)| of a sampled token, in nats; beside the mean its standard error over texts
    k3             estimate of the KL divergence of the two, r - 1 - log r
    over 0.1       share of the tokens that are further apart than 0.1 nats

Then what it costs: tokens/s of the engines, and of a training step, with and without in turn. Exit code 1 if the log-probs of
the first engine and of the trainer are not closer with both heads in float32 than with neither. With
`--layers_in_fp32` there are rows of a trainer whose layers are float32, too: what is left there is the engine's own rounding.

    make smollm2
    python benchmarks/head_dtype.py [--engines hf_infer vllm] [--texts 168] [--response 128] [--rounds 3]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from typing import Any

import torch
from pipeline_run import ROOT, save_results
from transformers import AutoTokenizer

from roll.core.algorithms.loss import LossSpec
from roll.core.configs.arguments import FSDP2Config, ModelArguments, TrainingArguments
from roll.core.data.sample import Prompt, Sample, SampleGroup
from roll.core.data.token_batch import TokenBatch
from roll.core.trainer.batch import token_batch, totals_of
from roll.core.workers.infer_engines import make_infer_strategy
from roll.core.workers.infer_interface import GenerateRequest, GenerateResult, InferStrategy, SamplingParams
from roll.core.workers.train_interface import RankContext
from roll.core.workers.train_spec import Optimisation, TrainSpec
from roll.strategies.train.fsdp2 import FSDP2Strategy

MODEL = ROOT / "examples" / "smollm2" / "cache" / "model"
HEADS = (None, "fp32")
LOSS = LossSpec(pg_variant="reinforce", aggregation="token-mean")


def passages(count: int, tokens: int) -> list[tuple[int, ...]]:
    """The beginnings of paragraphs of the pages, of at least so many tokens each."""
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    texts = [part for page in sorted((ROOT / "docs_roll").glob("*.md")) for part in page.read_text().split("\n\n")]
    prose = [text for text in texts if text[:1].isalpha() and "|" not in text]
    long = [ids[:tokens] for text in prose if len(ids := tokenizer(text)["input_ids"]) >= tokens]
    assert len(long) >= count, f"{len(long)} passages of {tokens} tokens"
    return [tuple(long[i * len(long) // count]) for i in range(count)]


def engine(name: str, head: str | None, args: argparse.Namespace) -> InferStrategy:
    options: dict[str, Any] = {
        "model_path": str(MODEL),
        "max_running_requests": args.slots,
        "max_length": args.prompt + args.response,
        "dtype": "bfloat16",
        "threads": args.threads,
        "head_dtype": head,
    }
    return make_infer_strategy(name, options)


async def sampled(
    of: InferStrategy, prompts: list[tuple[int, ...]], response: int, name: str = ""
) -> tuple[list[GenerateResult], float]:
    """Results, and the seconds that they took."""
    requests = [
        GenerateRequest(f"{name}{i}", prompt, SamplingParams(max_new_tokens=response, seed=i)) for i, prompt in enumerate(prompts)
    ]
    began = time.perf_counter()
    return await asyncio.gather(*map(of.generate, requests)), time.perf_counter() - began


def batch_of(prompts: list[tuple[int, ...]], results: list[GenerateResult]) -> TokenBatch:
    groups = []
    for i, (prompt, result) in enumerate(zip(prompts, results, strict=True)):
        group = SampleGroup(i, 0, Prompt(str(i), list(prompt), "", "", "", ""))
        group.samples.append(Sample(group.prompt, 0, result.token_ids, result.logprobs, result.versions, "length", reward=0.0))
        groups.append(group)
    batch = token_batch(groups, temperature=1.0)
    return batch.with_(advantages=(1.0 - 2.0 * (batch.tokens % 2)) * batch.loss_mask)


def trainer(head: str | None, args: argparse.Namespace, dtype: str = "bf16") -> FSDP2Strategy:
    training = TrainingArguments(learning_rate=1e-6, lr_scheduler_type="constant")
    return FSDP2Strategy(
        RankContext(threads=args.threads),
        TrainSpec(
            model_path=str(MODEL),
            model=ModelArguments(dtype=dtype, head_dtype=head),  # type: ignore[arg-type]
            backend=FSDP2Config(),
            optimisation=Optimisation(arguments=training, total_steps=None, max_grad_norm=1.0, max_tokens_per_microbatch=2048),
            max_tokens_per_microbatch_infer=4096,
            collective_timeout_s=600.0,
        ),
    )


def apart(strategy: FSDP2Strategy, batch: TokenBatch) -> dict[str, float]:
    mask = batch.loss_mask
    log_ratio = (strategy.log_probs(batch) - batch.behaviour_logprobs).double()
    lengths = batch.lengths.tolist()
    of_texts = [part[own].abs() for part, own in zip(log_ratio.split(lengths), mask.split(lengths), strict=True)]
    distance, log_ratio = log_ratio[mask].abs(), log_ratio[mask]
    return {
        "tokens": int(mask.sum()),
        "mean": distance.mean().item(),
        "error": statistics.stdev(float(part.mean()) for part in of_texts) / len(of_texts) ** 0.5,
        "p99": distance.quantile(0.99).item(),
        "max": distance.max().item(),
        "k3": (log_ratio.exp() - 1 - log_ratio).mean().item(),
        "over": (distance > 0.1).double().mean().item(),
    }


async def of_engines(name: str, prompts: list[tuple[int, ...]], args: argparse.Namespace) -> tuple[dict[Any, TokenBatch], Any]:
    """The batch that each head samples, and the tokens/s of each."""
    engines = {head: engine(name, head, args) for head in HEADS}
    batches = {head: batch_of(prompts, (await sampled(of, prompts, args.response))[0]) for head, of in engines.items()}
    spent: dict[Any, list[float]] = {head: [] for head in HEADS}
    few, tokens = prompts[: args.slots], min(64, args.response)
    for i in range(args.rounds):
        for head, of in engines.items():
            spent[head].append((await sampled(of, few, tokens, f"{i}."))[1])
    for of in engines.values():
        await of.close()
    return batches, {str(head): [len(few) * tokens / each for each in values] for head, values in spent.items()}


def mismatch(name: str, batches: dict[Any, TokenBatch], args: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    sides: list[tuple[str, str | None]] = [("bf16", None), ("bf16", "fp32")]
    for dtype, head in [*sides, ("fp32", None)] if args.layers_in_fp32 else sides:
        strategy = trainer(head, args, dtype)
        for engines, batch in batches.items():
            found = apart(strategy, batch)
            rows.append({"engine": name, "engine_head": engines, "trainer": dtype, "trainer_head": head, **found})
            figures = " ".join(f"{found[each]:9.2e}" for each in ("mean", "error", "p99", "max", "k3"))
            side = f"{engines or 'null':5} {f'{head}' if head else 'null' if dtype == 'bf16' else 'all fp32':8}"
            print(f"{name:9} {side} {found['tokens']:7} {figures} {found['over']:9.2%}", flush=True)
        strategy.close()
    return rows


def steps(batch: TokenBatch, args: argparse.Namespace) -> dict[str, list[float]]:
    """Tokens/s of training steps of a part of the batch, prompts included, and of log-probs of it."""
    part = batch.select(list(range(min(16, len(batch)))))
    sides, rates = {head: trainer(head, args) for head in HEADS}, dict[str, list[float]]()
    for i in range(args.rounds + 1):
        for head, strategy in sides.items():
            for what, work in (
                ("step", lambda of=strategy: of.train_step(part, LOSS, totals_of(part))),
                ("log_probs", lambda of=strategy: of.log_probs(part)),
            ):
                began = time.perf_counter()
                work()
                if i:  # the first is not counted
                    rates.setdefault(f"{what} {head}", []).append(part.num_tokens / (time.perf_counter() - began))
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", nargs="+", choices=["hf_infer", "vllm"], default=["hf_infer"])
    parser.add_argument("--texts", type=int, default=168)
    parser.add_argument("--prompt", type=int, default=48)
    parser.add_argument("--response", type=int, default=128)
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3, help="of the timing; 0: none")
    parser.add_argument("--layers_in_fp32", action="store_true", help="a trainer whose layers are float32, too")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    prompts, rows, rates = passages(args.texts, args.prompt), list[dict[str, Any]](), dict[str, Any]()
    print(f"load {os.getloadavg()[0]:.1f}\n")
    print("engine    head  trainer   tokens      mean     error       p99       max        k3  over 0.1")
    for name in args.engines:
        batches, rates[name] = asyncio.run(of_engines(name, prompts, args))
        rows += mismatch(name, batches, args)
    rates |= {"trainer": steps(batches[None], args)} if args.rounds else {}
    print()
    for name, of_sides in rates.items() if args.rounds else ():
        for side, values in of_sides.items():
            each = ", ".join(f"{value:.0f}" for value in values)
            print(f"{name:9} {side:16} {statistics.median(values):8.0f} tokens/s   ({each})")
    save_results(f"head_dtype_{'_'.join(args.engines)}", {"arguments": vars(args), "rows": rows, "tokens_per_s": rates})
    mean = {(row["engine_head"], row["trainer_head"]): row["mean"] for row in rows if row["engine"] == args.engines[0]}
    if not mean["fp32", "fp32"] < mean[None, None]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
