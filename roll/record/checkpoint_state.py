"""The shape of `pipeline.json`: what a run needs to go on, so that a file of another shape is refused before anything starts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from roll.configs.ppo import PPOConfig
from roll.errors import CheckpointError
from roll.record.checkpoint import Checkpoint, CheckpointStore
from roll.record.group_log import GROUPS
from roll.record.journal import check_prefix
from roll.record.manifest import is_count, shown

COUNT = "a whole number from 0"
COUNTS = "counts by name"
LAGS = "counts by lag"
TEXTS = "texts"
NUMBER = "a number"
OBJECT = "an object"

SHAPE: dict[str, object] = {
    "admission": {"next_group_id": COUNT, "trained": COUNT, "dropped": COUNTS},
    "cursor": {"seed": COUNT, "served": COUNTS, "returned": TEXTS},
    "record": {"step": COUNT, "groups": COUNT, "samples": COUNT, "staleness": {"samples": LAGS, "tokens": LAGS}},
    "advantages": {"kl_coef": NUMBER},
}
"""What must be there; there may be more."""
MOMENTS = {"count": COUNT, "mean": NUMBER, "squares": NUMBER}
"""The reward moments of each domain, kept where rewards are normalised over all rewards so far."""


def check_state(state: Any, step: int) -> None:
    """Raises `CheckpointError`. `step`: that of the manifest."""
    for problem in _problems(state, SHAPE, "pipeline.json"):
        raise CheckpointError(problem)
    record = state["record"]
    for block, key in (("record", "metrics"), ("admission", "replayed")):
        if not is_count(found := state[block].get(key, 0)):
            raise CheckpointError(f"pipeline.json: {block}.{key} is {shown(found)}, not {COUNT}")
    digests = record.get("digests", {})
    if not (isinstance(digests, dict) and all(isinstance(digest, str) for digest in digests.values())):
        raise CheckpointError(f"pipeline.json: record.digests is {shown(digests)}, not texts by name")
    if record["step"] != step:
        raise CheckpointError(f"pipeline.json is of step {record['step']}, the manifest of step {step}")
    rewards = state["advantages"].get("rewards", {})
    if not isinstance(rewards, dict):
        raise CheckpointError(f"pipeline.json: advantages.rewards is {shown(rewards)}, not {OBJECT}")
    for name, moments in rewards.items():
        for problem in _problems(moments, MOMENTS, f"pipeline.json: advantages.rewards.{shown(name)}"):
            raise CheckpointError(problem)


def resumable(store: CheckpointStore, config: PPOConfig) -> Checkpoint | None:
    """The checkpoint that `resume_from_checkpoint` names, if the run can go on from it: with the fates of its groups as they were
    then, if it is the run's own. Raises `ValueError`."""

    def check(found: Checkpoint) -> None:
        check_state(found.state, found.step)
        run_dir, record = store.root.parent, found.state["record"]
        if found.is_of(run_dir):
            try:
                check_prefix(run_dir / GROUPS, record["groups"], record.get("digests", {}).get("groups"))
            except ValueError as error:
                raise CheckpointError(str(error)) from error

    checkpoint = store.resolve(config.resume_from_checkpoint, check)
    if checkpoint is not None:
        if config.uses_critic and not checkpoint.critic.is_dir():
            raise ValueError(f"{checkpoint.path} was made without a critic, which adv_estimator gae needs")
        was, now = ("a database" if "database" in checkpoint.state else "memory"), config.groups_address
        if (was == "memory") != (now is None):
            raise ValueError(f"{checkpoint.path} was made with groups in {was}, now they are in {now or 'memory'}")
        accounts = checkpoint.state["admission"]
        places = accounts["trained"] + accounts.get("replayed", 0)
        if places != checkpoint.step * config.groups_per_step:
            was = places // max(checkpoint.step, 1)
            now = f"{config.groups_per_step} (rollout_batch_size)"
            raise ValueError(f"{checkpoint.path} was made with {was} groups a step, not {now}")
    return checkpoint


def _problems(value: object, shape: Any, name: str) -> Iterator[str]:
    if isinstance(shape, str):
        if not _is(shape, value):
            yield f"{name} is {shown(value)}, not {shape}"
    elif not isinstance(value, dict):
        yield f"{name} is {shown(value)}, not {OBJECT}"
    else:
        separator = "." if ": " in name else ": "
        for key, inner in shape.items():
            if key not in value:
                yield f"{name} lacks {key}"
            else:
                yield from _problems(value[key], inner, f"{name}{separator}{key}")


def _is(shape: str, value: Any) -> bool:
    if shape == COUNT:
        return is_count(value)
    if shape == NUMBER:
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    if shape == TEXTS:
        return isinstance(value, list) and all(isinstance(text, str) for text in value)
    counts = isinstance(value, dict) and all(map(is_count, value.values()))
    return counts and (shape == COUNTS or all(key.isdecimal() and len(key) < 10 for key in value))
