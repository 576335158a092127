"""TRL's half of `rlvr_vs_trl.py`; runs in TRL's own environment: `python trl_side.py FOLDER STEPS THREADS SEED LOAD`; LOAD
is the module that says what is trained: letters, or sums.

Everything that costs TRL time and that the other side does not do is switched off (gradient checkpointing, logging, saving)."""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from datasets import load_dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class Clock(TrainerCallback):
    """When training began and each step ended, and what it logged."""

    def __init__(self) -> None:
        self.began = 0.0
        self.ends: list[float] = []
        self.logs: list[dict[str, Any]] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.began = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.ends.append(time.perf_counter())

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.logs.append(kwargs["logs"])


def main(folder: Path, steps: int, threads: int, seed: int, load: Any) -> None:
    torch.set_num_threads(threads)
    clock, rewards = Clock(), load.rewards()
    config = GRPOConfig(
        output_dir=str(folder / "trl"),
        use_cpu=True,
        seed=seed,
        max_steps=load.WARM_UP + steps,
        per_device_train_batch_size=load.PROMPTS_PER_STEP * load.GROUP,
        gradient_accumulation_steps=1,
        steps_per_generation=1,
        num_generations=load.GROUP,
        max_completion_length=load.LONGEST_RESPONSE,
        learning_rate=load.LEARNING_RATE,
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
        reward_weights=[1.0] + [0.0] * (len(rewards) - 1),
        **load.TRL_OPTIONS,
    )
    dataset = load_dataset("json", data_files=str(folder / "prompts.jsonl"), split="train", cache_dir=str(folder / "cache"))
    trainer = GRPOTrainer(str(folder / "model"), rewards, config, dataset, callbacks=[clock])
    trainer.train()
    rows = [row for row in clock.logs if "completions/mean_length" in row]
    measured = rows[load.WARM_UP :]

    def mean(key: str) -> float:
        return sum(row[key] for row in measured) / len(measured)

    print(
        json.dumps(
            {
                "seconds": clock.ends[-1] - clock.ends[load.WARM_UP - 1],
                "length_mean": mean("completions/mean_length"),
                "length_max": max(row["completions/max_length"] for row in measured),
                "cut_off": mean("completions/clipped_ratio"),
                "reward": mean("reward"),
                "ends": [end - clock.began for end in clock.ends],
                "right": [row.get("rewards/right/mean", 0.0) for row in rows],
            }
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), importlib.import_module(sys.argv[5]))
