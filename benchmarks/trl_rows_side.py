"""TRL's half of `sft_vs_trl.py`; runs in TRL's own environment: `python trl_rows_side.py FOLDER KIND THREADS STEPS BATCH [BETA]`.

KIND is sft, sft-bfd or sft-wrapped, packed so, a loss of DPOTrainer, or with BETA a divergence of DistillationTrainer. With one
step its gradient goes to FOLDER/trl_<KIND>.safetensors; with more the seconds after the first three are printed."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from datasets import load_dataset
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, TrainerCallback
from trl import DistillationConfig, DistillationTrainer, DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

WARM_UP = 3


class Watch(TrainerCallback):
    """Keeps the gradients of the first step, and the time at which each ended."""

    def __init__(self) -> None:
        self.gradients: dict[str, torch.Tensor] = {}
        self.ends: list[float] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self.gradients:
            named = kwargs["model"].named_parameters()
            self.gradients = {name: each.grad.detach().clone() for name, each in named if each.grad is not None}

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.ends.append(time.perf_counter())


class GivenTexts(DistillationTrainer):  # type: ignore[misc]
    """Compares on given texts, not on the student's own."""

    completions: dict[str, str]

    def _generate(self, prompts: list[str]) -> tuple[Any, ...]:
        encode, end = self.processing_class, self.processing_class.eos_token_id
        asked = [encode(prompt)["input_ids"] for prompt in prompts]
        return asked, [[*encode(self.completions[prompt])["input_ids"], end] for prompt in prompts], None, None, None


def main(folder: Path, kind: str, threads: int, steps: int, batch: int, beta: float | None = None) -> None:
    torch.set_num_threads(threads)
    watch = Watch()
    shared: dict[str, Any] = {
        "output_dir": str(folder / "trl"), "use_cpu": True, "max_steps": steps, "per_device_train_batch_size": batch,
        "learning_rate": 1e-4, "lr_scheduler_type": "constant", "max_grad_norm": 1e9, "gradient_checkpointing": False,
        "bf16": False, "logging_steps": 1000, "report_to": "none", "save_strategy": "no", "disable_tqdm": True,
    }  # fmt: skip
    kind, _, packing = kind.partition("-")
    name = "rows" if kind == "sft" or beta is not None else "pairs"
    rows = load_dataset("json", data_files=str(folder / f"{name}.jsonl"), split="train", cache_dir=str(folder / "cache"))
    trainer: Any
    if beta is not None:
        models = [str(folder / each) for each in ("model", "other")]
        options = {"model_init_kwargs": {"dtype": "float32"}, "teacher_model_init_kwargs": {"dtype": "float32"}}
        distils = DistillationConfig(**shared, **options, beta=beta, max_completion_length=192)
        tokenizer = __import__("transformers").AutoTokenizer.from_pretrained(folder / "model")
        trainer = GivenTexts(
            models[0], models[1], args=distils, train_dataset=rows, processing_class=tokenizer, callbacks=[watch]
        )
        trainer.completions = {row["prompt"]: row["completion"] for row in rows}
    elif kind == "sft":
        packed = {"packing": True, "packing_strategy": packing} if packing else {}
        config = SFTConfig(**shared, **packed, max_length=192, model_init_kwargs={"dtype": "float32"})
        trainer = SFTTrainer(str(folder / "model"), config, train_dataset=rows, callbacks=[watch])
    else:
        model, reference = (
            AutoModelForCausalLM.from_pretrained(folder / each, dtype=torch.float32) for each in ("model", "other")
        )
        options = DPOConfig(**shared, max_length=192, beta=0.5, loss_type=kind, disable_dropout=True)
        tokenizer = __import__("transformers").AutoTokenizer.from_pretrained(folder / "model")
        trainer = DPOTrainer(model, reference, options, train_dataset=rows, processing_class=tokenizer, callbacks=[watch])
    tokens = sum(map(len, trainer.train_dataset["input_ids"])) if kind == "sft" else 0
    trainer.train()
    if steps == 1:
        save_file(watch.gradients, folder / f"trl_{kind}.safetensors")
    else:
        per_row = tokens / len(trainer.train_dataset)
        seconds = watch.ends[-1] - watch.ends[WARM_UP - 1]
        print(json.dumps({"seconds": seconds, "tokens": per_row * batch * (steps - WARM_UP)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:6]), *map(float, sys.argv[6:]))
