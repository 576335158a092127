"""Room for the recorded turns of a run's episodes (`custom_envs.<tag>.durable_turns`)."""

from __future__ import annotations

from collections.abc import Iterator

from roll.core.configs.agentic import AgenticConfig

FOLDER = "turns"
"""Below the folder of the run."""
TOKEN = 12
"""Bytes of an answer's token: id and log-prob, in base64."""
SEEN_TOKEN = 8
"""Bytes of a token of the context, as the text of an observation."""
BESIDES = 1000
"""Bytes of a turn besides: versions, reward, the environment's numbers."""


def most_bytes(config: AgenticConfig, tag: str, context: int) -> int:
    """Returns the most bytes of a group's record; one that grows beyond it is recorded no further."""
    env, manager = config.custom_envs[tag], config.train_env_manager
    turn = TOKEN * config.answer_tokens(tag) + SEEN_TOKEN * context + BESIDES
    return (manager.group_size + manager.group_size_redundancy) * env.max_steps * turn


def note(config: AgenticConfig, context: int) -> Iterator[str]:
    """Tells where turns are recorded, and how many bytes that takes at most."""
    tags = [tag for tag in config.partition(config.train_env_manager) if config.records_turns(tag)]
    if tags:
        groups = config.train_env_manager.num_env_groups + config.save_steps * config.groups_per_step
        most = groups * max(most_bytes(config, tag, context) for tag in tags)
        until = f" and of {config.save_steps:,} steps, until a checkpoint has them" if config.save_steps else ""
        yield (
            f"durable turns of {', '.join(tags)}: {FOLDER}/ has those of the episodes in play{until}: "
            f"at most {most / 1e6:,.0f} MB (durable_turns: false records none)"
        )
