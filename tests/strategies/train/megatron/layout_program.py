"""One of two ranks that run every layout of two ranks in turn, as a process: `layout_program.py MODELS OUT RANK PORTS`."""

import json
import runpy
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from saving import save
from train_specs import train_spec

from roll.core.workers.train_interface import RankContext
from roll.strategies.train.megatron.critic import MegatronCritic
from roll.strategies.train.megatron.strategy import MegatronStrategy

SHARED = runpy.run_path(str(Path(__file__).parents[1] / "rank_program.py"))
VALUES = runpy.run_path(str(Path(__file__).parents[1] / "critic_program.py"))
OPTIONS, LOSS, make_batch, totals = (SHARED[name] for name in ("OPTIONS", "LOSS", "make_batch", "totals"))
STEPS = 3
TP2, PP2 = {"tensor_model_parallel_size": 2}, {"pipeline_model_parallel_size": 2}
EP2 = {"expert_model_parallel_size": 2}
LAYOUTS = {
    "tp2": ("qwen2-tied", TP2),
    "tp2_sp": ("qwen3-untied", {**TP2, "sequence_parallel": True}),
    "tp2_sp_tied": ("qwen2-tied", {**TP2, "sequence_parallel": True, "use_distributed_optimizer": False}),
    "pp2": ("qwen2-tied", PP2),
    "pp2_recompute": ("llama-untied", {**PP2, "gradient_checkpointing": True, "use_distributed_optimizer": False}),
    "dp2": ("qwen2-tied", {}),
    "dp2_plain": ("qwen3-tied", {"use_distributed_optimizer": False}),
    "dp2_overlap": ("llama-tied", {"overlap_grad_reduce": True}),
    "cp2": ("qwen2-tied", {"context_parallel_size": 2}),
    "cp2_recompute": ("qwen3-untied", {"context_parallel_size": 2, "gradient_checkpointing": True}),
    "ep2": ("qwen3_moe", EP2),
    "ep2_plain": ("qwen3_moe", {**EP2, "use_distributed_optimizer": False, "gradient_checkpointing": True}),
    "moe_dp2": ("qwen3_moe", {"overlap_grad_reduce": True}),
    "moe_pp2": ("qwen2_moe", PP2),
    "moe_pp2_uneven": ("qwen3_moe_of_three", {**PP2, "account_for_embedding_in_pipeline_split": True}),
    "moe_cp2_ep2": ("qwen3_moe", {**EP2, "context_parallel_size": 2}),
    "moe_tp2_sp": ("qwen2_moe", {**TP2, "sequence_parallel": True}),
    "moe_tp2_sp_ep2": ("qwen2_moe", {**TP2, **EP2, "sequence_parallel": True, "expert_tensor_parallel_size": 1}),
}
CRITICS = {
    "critic_tp2": TP2,
    "critic_tp2_sp": {**TP2, "sequence_parallel": True, "use_distributed_optimizer": False},
    "critic_pp2": PP2,
    "critic_cp2": {"context_parallel_size": 2},
}
CONTINUED = {"qwen2-tied": "tp2", "qwen3_moe": "ep2", "qwen2_moe": "moe_pp2"}
"""Model -> the layout from whose checkpoint all of the model go on."""
MODELS = ("qwen2-tied", "qwen2-untied", "qwen3-tied", "qwen3-untied", "llama-tied", "llama-untied", "qwen2_moe", "qwen3_moe")
DIVIDING = ("tensor_model_parallel", "pipeline_model_parallel", "context_parallel")
SHARES = [([0, 1, 2, 3, 4], [5, 6]), ([2, 5], [0, 1, 3, 4, 6]), ([0, 1, 2, 3, 4, 5, 6], [])]
"""Samples of each data-parallel rank, step by step in turn: unequal, and sometimes none at all."""


def share(batch, step, layout, rank):
    one_model = any(LAYOUTS[layout][1].get(f"{name}_size", 1) > 1 for name in DIVIDING)
    return batch if one_model else batch.select(SHARES[step % len(SHARES)][rank])


def weights(strategy):
    return {name: tensor for bucket in strategy.export_weights(2000) for name, tensor in bucket.tensors.items()}


def run_layout(layout, models, out, rank, port):
    model, options = LAYOUTS[layout]
    context = RankContext(rank=rank, world_size=2, master_port=port)
    strategy = MegatronStrategy(context, train_spec("megatron_train", models / model, **{**OPTIONS, **options}))
    result = {"logprobs": strategy.log_probs(share(make_batch(9), 0, layout, rank))}

    def step(number, batch):
        return strategy.train_step(share(batch, number, layout, rank), LOSS, totals(batch))

    metrics = [step(number, make_batch(number)) for number in range(STEPS)]
    result |= {f"trained/{name}": tensor for name, tensor in weights(strategy).items()}
    save(strategy, out / layout)
    broken = make_batch(3)
    broken.advantages[-1] = torch.nan
    metrics.append(step(0, broken))
    result |= {f"skipped/{name}": tensor for name, tensor in weights(strategy).items()}
    if model in CONTINUED:
        strategy.load(out / CONTINUED[model])
        step(STEPS, make_batch(STEPS))
        result |= {f"continued/{name}": tensor for name, tensor in weights(strategy).items()}
    save_file(result, out / f"{layout}-{rank}.safetensors")
    (out / f"{layout}-{rank}.json").write_text(json.dumps(metrics))
    strategy.close()


def run_critic(layout, models, out, rank, port):
    context = RankContext(rank=rank, world_size=2, master_port=port)
    critic = MegatronCritic(context, train_spec("megatron_train", models / "qwen2-tied", **OPTIONS, **CRITICS[layout]))
    batches = [VALUES["make_batch"](step) for step in range(3)]
    metrics = [critic.train_values(batch, VALUES["LOSS"], totals(batch)) for batch in batches]
    save_file({"values": critic.values(VALUES["make_batch"](9))}, out / f"{layout}-{rank}.safetensors")
    (out / f"{layout}-{rank}.json").write_text(json.dumps(metrics))
    save(critic, out / layout)
    critic.close()


def round_trip(options, models, out, rank, port):
    """Weights of every model, as they come back from a divided one."""
    context = RankContext(rank=rank, world_size=2, master_port=port)
    fixed = {"dtype": "fp32", "sequence_parallel": True, **options}
    strategies = {m: MegatronStrategy(context, train_spec("megatron_infer", models / m, **fixed)) for m in MODELS}
    for model, strategy in strategies.items():
        save_file(weights(strategy), out / f"{model}-{'-'.join(options)}-{rank}.safetensors")
        strategy.close()


def main(models, out, rank, ports):
    for options, port in zip((TP2, PP2), ports, strict=False):
        round_trip(options, models, out, rank, port)
    for layout, port in zip(LAYOUTS, ports[2:], strict=False):
        run_layout(layout, models, out, rank, port)
    for layout, port in zip(CRITICS, ports[2 + len(LAYOUTS) :], strict=True):
        run_critic(layout, models, out, rank, port)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), [int(port) for port in sys.argv[4].split(",")])
