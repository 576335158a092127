"""One of two ranks that train rows by each back end in turn: `rows_program.py MODEL BATCHES OUT RANK PORTS`."""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from train_specs import train_spec

from roll.core.algorithms.loss import LossSpec
from roll.core.data.token_batch import TokenBatch
from roll.core.trainer.batch import shards, totals_of
from roll.core.workers.train_backends import make_train_strategy
from roll.core.workers.train_interface import RankContext
from roll.topologies.rows.row_losses import VARIANT

OPTIONS = {"dtype": "fp32", "learning_rate": 1e-3, "max_grad_norm": 0.5, "total_optimizer_steps": 10}
LOSS = LossSpec(pg_variant=VARIANT, aggregation="token-mean")
LORA = {"lora_target": "q_proj,v_proj,down_proj", "lora_rank": 3, "lora_alpha": 12.0}


def zero(stage, **options):
    return "deepspeed_train", {"zero": {"stage": stage, "stage3_param_persistence_threshold": 0}, **options}


KINDS = ("sft", "sigmoid")
LAYOUTS = {
    "megatron": ("megatron_train", {}),
    "megatron-tp2": ("megatron_train", {"tensor_model_parallel_size": 2}),
    "fsdp2": ("fsdp2_train", {}),
    "zero2": zero(2),
    "zero3": zero(3),
    "fsdp2-lora": ("fsdp2_train", LORA),
    "zero3-lora": zero(3, **LORA),
}


def read(file):
    """What `TokenBatch` has of rows whose tokens have their weights."""
    given = load_file(file)
    count, rows = len(given["tokens"]), len(given["lengths"])
    return TokenBatch(**given, scores=torch.zeros(rows), temperatures=torch.ones(rows), behaviour_logprobs=torch.zeros(count))


def trained(layout, model, batches, context):
    """The metrics of a step on each batch, and the log-probs of this rank's share of the last one after them."""
    name, options = LAYOUTS[layout]
    whole, ranks = options.get("tensor_model_parallel_size", 1) > 1, context.world_size
    strategy = make_train_strategy(context, train_spec(name, model, **OPTIONS, **options))
    metrics = []
    for batch in batches:
        share = batch if whole else shards(batch, ranks)[context.rank]
        metrics.append(strategy.train_step(share, LOSS, totals_of(batch)))
    logprobs = strategy.log_probs(share)
    strategy.close()
    return metrics, {"logprobs": logprobs.tolist()}


if __name__ == "__main__":
    model, batches, out, rank, *ports = sys.argv[1:]
    given = [read(Path(batches) / f"{kind}.safetensors") for kind in KINDS]
    for layout, port in zip(LAYOUTS, ports, strict=True):
        if "megatron" not in layout and not dist.is_initialized():  # DeepSpeed keeps the first group that it has seen
            dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=int(rank), world_size=2)
        found = trained(layout, model, given, RankContext(rank=int(rank), world_size=2, master_port=int(port)))
        (Path(out) / f"{layout}-{rank}.json").write_text(json.dumps(found))
