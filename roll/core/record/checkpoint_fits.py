"""True if a run can go on from a checkpoint with the configuration that it has now; if not, which key to change, and to what."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from roll.core.configs.plain import JsonObject
from roll.core.configs.ppo import PPOConfig
from roll.core.errors import Misfit
from roll.core.weights.folder_files import CONFIG, read_json

SHAPE = ("model_type", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
"""Keys of a model's config.json: where these differ, so do the weights."""


class Found(Protocol):
    """A checkpoint, as `roll.core.record.checkpoint` has it."""

    @property
    def path(self) -> Path: ...

    @property
    def step(self) -> int: ...

    @property
    def state(self) -> JsonObject: ...

    @property
    def critic(self) -> Path: ...

    @property
    def model(self) -> Path: ...


def check_fits(checkpoint: Found, config: PPOConfig) -> None:
    """Raises `Misfit`."""
    if config.trains:
        _check_model(checkpoint, config)
    if config.uses_critic and not checkpoint.critic.is_dir():
        fix = "an adv_estimator that needs no critic, as the run had; or, for a run of its own, another exp_name"
        raise Misfit(f"{checkpoint.path} was made without a critic, which adv_estimator gae needs", fix)
    was, now = ("a database" if "database" in checkpoint.state else "memory"), config.groups_address
    if (was == "memory") != (now is None) and config.mode != "replay":
        fix = "groups_database: null, and mode: both" if was == "memory" else "the groups_database of the run's config.yaml"
        raise Misfit(f"{checkpoint.path} was made with groups in {was}, now they are in {now or 'memory'}", fix)
    accounts = checkpoint.state["admission"]
    places = accounts["trained"] + accounts["reused"]
    if places != checkpoint.step * config.groups_per_step:
        groups = places // max(checkpoint.step, 1)
        fix = f"rollout_batch_size: {groups * config.rollout_batch_size // config.groups_per_step}, or another exp_name"
        message = f"{checkpoint.path} was made with {groups} groups a step, not {config.groups_per_step} (rollout_batch_size)"
        raise Misfit(message, fix)


def _check_model(checkpoint: Found, config: PPOConfig) -> None:
    base = config.model_folder(config.actor_train)
    here, there = Path(base) / CONFIG, checkpoint.model / CONFIG
    if not (here.is_file() and there.is_file()):
        return  # what is missing is told elsewhere
    now, was = read_json(here), read_json(there)
    for name in SHAPE:
        if name in was and name in now and was[name] != now[name]:
            message = f"{checkpoint.path} is of another model than {base}: its {name} is {was[name]}, not {now[name]}"
            raise Misfit(message, "pretrain: the model that the run began with; or, for a run of this model, another exp_name")
