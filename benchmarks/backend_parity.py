"""Parity and cost of the training back ends: every layout against a plain PyTorch loop, from the same weights and batches.

    python benchmarks/backend_parity.py                     # all layouts, ten steps, the table
    python benchmarks/backend_parity.py --layouts zero3-2   # some of them

A layout runs in processes of its own (gloo), one a rank. The plain loop pads the whole batch to one tensor and takes one backward
pass; the back ends cut the same batch into micro-batches and ranks. Compared after the last step: weights (largest difference,
relative to the largest weight of the tensor), gradient norms of every step, log-probs before the first.

`s/step` is the median on this machine, all ranks together; `x plain` over that of the plain loop, which runs again before each
layout. Memory of the rank that has most: `peak` resident, and `PSS` after the last step, where a page that processes share
(libraries, mostly) counts in parts."""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from transformers import (
    AutoModelForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from roll.core.algorithms.loss import LossSpec, compute_loss
from roll.core.configs.arguments import FSDP2Config, ModelArguments, TrainBackendConfig, TrainingArguments
from roll.core.configs.backend_arguments import DeepSpeedConfig, MegatronConfig, ZeroConfig
from roll.core.data.token_batch import TokenBatch
from roll.core.trainer.batch import shares
from roll.core.workers.lr_schedule import lr_scale
from roll.core.workers.train_backends import make_train_strategy
from roll.core.workers.train_interface import BatchTotals, RankContext
from roll.core.workers.train_spec import Optimisation, TrainSpec
from roll.platform.ports import free_port
from roll.strategies.train.logprobs import row_logprobs
from roll.transports.experts import published

REPO = Path(__file__).resolve().parents[1]
STEPS = 10
SAMPLES = 12
VOCABULARY = 64
LOSS = LossSpec(pg_variant="ppo", aggregation="token-mean", kl_loss_coef=0.1, entropy_coef=0.01)
TRAINING = TrainingArguments(learning_rate=1e-3, weight_decay=0.1, lr_scheduler_type="cosine", warmup_steps=2)
BUDGET, MAX_GRAD_NORM = 128, 0.5
OPTIMISATION = Optimisation(arguments=TRAINING, total_steps=STEPS, max_grad_norm=MAX_GRAD_NORM, max_tokens_per_microbatch=BUDGET)
NOISE = "k_proj.bias"
"""Softmax does not see it: its gradient is rounding error alone, of which AdamW makes whole steps."""


@dataclass(frozen=True, slots=True)
class Layout:
    backend: TrainBackendConfig
    ranks: int
    ranks_per_shard: int = 1
    """Ranks that share a data-parallel rank; all of them here."""
    model: str = "dense"


def zero(stage: Literal[0, 1, 2, 3]) -> DeepSpeedConfig:
    return DeepSpeedConfig(zero_optimization=ZeroConfig(stage=stage))


TP2 = MegatronConfig(tensor_model_parallel_size=2)
TP2_SP = replace(TP2, sequence_parallel=True)
TP2_SP_EP2 = replace(TP2_SP, expert_model_parallel_size=2, expert_tensor_parallel_size=1)
LAYOUTS = {
    "fsdp2-1": Layout(FSDP2Config(), 1),
    "fsdp2-2": Layout(FSDP2Config(), 2),
    "zero0-2": Layout(zero(0), 2),
    "zero1-2": Layout(zero(1), 2),
    "zero2-2": Layout(zero(2), 2),
    "zero3-2": Layout(zero(3), 2),
    "megatron-tp1": Layout(MegatronConfig(), 1),
    "megatron-tp2": Layout(TP2, 2, 2),
    "megatron-tp2+sp": Layout(TP2_SP, 2, 2),
    "megatron-pp2": Layout(MegatronConfig(pipeline_model_parallel_size=2), 2, 2),
    "megatron-dp2": Layout(MegatronConfig(), 2),
    "megatron-cp2": Layout(MegatronConfig(context_parallel_size=2), 2, 2),
    "fsdp2-1 mixture": Layout(FSDP2Config(), 1, model="mixture"),
    "megatron-1 mixture": Layout(MegatronConfig(), 1, model="mixture"),
    "megatron-ep2": Layout(MegatronConfig(expert_model_parallel_size=2), 2, model="mixture"),
    "megatron-tp2+sp+ep2": Layout(TP2_SP_EP2, 2, 2, "mixture"),
}


@dataclass(frozen=True, slots=True)
class Row:
    layout: str
    weights: float
    """Largest |difference| / largest |weight| of the tensor."""
    grad_norm: float
    """Largest relative difference of a step's gradient norm."""
    logprobs: float
    """Largest |difference|."""
    step_s: float
    peak_mib: float
    pss_mib: float


def make_model(folder: Path, kind: str = "dense") -> None:
    """`dense`: a Qwen2 with tied embeddings; `mixture`: a Qwen3-MoE of 8 experts, 2 for each token."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "initializer_range": 0.1,
    }
    if kind == "dense":
        Qwen2ForCausalLM(Qwen2Config(**sizes, tie_word_embeddings=True)).save_pretrained(folder)
    else:
        experts: dict[str, Any] = {
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
            "norm_topk_prob": True,
            "head_dim": 16,
        }
        Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes, **experts)).save_pretrained(folder)
    core = Tokenizer(models.WordLevel({f"t{i}": i for i in range(VOCABULARY)}, unk_token="t0"))
    PreTrainedTokenizerFast(tokenizer_object=core, eos_token="t1").save_pretrained(folder)


def make_batch(seed: int) -> TokenBatch:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(8, 64, (SAMPLES,), generator=generator)
    count = int(lengths.sum())
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)[:-1]])
    mask = torch.arange(count) - torch.repeat_interleave(starts, lengths) >= 4
    return TokenBatch(
        lengths=lengths,
        scores=torch.rand(SAMPLES, generator=generator),
        temperatures=torch.full((SAMPLES,), 0.7),
        tokens=torch.randint(VOCABULARY, (count,), generator=generator),
        loss_mask=mask,
        behaviour_logprobs=-4.0 * torch.rand(count, generator=generator) * mask,
        advantages=torch.randn(count, generator=generator) * mask,
        reference_logprobs=-4.0 * torch.rand(count, generator=generator) * mask,
    )


def totals_of(batch: TokenBatch) -> BatchTotals:
    return BatchTotals(int(batch.loss_mask.sum()), len(batch))


def plain_loop(model_path: Path, steps: int) -> tuple[dict[str, torch.Tensor], list[float], torch.Tensor, list[float]]:
    """Weights after the last step, gradient norms, log-probs before the first, seconds of each step."""
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32).eval()
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups: list[dict[str, Any]] = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=TRAINING.learning_rate, weight_decay=TRAINING.weight_decay)

    def forward(batch: TokenBatch) -> tuple[torch.Tensor, torch.Tensor | None, Any]:
        padded = batch.padded()
        logits = model(input_ids=padded.tokens, attention_mask=padded.attention_mask, use_cache=False).logits
        rows, predictors = trained = padded.loss_mask[:, 1:].nonzero(as_tuple=True)
        targets = padded.tokens[:, 1:][trained]
        values = row_logprobs(logits[rows, predictors], targets, padded.temperatures[rows], "differentiable")
        placed = [v.new_zeros(padded.tokens.shape).index_put((rows, predictors + 1), v) for v in values if v is not None]
        return placed[0], placed[1], padded

    with torch.no_grad():
        values, _, padded = forward(make_batch(99))
    logprobs, norms, seconds = padded.flatten(values), [], []
    for step in range(steps):
        began = time.perf_counter()
        batch = make_batch(step)
        totals = totals_of(batch)
        values, entropy, padded = forward(batch)
        loss, _ = compute_loss(values, entropy, padded, LOSS, totals.tokens, totals.sequences)
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)))
        scale = lr_scale(step, STEPS, TRAINING.lr_scheduler_type, TRAINING.warmup_steps)
        for group in optimizer.param_groups:
            group["lr"] = TRAINING.learning_rate * scale
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - began)
    kind = model.config.model_type
    trained = {name: part for n, p in model.named_parameters() for name, part in published(kind, n, p.detach())}
    return trained, norms, logprobs, seconds


def run_rank(layout: Layout, model_path: str, out: Path, rank: int, port: int, steps: int) -> None:
    """One rank of a layout: ten steps, then what the comparison needs."""
    context = RankContext(rank=rank, world_size=layout.ranks, master_port=port)
    spec = TrainSpec(
        model_path=model_path,
        model=ModelArguments(dtype="fp32"),
        backend=layout.backend,
        optimisation=OPTIMISATION,
        max_tokens_per_microbatch_infer=BUDGET,
        collective_timeout_s=600.0,
    )
    strategy = make_train_strategy(context, spec)
    shard, shards = rank // layout.ranks_per_shard, layout.ranks // layout.ranks_per_shard

    def mine(batch: TokenBatch) -> list[int]:
        return shares(batch, shards)[shard]

    first = make_batch(99)
    result = {"logprobs": strategy.log_probs(first.select(mine(first))), "indices": torch.tensor(mine(first))}
    norms, seconds = [], []
    for step in range(steps):
        began = time.perf_counter()
        batch = make_batch(step)
        metrics = strategy.train_step(batch.select(mine(batch)), LOSS, totals_of(batch))
        norms.append(metrics["actor_train/grad_norm"])
        seconds.append(time.perf_counter() - began)
    result |= {f"trained/{name}": t for bucket in strategy.export_weights(1 << 20) for name, t in bucket.tensors.items()}
    save_file(result, out / f"{rank}.safetensors")
    (out / f"{rank}.json").write_text(json.dumps({"norms": norms, "seconds": seconds, "memory": memory_mib()}))


def memory_mib() -> tuple[float, float]:
    """Of this process: most that was resident so far, and its proportional share now."""
    pss = next(line for line in Path("/proc/self/smaps_rollup").read_text().splitlines() if line.startswith("Pss:"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, int(pss.split()[1]) / 1024


def arguments_of_ranks(name: str, model_path: Path, out: Path, steps: int) -> list[list[str]]:
    """Of this script, for each rank of a layout. Makes the folder of what they write."""
    out.mkdir(parents=True)
    words = ["--rank_of", name, "--model", str(model_path), "--out", str(out), "--port", str(free_port()), "--steps", str(steps)]
    return [[*words, "--rank", str(rank)] for rank in range(LAYOUTS[name].ranks)]


def run_layout(name: str, model_path: Path, out: Path, steps: int = STEPS, timeout_s: float = 300.0) -> None:
    """All ranks of a layout, as processes. Raises `RuntimeError` with what the first failing one said."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPO), "TORCH_COMPILE_DISABLE": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, *words], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        for words in arguments_of_ranks(name, model_path, out, steps)
    ]
    try:
        for process in processes:
            _, errors = process.communicate(timeout=timeout_s)
            if process.returncode:
                raise RuntimeError(f"{name}: a rank ended with code {process.returncode}:\n{errors[-3000:]}")
    finally:
        for process in processes:
            process.kill()


def compare(name: str, out: Path, plain: tuple[dict[str, torch.Tensor], list[float], torch.Tensor, list[float]]) -> Row:
    weights, norms, logprobs, _ = plain
    layout = LAYOUTS[name]
    told = [json.loads((out / f"{rank}.json").read_text()) for rank in range(layout.ranks)]
    files = [load_file(out / f"{rank}.safetensors") for rank in range(layout.ranks)]
    trained = {key.removeprefix("trained/"): t for file in files for key, t in file.items() if key.startswith("trained/")}
    assert trained.keys() == weights.keys(), sorted(trained.keys() ^ weights.keys())
    reference = make_batch(99).with_(behaviour_logprobs=logprobs)
    distance = max(
        float((file["logprobs"] - reference.select(file["indices"].tolist()).behaviour_logprobs).abs().max()) for file in files
    )
    relative = [float((trained[key] - w).abs().max() / w.abs().max()) for key, w in weights.items() if NOISE not in key]
    return Row(
        name,
        max(relative),
        max(abs(got - norm) / norm for one in told for got, norm in zip(one["norms"], norms, strict=True)),
        distance,
        statistics.median(told[0]["seconds"]),
        *(max(sizes) for sizes in zip(*(one["memory"] for one in told), strict=True)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Parity and cost of the training back ends.")
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--steps", type=int, default=STEPS)
    for hidden in ("--rank_of", "--model", "--out", "--rank", "--port"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_of:
        torch.set_num_threads(1)
        out, rank, port = Path(options.out), int(options.rank), int(options.port)
        run_rank(LAYOUTS[options.rank_of], options.model, out, rank, port, options.steps)
        # Process groups that libraries made are left to the end of the process.
        sys.stderr.flush()
        os._exit(0)
    torch.set_num_threads(1)
    print(f"{options.steps} steps, float32, one thread a rank; load of the last minute {os.getloadavg()[0]:.1f}\n")
    print(
        f"{'layout':<20}{'weights':>11}{'grad norm':>11}{'log-probs':>11}{'plain s':>9}{'s/step':>9}{'x plain':>9}"
        f"{'peak MiB':>10}{'PSS MiB':>9}"
    )
    with tempfile.TemporaryDirectory() as folder:
        for kind in dict.fromkeys(LAYOUTS[name].model for name in options.layouts):
            make_model(Path(folder) / kind, kind)
        for name in options.layouts:
            model_path = Path(folder) / LAYOUTS[name].model
            plain = plain_loop(model_path, options.steps)
            run_layout(name, model_path, Path(folder) / name.replace(" ", "-"), options.steps)
            row = compare(name, Path(folder) / name.replace(" ", "-"), plain)
            plain_s = statistics.median(plain[3])
            print(
                f"{row.layout:<20}{row.weights:>11.1e}{row.grad_norm:>11.1e}{row.logprobs:>11.1e}{plain_s:>9.3f}{row.step_s:>9.3f}"
                f"{row.step_s / plain_s:>9.2f}{row.peak_mib:>10.0f}{row.pss_mib:>9.0f}",
                flush=True,
            )
        peak, pss = memory_mib()
        print(f"{'(the plain loop)':<20}{'':>60}{peak:>10.0f}{pss:>9.0f}")


if __name__ == "__main__":
    main()
