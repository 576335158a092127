"""verl's settings, of YAML or of a start script: a mapping as its users write it, turned into keys of this project. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from roll.compat.framework import File, Framework, at
from roll.compat.roll.keys_verl import VERL as PIPELINE
from roll.compat.roll.rule import KeyRule
from roll.compat.roll.translation import has_field
from roll.compat.verl.defaults import left_out
from roll.compat.verl.facts import ROLLOUT
from roll.compat.verl.keys_policy import ACTOR_RULES, ALGORITHM, MODEL_RULES
from roll.compat.verl.keys_rollout import RULES as ROLLOUT_RULES
from roll.compat.verl.keys_run import DATA, FLOW, TRAINER
from roll.compat.verl.keys_training import CRITIC, REFERENCE
from roll.core.configs.rlvr import RLVRConfig

BLOCKS = (
    "actor_rollout_ref", "algorithm", "async_training", "critic", "custom_reward_function", "data", "distillation",
    "global_profiler",
    "ray_kwargs", "reward", "reward_manager", "reward_model", "rollout", "sandbox_fusion", "skip", "trainer", "transfer_queue",
)  # fmt: skip
_AHEAD = KeyRule(
    "async_generation_ratio", "alias", "one step off-policy", lambda v, f: {"async_generation_ratio": v}, values="engines apart"
)
RULES = (*DATA, *TRAINER, *FLOW, *ALGORITHM, *MODEL_RULES, *ACTOR_RULES, *ROLLOUT_RULES, *REFERENCE, *CRITIC, _AHEAD)
_PIPELINE = {rule.path for rule in PIPELINE}


def is_verl(file: File) -> bool:
    """Returns True for a file with a model, an actor or data of verl's; single keys of its pipeline are in other files, too."""
    inner = file.get("actor_rollout_ref")
    rollout = at(file, ROLLOUT, {})
    named = isinstance(inner, Mapping) and any(name in inner for name in ("actor", "model", "hybrid_engine"))
    return named or (isinstance(rollout, Mapping) and "name" in rollout) or at(file, "data.train_files") is not None


def _passes(path: str) -> bool:
    return path in _PIPELINE or has_field(RLVRConfig, tuple(path.split(".")))


VERL = Framework(
    "verl",
    owns=is_verl,
    blocks=BLOCKS,
    scalars=("model_engine",),
    rules=RULES,
    left_out=left_out,
    needed={
        "data.train_files": "is left out: a file of this machine, .parquet or .jsonl",
        f"{ROLLOUT}.name": "is left out: vllm, sglang, or hf, this project's own engine",
        "actor_rollout_ref.model.path": "is left out: a local folder, or a name of the hub",
    },
    phrases={
        "rewards.*.tag_included": "verl's scorers that have their like here",
        "resume_from_checkpoint: auto": "trainer.resume_mode: auto",
        "resume_from_checkpoint: false": "trainer.resume_mode: disable",
    },
    passes=_passes,
    no_settings=frozenset({"_target_"}),
)
