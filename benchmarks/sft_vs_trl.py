"""Training on rows against TRL's SFTTrainer, DPOTrainer and DistillationTrainer, on the same rows and the same random Qwen2, in
float32.

* gradients: of one step of SFT, DPO, IPO and of each divergence from a teacher (the rows take the place of the student's own
  texts), the distance of the two sides as a share of the gradient's length
* speed: SFT, tokens a second on two threads each (`OMP_NUM_THREADS`); this project packs micro-batches by tokens; TRL packs rows
  by its default strategy (bfd, made for FlashAttention: elsewhere a batch is one sequence that attends to itself), in chunks that
  cut rows (wrapped), or pads them. The sides alternate, each run in a process of its own.

    make bench-env
    python benchmarks/sft_vs_trl.py [--rounds 2] [--steps 20] [--hidden 256] [--layers 4] [--trl PYTHON]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import letters
import torch
from pipeline_run import ROOT, read_run, save_results
from safetensors.torch import load_file

import roll
from roll.core.data.sample import SampleGroup
from roll.core.data.taught import TopTokens
from roll.core.data.token_batch import TokenBatch
from roll.core.pipeline.roles import loss_spec, train_spec
from roll.core.trainer.batch import token_batch, totals_of
from roll.core.workers.train_backends import make_train_strategy
from roll.core.workers.train_interface import RankContext
from roll.platform.local_backend import LocalBackend
from roll.prepare.rows_run import RowsRun, prepare
from roll.topologies.rows.from_rows import complete

ROWS, SPEED_BATCH, WARM_UP = 32, 64, 3
LOSSES = {"sft": "", "sigmoid": "sigmoid", "ipo": "ipo"}
PACKINGS = {"sft-bfd": 32, "sft-wrapped": 32, "sft": SPEED_BATCH}
"""How TRL packs -> its rows in a batch, of about as many tokens on each side."""
BETAS = {"forward_kl": 0.0, "js_divergence": 0.3, "reverse_kl": 1.0}


def write_load(folder: Path, hidden: int, layers: int) -> int:
    """A model, another one as reference, rows and pairs of words of random length; returns the model's parameters."""
    count = letters.make(folder, hidden, layers, 1)
    model = roll_model(folder / "model")
    with torch.no_grad():
        for each in model.parameters():
            each.add_(0.02 * torch.randn_like(each))
    model.save_pretrained(folder / "other")
    (folder / "other" / "tokenizer.json").write_bytes((folder / "model" / "tokenizer.json").read_bytes())
    (folder / "other" / "tokenizer_config.json").write_bytes((folder / "model" / "tokenizer_config.json").read_bytes())
    draw = random.Random(0)

    def text(low: int, high: int) -> str:
        return "".join(draw.choices(letters.CHARACTERS, k=draw.randint(low, high)))

    rows = [{"prompt": text(8, 24), "completion": text(8, 150)} for _ in range(2048)]
    pairs = [{"prompt": text(8, 24), "chosen": text(8, 100), "rejected": text(8, 100)} for _ in range(ROWS)]
    for name, lines in (("rows", rows), ("pairs", pairs), ("few", rows[:ROWS])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    return count


def roll_model(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def configuration(folder: Path, kind: str, steps: int, batch: int, file: str) -> dict[str, Any]:
    data = {"file_name": str(folder / file), "template": "none"}
    training = {"learning_rate": 1e-4, "lr_scheduler_type": "constant", "per_device_train_batch_size": batch}
    actor = {"data_args": data, "training_args": training, "max_tokens_per_microbatch_in_train": 4096}
    actor["model_args"] = {"disable_gradient_checkpointing": True, "dtype": "fp32"}
    shared = {"exp_name": kind, "output_dir": str(folder / "ours"), "pretrain": str(folder / "model"), "sequence_length": 192}
    shared |= {"max_steps": steps, "actor_train": actor, "track_with": "none", "rollout_log_per_step": 0, "max_grad_norm": 1e9}
    if kind == "sft":
        return {**shared, "sft": {"response": "completion"}}
    reference = {"model_args": {"model_name_or_path": str(folder / "other"), "dtype": "fp32"}}
    return {**shared, "dpo": {"loss": LOSSES[kind], "beta": 0.5}, "reference": reference}


def written(folder: Path, name: str, content: dict[str, Any]) -> Path:
    import yaml

    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def gradient(folder: Path, kind: str) -> dict[str, torch.Tensor]:
    """Of the whole set, by the components of a run."""
    beta = BETAS.get(kind)
    rows, file = ("sft", "few.jsonl") if kind == "sft" or beta is not None else (kind, "pairs.jsonl")
    config: Any = roll.load_config(written(folder, rows, configuration(folder, rows, 1, ROWS, file)))
    prepared = prepare(config, LocalBackend().devices(1, None), one_process=True)
    groups = [complete(SampleGroup(i, 0, prepared.source.next())) for i in range(ROWS)]
    batch, derived, context = token_batch(groups, 1.0), prepared.derived, RankContext()
    frozen: Any = roll.load_config(written(folder, "frozen", configuration(folder, "sigmoid", 1, ROWS, "pairs.jsonl")))

    def strategy(role: str) -> Any:
        worker = getattr(config if role == "actor_train" else frozen, role)
        return make_train_strategy(context, train_spec(config, derived, worker, config.model_folder(worker)))

    if rows != "sft":
        batch = batch.with_(reference_logprobs=strategy("reference").log_probs(batch))
    trained, loss = strategy("actor_train"), loss_spec(config, derived)
    if rows != "sft":
        batch = batch.with_(proximal_logprobs=trained.log_probs(batch))
    batch, _ = RowsRun.advantages(config)(batch, groups)
    if beta is not None:
        batch, loss = told(batch, strategy("reference")), replace(loss, divergence=beta)
    list(trained._gradients(batch, trained._policy_loss(loss, totals_of(batch))))
    return {name: each.grad.clone() for name, each in trained._model.named_parameters() if each.grad is not None}


def told(batch: TokenBatch, teacher: Any) -> TokenBatch:
    """What the teacher knows of the rows, of the whole vocabulary; nothing else is learnt from them."""
    logprobs, ids, most = teacher.top_log_probs(batch, len(letters.CHARACTERS) + 1)
    return batch.with_(
        advantages=torch.zeros(batch.num_tokens),
        teacher_logprobs=torch.zeros(batch.num_tokens).masked_scatter(batch.loss_mask, logprobs),
        teacher_weights=torch.ones(len(batch)),
        teacher_top=TopTokens(batch.loss_mask, ids.long(), most),
    )


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys(), one.keys() ^ other.keys()
    apart = sum(float((one[name].double() - other[name].double()).square().sum()) for name in one)
    length = sum(float(each.double().square().sum()) for each in other.values())
    return (apart / length) ** 0.5


def trl(python: str, folder: Path, kind: str, steps: int, batch: int) -> dict[str, Any]:
    command = [python, str(ROOT / "benchmarks" / "trl_rows_side.py"), str(folder), kind, "2", str(steps), str(batch)]
    command += [str(BETAS[kind])] if kind in BETAS else []
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    return dict(json.loads(done.stdout.splitlines()[-1])) if steps > 1 else {}


def ours(folder: Path, steps: int, batch: int) -> dict[str, Any]:
    path = written(folder, "speed", configuration(folder, "sft", steps + WARM_UP, batch, "rows.jsonl"))
    command = [sys.executable, "examples/start_sft_pipeline.py", f"--config_path={folder}", "--config_name=speed", "--local"]
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    subprocess.run([*command, "resume_from_checkpoint=false"], cwd=ROOT, env=environment, check=True, capture_output=True)
    run = read_run(folder / "ours" / "sft")
    elapsed = [row["time/elapsed_s"] for row in run.steps]
    lines = [json.loads(line) for line in (folder / "ours" / "sft" / "groups.jsonl").read_text().splitlines()]
    prompts = {json.loads(each)["completion"]: len(json.loads(each)["prompt"]) for each in (folder / "rows.jsonl").open()}
    mean_prompt = statistics.fmean(prompts.values())
    trained = [row for row in lines if row["step"] > WARM_UP]
    assert path.exists()
    return {"seconds": elapsed[-1] - elapsed[WARM_UP - 1], "tokens": sum(row["tokens"] + mean_prompt for row in trained)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--trl", default=str(ROOT / ".venv-bench" / "bin" / "python"), help="Python with TRL")
    parser.add_argument("--gradients", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        parameters = write_load(folder, options.hidden, options.layers)
        print(f"{parameters:,} parameters")
        result: dict[str, Any] = {"parameters": parameters, "gradients": {}, "speed": []}
        rows = (folder / "rows.jsonl").read_text()
        (folder / "rows.jsonl").write_text((folder / "few.jsonl").read_text())
        for kind in (*LOSSES, *BETAS) if options.gradients else ():
            trl(options.trl, folder, kind, 1, ROWS)
            apart = distance(gradient(folder, kind), load_file(folder / f"trl_{kind}.safetensors"))
            result["gradients"][kind] = apart
            print(f"gradient of {kind:<13} apart by {apart:.1e} of its length")
        (folder / "rows.jsonl").write_text(rows)
        for number in range(options.rounds):
            sides = {"ours": ours(folder, options.steps, SPEED_BATCH)}
            sides |= {kind: trl(options.trl, folder, kind, options.steps + WARM_UP, batch) for kind, batch in PACKINGS.items()}
            speeds = {name: side["tokens"] / side["seconds"] for name, side in sides.items()}
            result["speed"].append(speeds)
            said = ", ".join(f"TRL {kind} {speeds[kind]:,.0f} (ratio {speeds['ours'] / speeds[kind]:.2f})" for kind in PACKINGS)
            print(f"round {number + 1}: {speeds['ours']:,.0f} tokens/s, {said}", flush=True)
        save_results("sft_vs_trl", result)


if __name__ == "__main__":
    main()
