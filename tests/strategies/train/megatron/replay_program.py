"""One of two ranks that take a step with given experts in several layouts: `replay_program.py MODELS OUT RANK PORTS`."""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from train_specs import train_spec

from roll.core.algorithms.loss import LossSpec
from roll.core.data.token_batch import TokenBatch
from roll.core.workers.train_interface import BatchTotals, RankContext
from roll.strategies.train.megatron.strategy import MegatronStrategy

LAYERS, EXPERTS, EACH = {"qwen3_moe": 2, "qwen2_moe": 1, "qwen3_moe_of_three": 3}, 4, 2
LOSS = LossSpec(pg_variant="ppo", aggregation="seq-mean-token-mean", entropy_coef=0.01)
OPTIONS = {
    "dtype": "fp32",
    "learning_rate": 1e-3,
    "max_grad_norm": 1e9,
    "total_optimizer_steps": 10,
    "max_tokens_per_microbatch": 30,
    "max_tokens_per_microbatch_infer": 30,
}
PP2, TP2, EP2 = {"pipeline_model_parallel_size": 2}, {"tensor_model_parallel_size": 2}, {"expert_model_parallel_size": 2}
FULL = {"recompute_granularity": "full"}
LAYOUTS = {
    "ep2": ("qwen3_moe", EP2),
    "pp2": ("qwen3_moe_of_three", {**PP2, "account_for_embedding_in_pipeline_split": True}),
    "pp2_recompute": ("qwen3_moe", {**PP2, **FULL}),
    "pp2_block": ("qwen3_moe", {**PP2, **FULL, "recompute_method": "block", "recompute_num_layers": 1}),
    "pp2_one_mixture": ("qwen2_moe", PP2),
    "cp2": ("qwen3_moe", {**EP2, "context_parallel_size": 2}),
    "tp2_sp": ("qwen2_moe", {**TP2, "sequence_parallel": True}),
}
SHARES = ([0, 2, 3], [1, 4])
"""Of data-parallel ranks."""


def batch_of(model, samples=5):
    """The last token of each sample, and all of the third sample, have no experts given."""
    draw = torch.Generator().manual_seed(3)
    lengths = torch.randint(5, 14, (samples,), generator=draw)
    count = int(lengths.sum())
    mask = torch.cat([torch.arange(length) >= 3 for length in lengths.tolist()])
    routes = torch.rand(count, LAYERS[model], EXPERTS, generator=draw).argsort(-1)[..., :EACH].to(torch.uint8)
    last = lengths.cumsum(0) - 1
    routes[last] = 255
    routes[last[1] + 1 : last[2]] = 255
    return TokenBatch(
        lengths=lengths,
        scores=torch.zeros(samples),
        temperatures=torch.ones(samples),
        tokens=torch.randint(2, 37, (count,), generator=draw),
        loss_mask=mask,
        behaviour_logprobs=-3.6 * mask,
        advantages=torch.randn(count, generator=draw) * mask,
        routes=routes,
    )


def weights(strategy):
    return {name: tensor for bucket in strategy.export_weights(2000) for name, tensor in bucket.tensors.items()}


def scored_and_trained(strategy, batch, share):
    """Log-probs before a step and the weights after it, and its metrics. `share`: samples of this rank."""
    totals = BatchTotals(int(batch.loss_mask.sum()), len(batch))
    own = batch.select(share)
    logprobs = strategy.log_probs(own)
    metrics = strategy.train_step(own, LOSS, totals)
    return {"logprobs": logprobs} | {f"trained/{name}": tensor for name, tensor in weights(strategy).items()}, metrics


def main(models, out, rank, ports):
    for (name, (model, options)), port in zip(LAYOUTS.items(), ports, strict=True):
        context = RankContext(rank=rank, world_size=2, master_port=port)
        strategy = MegatronStrategy(context, train_spec("megatron_train", models / model, **{**OPTIONS, **options}))
        batch = batch_of(model)
        share = SHARES[rank] if name == "ep2" else list(range(len(batch)))
        tensors, metrics = scored_and_trained(strategy, batch, share)
        save_file(tensors, out / f"{name}-{rank}.safetensors")
        (out / f"{name}-{rank}.json").write_text(json.dumps(metrics))
        strategy.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), [int(port) for port in sys.argv[4].split(",")])
