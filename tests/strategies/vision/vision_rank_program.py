"""One rank of two that train a model that sees: `vision_rank_program.py MODEL IMAGES OUT RANK PORT LAYOUT...`."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from saving import save
from vision_batches import LOSS, TOGETHER, batch_of, strategy_of

from roll.core.algorithms.loss import prepare_batch
from roll.core.workers.train_interface import BatchTotals


def zero(stage, **options):
    """Stage 3 divides parameters of any size."""
    return {"name": "deepspeed_train", "zero": {"stage": stage, "stage3_param_persistence_threshold": 0}, **options}


OPTIONS = {
    "plain": {},
    "cut": {"max_tokens_per_microbatch": 40},
    "frozen": {"freeze_vision": True},
    "recomputed": {"gradient_checkpointing": True},
    "zero0": zero(0),
    "zero1": zero(1),
    "zero2-cut": zero(2, max_tokens_per_microbatch=40),
    "zero3": zero(3),
    "zero3-cut": zero(3, max_tokens_per_microbatch=40),
    "zero3-frozen": zero(3, freeze_vision=True),
    "zero3-recomputed": zero(3, gradient_checkpointing=True),
}


def texts(batch):
    """The samples without an image."""
    return [i for i, row in enumerate(batch.rows) if not (row < 0).any()]


def shares_of(batch):
    """By name: both see, one reads texts alone, and one has nothing."""
    every = list(range(len(batch)))
    text = texts(batch)
    return {"both": (every[:7], every[7:]), "texts": ([i for i in every if i not in text], text), "none": (every, [])}


def gradient(strategy, batch, totals):
    """Of one step that is too small to move a weight, from the first moment, which is a tenth of it."""
    strategy._set_moments({}, 0)
    strategy.train_step(prepare_batch(batch, LOSS), LOSS, totals)
    moments = ((name.rpartition("."), moment) for name, moment in strategy._full_moments())
    return {name: moment.clone() * 10 for (name, _, kind), moment in moments if kind == "exp_avg"}


def main(model: str, images: str, out: str, rank: int, port: int, layouts: list[str]) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    batch, result = batch_of(Path(model), Path(images)), {}
    totals = BatchTotals(int(batch.loss_mask.sum()), len(batch))
    for name in layouts:
        options = {**TOGETHER, "learning_rate": 1e-30, **OPTIONS[name]}
        strategy = strategy_of(Path(model), Path(images), rank, 2, **options)
        for which, shares in shares_of(batch).items():
            own = batch.select(shares[rank])
            result |= {f"{name}/{which}/{n}": t for n, t in gradient(strategy, own, totals).items()}
            result[f"{name}/{which}/logprobs"] = strategy.log_probs(own)
        save(strategy, Path(out) / name)
        strategy.close()
    save_file({name: tensor.contiguous() for name, tensor in result.items()}, Path(out) / f"rank-{rank}.safetensors")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:4], int(sys.argv[4]), int(sys.argv[5]), sys.argv[6:])
