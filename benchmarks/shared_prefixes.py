"""What it saves to compute each common prefix once: a training step of one row for all samples, beside one of a padded row for
each sample, with the same weights and kernels. The sides alternate; medians, after a first step that is not counted.

    groups     responses to long prompts, 8 to each: 512 + 64 tokens
    episodes   ten turns, each a sample of its own that begins with all that was said before
    mixed      lengths 1 to 4, no common prefix: what is saved is padding

    python benchmarks/shared_prefixes.py [--size 50M] [--dtype fp32] [--threads 1] [--rounds 3]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from engines import SIZES, make_model, save
from pipeline_run import save_results

from roll.core.algorithms.loss import LossSpec
from roll.core.configs.arguments import FSDP2Config, ModelArguments, TrainingArguments
from roll.core.data.microbatches import plan_microbatches
from roll.core.data.token_batch import TokenBatch
from roll.core.trainer.batch import totals_of
from roll.core.workers.train_interface import RankContext
from roll.core.workers.train_spec import Optimisation, TrainSpec
from roll.strategies.train.fsdp2 import FSDP2Strategy
from roll.strategies.train.layout import padded_rows
from roll.strategies.train.scorer import TokenScorer

BUDGET = 8192
"""Tokens of a micro-batch."""
Rows = list[tuple[torch.Tensor, int]]
"""Tokens of each sample, and the first of them that is trained."""


class PaddedRows(TokenScorer):
    def plan(self, batch: TokenBatch, budget: int) -> list[list[int]]:
        return plan_microbatches(batch.lengths.tolist(), budget)

    layout = staticmethod(padded_rows)


class PaddedStrategy(FSDP2Strategy):
    def __init__(self, context: RankContext, spec: TrainSpec) -> None:
        super().__init__(context, spec)
        self._model.set_attn_implementation("sdpa")
        self._scorer.__class__ = PaddedRows
        self._scorer._forest = False


def groups(some: Callable[[int], torch.Tensor], scale: int) -> Rows:
    prompts = [some(512) for _ in range(2 * scale)]
    return [(torch.cat([prompt, some(64)]), 512) for prompt in prompts for _ in range(8)]


def episodes(some: Callable[[int], torch.Tensor], scale: int) -> Rows:
    rows: Rows = []
    for _ in range(2 * scale):
        said = some(64)
        for _ in range(10):
            rows.append((torch.cat([said, some(32)]), len(said)))
            said = torch.cat([rows[-1][0], some(32)])
    return rows


def mixed(some: Callable[[int], torch.Tensor], scale: int) -> Rows:
    lengths = torch.linspace(128, 512, 16 * scale).int().tolist()
    order = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(0)).tolist()
    return [(some(lengths[i]), 16) for i in order]


WORKLOADS = {"groups": groups, "episodes": episodes, "mixed": mixed}


def batch_of(rows: Rows) -> TokenBatch:
    tokens = torch.cat([row for row, _ in rows])
    mask = torch.cat([torch.arange(len(row)) >= first for row, first in rows])
    noise = torch.randn(len(tokens), generator=torch.Generator().manual_seed(0))
    return TokenBatch(
        lengths=torch.tensor([len(row) for row, _ in rows]),
        scores=torch.zeros(len(rows)),
        temperatures=torch.ones(len(rows)),
        tokens=tokens,
        loss_mask=mask,
        behaviour_logprobs=-10.0 * mask,
        advantages=noise * mask,
    )


def gradient(strategy: FSDP2Strategy) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in strategy._model.parameters() if p.grad is not None])


def step(strategy: FSDP2Strategy, batch: TokenBatch) -> float:
    """Seconds of the gradients, which stay."""
    strategy._model.zero_grad()
    began = time.perf_counter()
    totals = totals_of(batch)
    list(strategy._gradients(batch, strategy._policy_loss(LossSpec(pg_variant="reinforce"), totals)))
    return time.perf_counter() - began


def computed(strategy: FSDP2Strategy, batch: TokenBatch) -> int:
    """Tokens that go through the model."""
    layouts = [layout for _, _, layout in strategy._microbatches(batch, BUDGET)]
    return sum(layout.tokens.numel() for layout in layouts)


def measure(name: str, once: FSDP2Strategy, padded: FSDP2Strategy, args: argparse.Namespace) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    vocabulary = SIZES[args.size]["vocab_size"]
    batch = batch_of(WORKLOADS[name](lambda n: torch.randint(vocabulary, (n,), generator=generator), args.scale))
    seconds: dict[str, list[float]] = {"once": [], "padded": []}
    for _ in range(args.rounds + 1):
        for side, strategy in (("once", once), ("padded", padded)):
            seconds[side].append(step(strategy, batch))
    ours, theirs = gradient(once).double(), gradient(padded).double()
    found = {side: statistics.median(values[1:]) for side, values in seconds.items()}
    trained = int(batch.loss_mask.sum())
    return {
        "workload": name,
        "tokens_once": computed(once, batch),
        "tokens_padded": computed(padded, batch),
        "trained_per_s_once": trained / found["once"],
        "trained_per_s_padded": trained / found["padded"],
        "faster": found["padded"] / found["once"],
        "gradient_difference": float((ours - theirs).norm() / theirs.norm()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--size", choices=SIZES, default="50M")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=int, default=1, help="multiplies the samples")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    optimisation = Optimisation(
        arguments=TrainingArguments(lr_scheduler_type="constant"),
        total_steps=None,
        max_grad_norm=1.0,
        max_tokens_per_microbatch=BUDGET,
    )
    with tempfile.TemporaryDirectory() as folder:
        save(make_model(args.size), folder)
        spec = TrainSpec(
            model_path=folder,
            model=ModelArguments(dtype=args.dtype),
            backend=FSDP2Config(),
            optimisation=optimisation,
            max_tokens_per_microbatch_infer=BUDGET,
            collective_timeout_s=600.0,
        )
        context = RankContext(threads=args.threads)
        once, padded = FSDP2Strategy(context, spec), PaddedStrategy(context, spec)
        results = []
        print(f"{'':10}{'tokens computed':>22}{'trained tokens/s':>22}{'faster':>9}{'gradient differs by':>22}")
        for name in args.workloads:
            found = measure(name, once, padded, args)
            tokens = f"{found['tokens_padded']:,} → {found['tokens_once']:,}"
            speeds = f"{found['trained_per_s_padded']:,.0f} → {found['trained_per_s_once']:,.0f}"
            print(f"{name:10}{tokens:>22}{speeds:>22}{found['faster']:>8.1f}x{found['gradient_difference']:>22.1e}", flush=True)
            results.append(found)
    save_results("shared_prefixes", {"size": args.size, "dtype": args.dtype, "threads": args.threads, "workloads": results})


if __name__ == "__main__":
    main()
