"""One rank of the two-rank test, as a process: `rank_program.py MODEL OUT RANK PORT ONE_RANK_CHECKPOINT`."""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from roll.algorithms.loss import LossSpec
from roll.data.token_batch import TokenBatch
from roll.strategies.train.fsdp2 import FSDP2Strategy
from roll.strategies.train.interface import BatchTotals, RankContext

OPTIONS = {
    "dtype": "fp32",
    "learning_rate": 1e-3,
    "weight_decay": 0.1,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 2,
    "total_optimizer_steps": 10,
    "max_grad_norm": 0.5,
    "max_tokens_per_microbatch": 24,
    "max_tokens_per_microbatch_infer": 30,
}
LOSS = LossSpec(pg_variant="ppo", aggregation="seq-mean-token-mean", kl_loss_coef=0.1, entropy_coef=0.01)
SHARES = [([0, 1, 2, 3, 4], [5, 6]), ([2, 5], [0, 1, 3, 4, 6]), ([0, 1, 2, 3, 4, 5, 6], [])]
"""Samples of each rank in steps 0, 1, 2: unequal, and once none at all."""


def make_batch(seed: int, samples: int = 7, vocab: int = 37) -> TokenBatch:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(4, 20, (samples,), generator=generator)
    count = int(lengths.sum())
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)[:-1]])
    position = torch.arange(count) - torch.repeat_interleave(starts, lengths)
    mask = position >= 2
    return TokenBatch(
        lengths=lengths,
        scores=torch.rand(samples, generator=generator),
        temperatures=torch.full((samples,), 0.7),
        tokens=torch.randint(vocab, (count,), generator=generator),
        loss_mask=mask,
        behaviour_logprobs=-3.0 * torch.rand(count, generator=generator) * mask,
        advantages=torch.randn(count, generator=generator) * mask,
        reference_logprobs=-3.0 * torch.rand(count, generator=generator) * mask,
    )


def totals(batch: TokenBatch) -> BatchTotals:
    return BatchTotals(int(batch.loss_mask.sum()), len(batch))


def main(model: str, out: str, rank: int, port: int, one_rank_checkpoint: str) -> None:
    folder = Path(out)
    strategy = FSDP2Strategy(RankContext(rank=rank, world_size=2, master_port=port), model, **OPTIONS)
    batch = make_batch(9)
    save_file({"logprobs": strategy.log_probs(batch.select(SHARES[0][rank]))}, folder / f"logprobs-{rank}.safetensors")
    metrics = []
    for step, shares in enumerate(SHARES):
        batch = make_batch(step)
        metrics.append(strategy.train_step(batch.select(shares[rank]), LOSS, totals(batch)))
    (folder / f"metrics-{rank}.json").write_text(json.dumps(metrics))
    strategy.save(folder / "checkpoint")
    exported = {name: t for bucket in strategy.export_weights(2000) for name, t in bucket.tensors.items()}
    save_file(exported, folder / f"exported-{rank}.safetensors")
    broken = make_batch(3)
    broken.advantages[-1] = torch.nan
    last = strategy.train_step(broken.select(SHARES[0][rank]), LOSS, totals(broken))
    (folder / f"skipped-{rank}.json").write_text(json.dumps(last["actor_train/skipped_steps"]))
    strategy.load(Path(one_rank_checkpoint))
    batch = make_batch(3)
    strategy.train_step(batch.select(SHARES[0][rank]), LOSS, totals(batch))
    continued = {name: t for bucket in strategy.export_weights(1 << 20) for name, t in bucket.tensors.items()}
    save_file(continued, folder / f"continued-{rank}.safetensors")
    strategy.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
