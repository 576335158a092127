"""What the critic's tests train, and one rank of the two-rank test as a process: `critic_program.py MODEL OUT RANK PORT`."""

import json
import runpy
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from saving import save
from train_specs import fsdp2_spec

from roll.core.algorithms.value_loss import ValueLossSpec
from roll.core.workers.train_interface import RankContext
from roll.strategies.train.critic import FSDP2Critic

_POLICY = runpy.run_path(str(Path(__file__).with_name("rank_program.py")))
OPTIONS, SHARES, totals = _POLICY["OPTIONS"], _POLICY["SHARES"], _POLICY["totals"]
LOSS = ValueLossSpec(clip=0.5)


def make_batch(seed):
    batch = _POLICY["make_batch"](seed)
    generator = torch.Generator().manual_seed(100 + seed)
    old, returns = (torch.randn(batch.num_tokens, generator=generator) * batch.loss_mask for _ in range(2))
    return batch.with_(values=old, returns=returns)


def main(model, out, rank, port):
    folder = Path(out)
    critic = FSDP2Critic(RankContext(rank=rank, world_size=2, master_port=port), fsdp2_spec(model, **OPTIONS))
    metrics = []
    for step, shares in enumerate(SHARES):
        batch = make_batch(step)
        metrics.append(critic.train_values(batch.select(shares[rank]), LOSS, totals(batch)))
    values = critic.values(make_batch(9).select(SHARES[0][rank]))
    (folder / f"metrics-{rank}.json").write_text(json.dumps(metrics))
    save_file({"values": values}, folder / f"values-{rank}.safetensors")
    save(critic, folder / "two")
    critic.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
