"""One rank of the tests with several, as a process: `rank_program.py MODEL FAMILIES OUT RANK RANKS PORT LAYOUT...`.

FAMILIES holds folders of models whose weights only go in and out. OUT holds the checkpoints `one` and `one-lora` of one rank.
"""

import functools
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from saving import save, write
from torch.utils._python_dispatch import TorchDispatchMode
from train_specs import train_spec

from roll.core.algorithms.loss import LossSpec
from roll.core.data.token_batch import TokenBatch
from roll.core.trainer.batch import totals_of
from roll.core.workers.train_backends import make_train_strategy
from roll.core.workers.train_interface import AccumulatingStrategy, BatchTotals, RankContext

OPTIONS = {
    "dtype": "fp32",
    "learning_rate": 1e-3,
    "weight_decay": 0.1,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 2,
    "total_optimizer_steps": 10,
    "max_grad_norm": 0.5,
    "max_tokens_per_microbatch": 40,
    "max_tokens_per_microbatch_infer": 30,
}
LOSS = LossSpec(pg_variant="ppo", aggregation="seq-mean-token-mean", kl_loss_coef=0.1, entropy_coef=0.01)
SHARES = [([0, 1, 2, 3, 4], [5, 6]), ([2, 5], [0, 1, 3, 4, 6]), ([0, 1, 2, 3, 4, 5, 6], [])]
"""Samples of the first two ranks in steps 0, 1, 2: unequal, and once none at all. Others have none."""
ON_CPU = {"device": "cpu", "pin_memory": False}
LORA = {"lora_target": "q_proj,v_proj,down_proj", "lora_rank": 3, "lora_alpha": 12.0}
BF16 = {"dtype": "bf16"}


def zero(stage, offload_optimizer=None, offload_param=None, **options):
    """Stage 3 divides parameters of any size."""
    offload = {"offload_optimizer": offload_optimizer, "offload_param": offload_param}
    block = {name: where for name, where in offload.items() if where}
    return "deepspeed_train", {"zero": {"stage": stage, "stage3_param_persistence_threshold": 0, **block}, **options}


LAYOUTS = {
    "fsdp2": ("fsdp2_train", {}),
    "fsdp2-bf16": ("fsdp2_train", BF16),
    "fsdp2-copies": ("fsdp2_train", {"fsdp_size": 1}),
    "fsdp2-nodes": ("fsdp2_train", {"fsdp_size": 2}),
    "fsdp2-compiled": ("fsdp2_train", {"compile": True}),
    "fsdp2-sums-late": ("fsdp2_train", {"reduce_scatter_during_grad_accumulation": False}),
    "fsdp2-gathers-once": ("fsdp2_train", {"reshard_after_forward": False}),
    "zero0": zero(0),
    "zero1": zero(1),
    "zero2": zero(2),
    "zero3": zero(3),
    "zero3-offload": zero(3, offload_optimizer=ON_CPU, offload_param=ON_CPU),
    "fsdp2-lora": ("fsdp2_train", LORA),
    "zero3-lora": zero(3, **LORA),
    "zero1-bf16": zero(1, **BF16),
    "zero3-bf16": zero(3, **BF16),
    "fsdp2-lora-alone": ("fsdp2_train", {**LORA, "export_adapters": True}),
    "zero3-lora-alone": zero(3, **LORA, export_adapters=True),
    "fsdp2-lora-bf16": ("fsdp2_train", {**LORA, **BF16}),
}


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
        rollout_tokens=tokens_of_rollouts(lengths - 2),
    )


def tokens_of_rollouts(tokens: torch.Tensor) -> torch.Tensor:
    """Samples 0 to 2 are one rollout, 3 to 5 the next, and so on."""
    return torch.cat([part.sum().repeat(len(part)) for part in tokens.split(3)]).float()


totals = totals_of


def share(shares: tuple[list[int], list[int]], rank: int) -> list[int]:
    return shares[rank] if rank < len(shares) else []


def exported(strategy, bucket_bytes=1 << 20):
    return {name: t for bucket in strategy.export_weights(bucket_bytes) for name, t in bucket.tensors.items()}


class Collectives(TorchDispatchMode):
    """How often the ranks divide a sum of theirs among them, and gather weights."""

    sums = gathered = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.sums += "reduce_scatter" in str(func)
        self.gathered += "allgather" in str(func)
        return func(*args, **(kwargs or {}))


def in_parts(strategy, batch: TokenBatch, loss: LossSpec, of_batch: BatchTotals) -> dict[str, float]:
    """`train_step`, in three calls: all of the samples but the first, then that one."""
    everything = list(range(len(batch)))
    strategy.add_gradients(batch.select(everything[1:]), loss)
    strategy.add_gradients(batch.select(everything[:1]), loss)
    return strategy.step_on_gradients(loss, of_batch)


def run_layout(layout: str, model: str, out: Path, rank: int) -> None:
    folder = out / layout
    folder.mkdir(exist_ok=True)
    name, options = LAYOUTS[layout]
    strategy = make_train_strategy(
        RankContext(rank=rank, world_size=dist.get_world_size()), train_spec(name, model, **{**OPTIONS, **options})
    )
    save(strategy, folder / "fresh")
    batch = make_batch(9)
    result = {"logprobs": strategy.log_probs(batch.select(share(SHARES[0], rank)))}
    metrics = []
    for step, shares in enumerate(SHARES):
        batch = make_batch(step)
        train = in_parts if step == 1 and isinstance(strategy, AccumulatingStrategy) else strategy.__class__.train_step
        with Collectives() as made:
            metrics.append(train(strategy, batch.select(share(shares, rank)), LOSS, totals(batch)))
    (folder / f"collectives-{rank}.json").write_text(json.dumps({"sums": made.sums, "gathered": made.gathered}))
    snapshot = strategy.snapshot()
    write(strategy, snapshot, folder / "checkpoint")
    result |= {f"trained/{name}": tensor for name, tensor in exported(strategy, 2000).items()}
    broken = make_batch(3)
    broken.advantages[-1] = torch.nan
    metrics.append(strategy.train_step(broken.select(share(SHARES[0], rank)), LOSS, totals(broken)))
    result |= {f"skipped/{name}": tensor for name, tensor in exported(strategy).items()}
    strategy.load(out / ("one-lora" if "lora" in layout else "one"))
    batch = make_batch(3)
    strategy.train_step(batch.select(share(SHARES[0], rank)), LOSS, totals(batch))
    result |= {f"continued/{name}": tensor for name, tensor in exported(strategy).items()}
    write(strategy, snapshot, folder / "written-later")
    save_file(result, folder / f"tensors-{rank}.safetensors")
    (folder / f"metrics-{rank}.json").write_text(json.dumps(metrics))
    strategy.close()


def run_frozen(stage: int, model: str, out: Path, rank: int) -> None:
    context, (_, options) = RankContext(rank=rank, world_size=dist.get_world_size()), zero(stage)
    strategy = make_train_strategy(context, train_spec("deepspeed_infer", model, dtype="fp32", **options))
    result = {"logprobs": strategy.log_probs(make_batch(9).select(share(SHARES[0], rank))), **exported(strategy)}
    save_file(result, out / f"frozen{stage}-{rank}.safetensors")
    try:
        strategy.train_step(make_batch(0), LOSS, totals(make_batch(0)))
    except RuntimeError as error:
        (out / f"frozen{stage}-{rank}.txt").write_text(str(error))
    strategy.close()


def round_trip(model: Path, out: Path, rank: int) -> None:
    """From a Hugging Face folder to divided weights and back."""
    for layout in ("fsdp2", "zero1", "zero3"):
        name, options = LAYOUTS[layout]
        context = RankContext(rank=rank, world_size=dist.get_world_size())
        strategy = make_train_strategy(context, train_spec(name, model, dtype="fp32", **options))
        save_file(exported(strategy), out / f"{model.name}-{layout}-{rank}.safetensors")
        strategy.close()


def compiles_nothing_but_graphs() -> None:
    """Code for them takes a minute, and is another test's."""
    torch.compile = functools.partial(torch.compile, backend="aot_eager")


def main(model: str, families: str, out: str, rank: int, ranks: int, port: int, layouts: list[str]) -> None:
    compiles_nothing_but_graphs()
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    for layout in layouts:
        run_layout(layout, model, Path(out), rank)
    everything = ranks == 2 and len(layouts) > 1
    for stage in (2, 3) if everything else ():
        run_frozen(stage, model, Path(out), rank)
    for family in sorted(Path(families).iterdir()) if everything else ():
        if "of_three" not in family.name:  # Megatron's
            round_trip(family, Path(out), rank)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], *map(int, sys.argv[4:7]), sys.argv[7:])
