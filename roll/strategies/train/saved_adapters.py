"""The adapters of a checkpoint, a folder as peft reads it, held against those that a configuration trains: what can be known
before a worker starts. Which layers an expression fits is known when the model is there; loading compares them."""

from __future__ import annotations

from pathlib import Path

from roll.core.configs.arguments import ModelArguments
from roll.core.errors import Misfit
from roll.core.weights.adapter import BaseWeights
from roll.core.weights.folder_files import read_json

ADAPTER = "adapter"
WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
BASE = "base.json"
"""The file that identifies the adapters' base model."""


def target_names(target: str) -> list[str]:
    """The linear layers that `lora_target` lists; none if it is an expression, or `all-linear`."""
    names = [name.strip() for name in target.split(",")]
    return names if target != "all-linear" and all(name.replace("_", "").isalnum() for name in names) else []


def check_adapters(trainer: Path, model: ModelArguments, base: str) -> None:
    """`trainer`: of a checkpoint. `base`: the model folder. Raises `ValueError` unless a trainer of these can go on from it."""
    folder = trainer / ADAPTER
    if not (folder / CONFIG).is_file():
        if model.lora_target is not None:
            message = f"{trainer.parent} was made without lora_target; its trainer/model can be pretrain"
            raise Misfit(message, "remove lora_target; or another exp_name, and pretrain: that folder")
        return
    saved = read_json(folder / CONFIG)
    targets = saved["target_modules"]
    listed = sorted(targets) if isinstance(targets, list) else []
    was = f"{trainer.parent} was made with lora_target {','.join(listed) or targets}"
    trained = ",".join(listed) or str(targets)
    if model.lora_target is None:
        raise Misfit(was, f"actor_train.model_args.lora_target: {trained}")
    if (names := sorted(target_names(model.lora_target))) and listed and names != listed:
        raise Misfit(f"{was}, not {','.join(names)}", f"actor_train.model_args.lora_target: {trained}")
    for key, before, now in (
        ("lora_rank", saved["r"], model.adapter_rank),
        ("lora_alpha", saved["lora_alpha"], model.adapter_alpha),
    ):
        if before != now:
            message = f"{trainer.parent} was made with {key} {before:g}, not {now:g}"
            raise Misfit(message, f"actor_train.model_args.{key}: {before:g}")
    if read_json(folder / BASE)["fingerprint"] != BaseWeights(Path(base)).fingerprint:
        message = f"the adapters of {trainer.parent} were trained upon another model than {base}"
        raise Misfit(message, "pretrain: the model that the run began with; or another exp_name")
