"""A tiny world for runs of real processes: a random Qwen2, a tokenizer of single characters, prompts, YAMLs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tiny_models import symbol_tokenizer, tiny_qwen2

WORKERS = Path(__file__).parents[1] / "faults"
"""Folder of `fault_workers`."""
PROMPTS = 40
BATCH = 4
GROUP = 4
STEPS = 12
CHARACTERS = "0123456789+= "
LETTERS = "abcd=\n> "
"""What `fault_workers.Letters` shows and is answered in."""


def make_model(folder: Path, characters: str = CHARACTERS, **tokenizer: Any) -> None:
    symbols = ["<pad>", "<eos>", "<unk>", *characters]
    model = tiny_qwen2(
        len(symbols), num_hidden_layers=1, max_position_embeddings=64, initializer_range=0.2, pad_token_id=0, eos_token_id=1
    )
    model.save_pretrained(folder)
    symbol_tokenizer(symbols, unk_token="<unk>", **tokenizer).save_pretrained(folder)


def prompt_row(number: int) -> dict[str, Any]:
    return {"id": f"p{number}", "tag": "even", "prompt": f"{number}+{number * 7 % 90}=", "ground_truth": "0"}


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def settings(folder: Path) -> dict[str, Any]:
    """The run that all tests vary: ratio 1, an epoch and a bit, a filter that drops about an eighth of the groups."""
    return {
        "exp_name": "run",
        "output_dir": str(folder / "output"),
        "max_steps": STEPS,
        "save_steps": 2,
        "eval_steps": 6,
        "num_gpus_per_node": 2,
        "rollout_batch_size": BATCH,
        "num_return_sequences_in_group": GROUP,
        "prompt_length": 8,
        "response_length": 6,
        "async_generation_ratio": 1,
        "rpc_timeout": 60,
        "track_with": "none",
        "pretrain": str(folder / "model"),
        "actor_train": {
            "device_mapping": "0",
            "pg_variant": "tis",
            "training_args": {
                "learning_rate": 1.0e-3,
                "lr_scheduler_type": "constant",
                "per_device_train_batch_size": BATCH * GROUP,
            },
            "data_args": {"file_name": str(folder / "train.jsonl"), "template": "none"},
        },
        "actor_infer": {"device_mapping": "1"},
        "validation": {"data_args": {"file_name": str(folder / "validation.jsonl"), "template": "none"}},
        "rewards": {
            "even": {
                "worker_cls": "fault_workers.EvenRewardWorker",
                "query_filter_config": {"type": "mean_filter", "filter_args": {"threshold_down": 0.0, "threshold_up": 1.0}},
            }
        },
    }


def agentic_settings(folder: Path) -> dict[str, Any]:
    """The same run with agents: four groups of two episodes a step, played by two coordinators."""
    rlvr = settings(folder)
    alike = ("exp_name", "max_steps", "save_steps", "num_gpus_per_node", "async_generation_ratio", "rpc_timeout", "track_with")
    trainer = rlvr["actor_train"]["training_args"] | {"per_device_train_batch_size": 2 * BATCH}
    return {key: rlvr[key] for key in alike} | {
        "output_dir": str(folder / "output"),
        "eval_steps": 1000,
        "rollout_batch_size": 2 * BATCH,
        "sequence_length": 48,
        "max_tokens_per_step": 4,
        "pretrain": str(folder / "agent"),
        "actor_train": {"device_mapping": "0", "training_args": trainer, "data_args": {"template": "none"}},
        "actor_infer": {"device_mapping": "1"},
        "custom_envs": {"letters": {"env_type": "fault_workers.Letters", "max_steps": 3, "agent_system_template": ""}},
        "train_env_manager": {
            "num_env_groups": BATCH,
            "group_size": 2,
            "max_env_num_per_worker": BATCH,
            "group_filter_cls": "roll.core.groups.filters.equal_rewards",
        },
    }


def program_settings(folder: Path) -> dict[str, Any]:
    """The same with agents that are programs."""
    agentic = agentic_settings(folder)
    agent = str(WORKERS / "letters_agent")
    program = {"command": ["python", "agent.py"], "folder": agent, "reward": "fault_workers.letters_right"}
    return agentic | {
        "pretrain": str(folder / "program"),
        "actor_train": agentic["actor_train"] | {"data_args": {"template": "native"}},
        "custom_envs": {"letters": {"env_type": "program", "max_steps": 3, "program": program}},
    }


@dataclass
class World:
    folder: Path
    """Holds models, prompt files and the YAMLs; read by all tests."""

    workers: Path = WORKERS
    """Folder of `fault_workers`."""

    def arguments(self, *overrides: str, config: str = "run") -> list[str]:
        return ["--config_path", str(self.folder), "--config_name", config, *overrides]


def make_world(folder: Path) -> World:
    make_model(folder / "model")
    write_rows(folder / "train.jsonl", [prompt_row(i) for i in range(PROMPTS)])
    write_rows(folder / "validation.jsonl", [prompt_row(i) for i in range(50, 54)])
    (folder / "run.yaml").write_text(yaml.safe_dump(settings(folder)))
    make_model(folder / "agent", LETTERS)
    (folder / "agentic.yaml").write_text(yaml.safe_dump(agentic_settings(folder)))
    make_model(folder / "program", LETTERS, chat_template="{% for message in messages %}{{ message.content }}{% endfor %}")
    (folder / "programs.yaml").write_text(yaml.safe_dump(program_settings(folder)))
    return World(folder)


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Whole lines only: the file may be growing."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


def wait_for(what: str, condition: Callable[[], Any], deadline_s: float = 150.0) -> Any:
    """The condition's first true value; fails the test at the deadline."""
    end = time.monotonic() + deadline_s
    while not (value := condition()):
        if time.monotonic() > end:
            pytest.fail(f"no {what} within {deadline_s:.0f} s")
        time.sleep(0.02)
    return value
