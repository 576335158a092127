"""What several keys of verl's settings say together: the mode, devices, batches, lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from roll.compat.framework import File, at, is_count

ACTOR, ROLLOUT, MODEL, REF = (
    "actor_rollout_ref.actor",
    "actor_rollout_ref.rollout",
    "actor_rollout_ref.model",
    "actor_rollout_ref.ref",
)
ASYNC = "async_training"
MEGATRON_SIZES = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
LARGEST_NODE = 8
DOMAIN = "score"
"""verl has one reward: its domain here."""


def count(file: File, path: str, default: int = 1) -> int:
    """Returns the count at `path`; `default` for what is none."""
    value = at(file, path, default)
    return value if is_count(value) else default


def fully_async(file: File) -> bool:
    return isinstance(file.get(ASYNC), Mapping)


def apart(file: File) -> bool:
    """Returns True if generation has devices of its own: fully asynchronous, or one step off-policy."""
    return fully_async(file) or at(file, "rollout.n_gpus_per_node") is not None or at(file, "rollout.nnodes") is not None


def with_critic(file: File) -> bool:
    return bool(at(file, "algorithm.adv_estimator") == "gae")


def with_reference(file: File) -> bool:
    return bool(at(file, f"{ACTOR}.use_kl_loss")) or bool(at(file, "algorithm.use_kl_in_reward"))


def megatron(file: File) -> bool:
    return "megatron" in [str(at(file, path)) for path in ("model_engine", f"{ACTOR}.strategy")]


def engine(file: File) -> str:
    """Returns the engine's name here."""
    return {"hf": "hf_infer"}.get(str(at(file, f"{ROLLOUT}.name", "")), str(at(file, f"{ROLLOUT}.name", "")))


def loss_mode(file: File) -> str:
    return str(at(file, f"{ACTOR}.policy_loss.loss_mode", "vanilla"))


def validates(file: File) -> bool:
    """Returns True if there are prompts, and steps, for validation."""
    every = at(file, "trainer.test_freq")
    return at(file, "data.val_files") not in (None, "", []) and is_count(every)


def data_blocks(file: File) -> Sequence[str]:
    return ("actor_train.data_args", "validation.data_args") if validates(file) else ("actor_train.data_args",)


def of_data(name: str) -> Any:
    """Returns a function that writes the value to the data of training and of validation."""
    return lambda value, file: {f"{block}.{name}": value for block in data_blocks(file)}


def trained_roles(file: File) -> tuple[str, ...]:
    return ("actor_train", *["critic"] * with_critic(file))


def split(file: File) -> tuple[int, int, list[int], list[int]] | None:
    """Returns nodes, devices of a node, those of the trainer and those of the engines; None if two pools of different nodes have
    different sizes."""
    nodes, per_node = count(file, "trainer.nnodes"), count(file, "trainer.n_gpus_per_node", LARGEST_NODE)
    if not apart(file):
        every = list(range(nodes * per_node))
        return nodes, per_node, every, every
    others, their = count(file, "rollout.nnodes"), count(file, "rollout.n_gpus_per_node", LARGEST_NODE)
    whole = per_node + their
    if nodes == others and whole <= LARGEST_NODE:
        places = [(node * whole, node * whole + per_node, (node + 1) * whole) for node in range(nodes)]
        first = [each for begin, border, _ in places for each in range(begin, border)]
        return nodes, whole, first, [each for _, border, end in places for each in range(border, end)]
    if per_node == their:
        border = nodes * per_node
        return nodes + others, per_node, list(range(border)), list(range(border, border + others * their))
    return None


def ulysses(file: File, block: str = ACTOR) -> int:
    inner = "fsdp_config" if block in (ACTOR, REF) else "fsdp"
    given = count(file, f"{block}.ulysses_sequence_parallel_size")
    return given if given > 1 else count(file, f"{block}.{inner}.ulysses_sequence_parallel_size")


def ranks(file: File, block: str = ACTOR) -> int:
    """Returns the data-parallel ranks of a trained role; 0 if unknown."""
    found = split(file)
    size = 1
    for name in MEGATRON_SIZES if megatron(file) else ():
        size *= count(file, f"{block}.megatron.{name}")
    size = size if megatron(file) else ulysses(file, block)
    return len(found[2]) // size if found is not None and len(found[2]) % size == 0 else 0


def samples(file: File, block: str = ACTOR) -> int:
    """Returns the samples of an optimiser step, from the prompts that verl counts."""
    own = at(file, f"{block}.ppo_mini_batch_size")
    prompts = own if is_count(own) else count(file, f"{ACTOR}.ppo_mini_batch_size", 256)
    return prompts * count(file, f"{ROLLOUT}.n")


def of_a_rank(file: File, block: str = ACTOR) -> int:
    """Returns the samples of an optimiser step on a rank; 0 if they are no whole number."""
    each = ranks(file, block)
    return samples(file, block) // each if each and samples(file, block) % each == 0 else 0


def longest(file: File) -> int:
    """Returns the tokens of the longest prompt and response."""
    return count(file, "data.max_prompt_length", 512) + count(file, "data.max_response_length", 512)


def step_prompts(file: File) -> int:
    """Returns the prompts of a step."""
    if fully_async(file):
        return count(file, f"{ACTOR}.ppo_mini_batch_size", 256) * count(file, f"{ASYNC}.require_batches")
    return count(file, "data.train_batch_size", 1024)


def sync_interval(file: File) -> int:
    return count(file, f"{ASYNC}.trigger_parameter_sync_step", 4) if fully_async(file) else 1
