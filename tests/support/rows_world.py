"""A tiny world for runs on rows: a random Qwen2 with a chat template, rows of sums, pairs of answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tiny_models import symbol_tokenizer, tiny_qwen2

from roll.plan.rows_config import DPOConfig, RowsConfig, SFTConfig
from roll.plan.rules.loading import load_config

START, END = "<|im_start|>", "<|im_end|>"
SYMBOLS = ["<pad>", "<eos>", "<unk>", START, END, *"\n0123456789+= sutac[]"]
TEMPLATE = (
    "{% if tools %}[{{ tools | length }}]{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m['role'][0] + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>a' }}{% endif %}"
)
"""A newline follows the end of each turn, as in the templates of most models."""


def tokenizer(template: str = TEMPLATE) -> Any:
    made = symbol_tokenizer(SYMBOLS, r"<\|im_start\|>|<\|im_end\|>|[\s\S]", unk_token="<unk>", chat_template=template)
    made.eos_token = END
    return made


def sums(count: int, first: int = 0) -> list[dict[str, Any]]:
    """Conversations; every third has two questions."""

    def turn(i: int) -> list[dict[str, str]]:
        a, b = i * 7 % 90, i * 13 % 90
        return [{"role": "user", "content": f"{a}+{b}="}, {"role": "assistant", "content": str(a + b)}]

    return [{"messages": turn(i) + (turn(i + 1) if i % 3 == 0 else [])} for i in range(first, first + count)]


def pairs(count: int, first: int = 0) -> list[dict[str, Any]]:
    told = [row["messages"][:2] for row in sums(count, first)]
    return [
        {"prompt": asked["content"], "chosen": said["content"], "rejected": f"{i % 7}"} for i, (asked, said) in enumerate(told)
    ]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def make_world(folder: Path) -> Path:
    for name, seed in (("model", 0), ("other", 1)):
        changes = {"max_position_embeddings": 128, "initializer_range": 0.2, "pad_token_id": 0, "eos_token_id": 4}
        tiny_qwen2(len(SYMBOLS), seed=seed, **changes).save_pretrained(folder / name)
        tokenizer().save_pretrained(folder / name)
    write(folder / "train.jsonl", sums(24))
    write(folder / "held_out.jsonl", sums(6, 50))
    write(folder / "pairs.jsonl", pairs(24))
    write(folder / "held_out_pairs.jsonl", pairs(6, 50))
    return folder


def settings(world: Path, out: Path, **changes: Any) -> dict[str, Any]:
    """Of SFT, unless the changes have a block `dpo`."""
    names = ("pairs", "held_out_pairs") if "dpo" in changes else ("train", "held_out")
    train, held_out = ({"data_args": {"file_name": str(world / f"{name}.jsonl")}} for name in names)
    training = {"learning_rate": 3e-3, "lr_scheduler_type": "constant", "per_device_train_batch_size": 8}
    kind: dict[str, Any] = {} if "dpo" in changes else {"sft": {}}
    return {
        "exp_name": "run", "output_dir": str(out), "pretrain": str(world / "model"), "sequence_length": 64, "max_steps": 6,
        "save_steps": 3, "eval_steps": 3, "track_with": "none", "max_grad_norm": 1e9, "validation": held_out,
        "actor_train": {**train, "training_args": training, "device_mapping": "0"}, **kind, **changes,
    }  # fmt: skip


def config(world: Path, out: Path, **changes: Any) -> RowsConfig:
    kind: Any = DPOConfig if "dpo" in changes else SFTConfig
    made: RowsConfig = load_config(kind, settings(world, out, **changes))
    return made
