"""One of the ranks that divide micro-batches among them: `ulysses_program.py CASES OUT RANK RANKS PORT`."""

import json
import runpy
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from train_specs import train_spec

from roll.core.algorithms.value_loss import ValueLossSpec
from roll.core.data.taught import TopTokens
from roll.core.workers.train_backends import make_critic, make_train_strategy
from roll.core.workers.train_interface import RankContext

_POLICY = runpy.run_path(str(Path(__file__).with_name("rank_program.py")))
LOSS, totals, zero, LORA = (_POLICY[name] for name in ("LOSS", "totals", "zero", "LORA"))
OPTIONS = {**_POLICY["OPTIONS"], "max_grad_norm": 1e9, "warmup_steps": 0}
"""Nothing is clipped, and the first step moves the weights."""
LAYOUTS = {
    "fsdp2": ("fsdp2_train", {}),
    "recomputed": ("fsdp2_train", {"gradient_checkpointing": True}),
    "copies": ("fsdp2_train", {"fsdp_size": 1}),
    "lora": ("fsdp2_train", LORA),
    "zero2": zero(2),
    "zero3": zero(3),
    "replayed": ("fsdp2_train", {"gradient_checkpointing": True}),
    "taught": ("fsdp2_train", {}),
    "critic": ("fsdp2_train", {}),
}
VALUES = ValueLossSpec(clip=0.5)


def make_batch(layout):
    """Samples of one to three micro-batches; 1 to 3 begin as 0 does."""
    batch = _POLICY["make_batch"](9)
    tokens, offsets = batch.tokens.clone(), batch.offsets.tolist()
    for other in (1, 2, 3):
        tokens[offsets[other] : offsets[other] + 4] = tokens[:4]
    batch, count, draw = batch.with_(tokens=tokens), batch.num_tokens, torch.Generator().manual_seed(5)
    if layout == "critic":
        old, returns = (torch.randn(count, generator=draw) * batch.loss_mask for _ in range(2))
        return batch.with_(values=old, returns=returns)
    if layout == "replayed":
        return batch.with_(routes=torch.rand(count, 3, 8, generator=draw).argsort(-1)[..., :2].to(torch.uint8))
    if layout == "taught":
        trained = int(batch.loss_mask.sum())
        ids = torch.rand(trained, 37, generator=draw).argsort(1)[:, :4]
        told = TopTokens(batch.loss_mask, ids, torch.full((trained, 4), 0.2).log())
        return batch.with_(teacher_top=told, teacher_weights=torch.ones(len(batch)), teacher_logprobs=torch.zeros(count))
    return batch


def outcome(layout, model, context, ulysses_size):
    """What the whole batch gives on ranks of which each group of `ulysses_size` has a share of it."""
    name, options = LAYOUTS[layout]
    spec = train_spec(name, model, **{**OPTIONS, **options, "ulysses_size": ulysses_size})
    strategy = (make_critic if layout == "critic" else make_train_strategy)(context, spec)
    batch, groups = make_batch(layout), context.world_size // ulysses_size
    share = list(range(context.rank // ulysses_size, len(batch), groups))
    own, said, kept = batch.select(share), {"share": share}, strategy._step

    def step():
        named = strategy._model.named_parameters() if name == "fsdp2_train" else ()
        said["gradient"] = {each: strategy._ranks.full(p.grad).clone() for each, p in named if p.grad is not None}
        return kept()

    strategy._step = step
    if layout == "critic":
        said["metrics"] = strategy.train_values(own, VALUES, totals(batch))
        said["per_token"] = strategy.values(own)
    else:
        said["per_token"] = strategy.log_probs(own)
        if layout == "taught":
            said["top"] = strategy.top_log_probs(own, 3)
        loss = LOSS if layout != "taught" else LOSS.__class__(pg_variant="reinforce", aggregation="token-mean", divergence=0.3)
        said["metrics"] = strategy.train_step(own, loss, totals(batch))
    said["weights"] = {each: tensor.clone() for each, tensor in strategy._full_weights()}
    strategy.close()
    return said


def main(cases, out, rank, ranks, port):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    for layout, model, size in json.loads(cases):
        said = outcome(layout, model, RankContext(rank=rank, world_size=ranks), size)
        torch.save(said, Path(out) / f"{layout}-{Path(model).name}-{ranks}-{size}-{rank}.pt")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6]))
