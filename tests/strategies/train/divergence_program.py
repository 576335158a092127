"""One of two ranks that train a step with a divergence: `divergence_program.py MODEL FOLDER RANK PORT LAYOUT`."""

import json
import runpy
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from train_specs import train_spec

from roll.core.algorithms.loss import LossSpec
from roll.core.data.taught import TopTokens
from roll.core.data.token_batch import TokenBatch
from roll.core.trainer.batch import totals_of
from roll.core.workers.train_backends import make_train_strategy
from roll.core.workers.train_interface import RankContext

SHARES = [[0, 1, 2, 3, 4, 6], [5]]
"""Unequal: the second rank has micro-batches without a sample."""


def main(model: str, folder: Path, rank: int, port: int, layout: str) -> None:
    shared = runpy.run_path(str(Path(__file__).with_name("rank_program.py")))
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    name, options = shared["LAYOUTS"][layout]
    strategy = make_train_strategy(
        RankContext(rank=rank, world_size=2), train_spec(name, model, **{**shared["OPTIONS"], **options})
    )
    values = torch.load(folder / "batch.pt")
    batch = TokenBatch(**values | {"teacher_top": TopTokens(**values["teacher_top"])})
    loss = LossSpec(**json.loads((folder / "loss.json").read_text()))
    metrics = strategy.train_step(batch.select(SHARES[rank]), loss, totals_of(batch))
    (folder / f"metrics-{rank}.json").write_text(json.dumps(metrics))
    save_file(shared["exported"](strategy), folder / f"tensors-{rank}.safetensors")
    strategy.close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
