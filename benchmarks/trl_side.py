"""TRL's half of `rlvr_vs_trl.py`; runs in TRL's own environment: `python trl_side.py FOLDER STEPS THREADS SEED`.

Everything that costs TRL time and that the other side does not do is switched off (gradient checkpointing, logging, saving)."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import letters
import torch
from datasets import load_dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class Clock(TrainerCallback):
    """When each step ended, and what it logged."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.logs: list[dict[str, Any]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.ends.append(time.perf_counter())

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.logs.append(kwargs["logs"])


def reward(completions: list[str], **_: Any) -> list[float]:
    return [letters.reward(text) for text in completions]


def main(folder: Path, steps: int, threads: int, seed: int) -> None:
    torch.set_num_threads(threads)
    clock = Clock()
    config = GRPOConfig(
        output_dir=str(folder / "trl"),
        use_cpu=True,
        bf16=False,
        seed=seed,
        max_steps=letters.WARM_UP + steps,
        per_device_train_batch_size=letters.PROMPTS_PER_STEP * letters.GROUP,
        gradient_accumulation_steps=1,
        steps_per_generation=1,
        num_generations=letters.GROUP,
        max_completion_length=letters.LONGEST_RESPONSE,
        learning_rate=letters.LEARNING_RATE,
        lr_scheduler_type="constant",
        loss_type="grpo",
        beta=0.0,
        temperature=1.0,
        gradient_checkpointing=False,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        model_init_kwargs={"dtype": "float32"},
    )
    dataset = load_dataset("json", data_files=str(folder / "prompts.jsonl"), split="train", cache_dir=str(folder / "cache"))
    trainer = GRPOTrainer(str(folder / "model"), reward, config, dataset, callbacks=[clock])
    trainer.train()
    measured = [row for row in clock.logs if "completions/mean_length" in row][letters.WARM_UP :]

    def mean(key: str) -> float:
        return sum(row[key] for row in measured) / len(measured)

    print(
        json.dumps(
            {
                "seconds": clock.ends[-1] - clock.ends[letters.WARM_UP - 1],
                "length_mean": mean("completions/mean_length"),
                "length_max": max(row["completions/max_length"] for row in measured),
                "cut_off": mean("completions/clipped_ratio"),
                "reward": mean("reward"),
            }
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
