"""One rank of two that train a model that sees: `vision_rank_program.py MODEL IMAGES OUT RANK PORT`."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from vision_batches import LOSS, TOGETHER, batch_of, strategy_of

from roll.core.algorithms.loss import prepare_batch
from roll.core.workers.train_interface import BatchTotals

OPTIONS = {
    "plain": {},
    "cut": {"max_tokens_per_microbatch": 40},
    "frozen": {"freeze_vision": True},
    "recomputed": {"gradient_checkpointing": True},
}


def texts(batch):
    """The samples without an image."""
    return [i for i, row in enumerate(batch.rows) if not (row < 0).any()]


def shares_of(batch):
    """By name: both see, one reads texts alone, and one has nothing."""
    every = list(range(len(batch)))
    text = texts(batch)
    return {"both": (every[:7], every[7:]), "texts": ([i for i in every if i not in text], text), "none": (every, [])}


def main(model: str, images: str, out: str, rank: int, port: int) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    batch, result = batch_of(Path(model), Path(images)), {}
    totals = BatchTotals(int(batch.loss_mask.sum()), len(batch))
    for name, options in OPTIONS.items():
        strategy = strategy_of(Path(model), Path(images), rank, 2, **{**TOGETHER, **options})
        for which, shares in shares_of(batch).items():

            def keep(key=f"{name}/{which}", strategy=strategy):
                found = ((n, p.grad) for n, p in strategy._model.named_parameters() if p.grad is not None)
                result.update({f"{key}/{n}": gradient.full_tensor().clone() for n, gradient in found})
                strategy._optimizer.zero_grad()
                return 1.0

            strategy._step = keep
            strategy.train_step(prepare_batch(batch, LOSS).select(shares[rank]), LOSS, totals)
            result[f"{name}/{which}/logprobs"] = strategy.log_probs(batch.select(shares[rank]))
        strategy.close()
    save_file({name: tensor.contiguous() for name, tensor in result.items()}, Path(out) / f"rank-{rank}.safetensors")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:4], int(sys.argv[4]), int(sys.argv[5]))
