"""One of two ranks that run every layout of two ranks in turn, as a process: `layout_program.py MODELS OUT RANK PORTS`."""

import json
import runpy
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from roll.strategies.train.interface import RankContext
from roll.strategies.train.megatron.strategy import MegatronStrategy

SHARED = runpy.run_path(str(Path(__file__).parents[1] / "rank_program.py"))
OPTIONS, LOSS, make_batch, totals = (SHARED[name] for name in ("OPTIONS", "LOSS", "make_batch", "totals"))
STEPS = 10
TP2, PP2 = {"tensor_model_parallel_size": 2}, {"pipeline_model_parallel_size": 2}
LAYOUTS = {
    "tp2": ("qwen2-tied", TP2),
    "tp2_sp": ("qwen3-untied", {**TP2, "sequence_parallel": True}),
    "tp2_sp_tied": ("qwen2-tied", {**TP2, "sequence_parallel": True, "use_distributed_optimizer": False}),
    "pp2": ("qwen2-tied", PP2),
    "pp2_recompute": ("llama-untied", {**PP2, "gradient_checkpointing": True, "use_distributed_optimizer": False}),
    "dp2": ("qwen2-tied", {}),
    "dp2_plain": ("qwen3-tied", {"use_distributed_optimizer": False}),
    "dp2_overlap": ("llama-tied", {"overlap_grad_reduce": True}),
}
MODELS = ("qwen2-tied", "qwen2-untied", "qwen3-tied", "qwen3-untied", "llama-tied", "llama-untied")
SHARES = [([0, 1, 2, 3, 4], [5, 6]), ([2, 5], [0, 1, 3, 4, 6]), ([0, 1, 2, 3, 4, 5, 6], [])]
"""Samples of each data-parallel rank, step by step in turn: unequal, and sometimes none at all."""


def share(batch, step, layout, rank):
    return batch.select(SHARES[step % len(SHARES)][rank]) if layout.startswith("dp2") else batch


def weights(strategy):
    return {name: tensor for bucket in strategy.export_weights(2000) for name, tensor in bucket.tensors.items()}


def run_layout(layout, models, out, rank, port):
    model, options = LAYOUTS[layout]
    context = RankContext(rank=rank, world_size=2, master_port=port)
    strategy = MegatronStrategy(context, str(models / model), **{**OPTIONS, **options})
    result = {"logprobs": strategy.log_probs(share(make_batch(9), 0, layout, rank))}

    def step(number, batch):
        return strategy.train_step(share(batch, number, layout, rank), LOSS, totals(batch))

    metrics = [step(number, make_batch(number)) for number in range(STEPS)]
    result |= {f"trained/{name}": tensor for name, tensor in weights(strategy).items()}
    strategy.save(out / layout)
    broken = make_batch(3)
    broken.advantages[-1] = torch.nan
    metrics.append(step(0, broken))
    result |= {f"skipped/{name}": tensor for name, tensor in weights(strategy).items()}
    # Each layout goes on from the checkpoint of the first.
    if LAYOUTS["tp2"][0] == model:
        strategy.load(out / "tp2")
        step(STEPS, make_batch(STEPS))
        result |= {f"continued/{name}": tensor for name, tensor in weights(strategy).items()}
    save_file(result, out / f"{layout}-{rank}.safetensors")
    (out / f"{layout}-{rank}.json").write_text(json.dumps(metrics))
    strategy.close()


def round_trip(options, models, out, rank, port):
    """Weights of every model, as they come back from a divided one."""
    context = RankContext(rank=rank, world_size=2, master_port=port)
    strategies = {m: MegatronStrategy(context, str(models / m), trainable=False, dtype="fp32", **options) for m in MODELS}
    for model, strategy in strategies.items():
        save_file(weights(strategy), out / f"{model}-{'-'.join(options)}-{rank}.safetensors")
        strategy.close()


def main(models, out, rank, ports):
    for options, port in zip((TP2, PP2), ports, strict=False):
        round_trip(options, models, out, rank, port)
    for layout, port in zip(LAYOUTS, ports[2:], strict=True):
        run_layout(layout, models, out, rank, port)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), [int(port) for port in sys.argv[4].split(",")])
