"""Rules of prompts with images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from roll.core.configs.arguments import DataArguments
from roll.core.configs.ppo import PPOConfig, set_key
from roll.core.configs.problems import Problem


def image_problems(config: PPOConfig) -> Iterator[Problem]:
    for key, data in _sources(config).items():
        if data.images is not None:
            yield Problem(f"{key}.data_args.images", "given", "no model here sees images", "remove it, and rows with images")


def _sources(config: PPOConfig) -> dict[str, DataArguments]:
    """All data of prompts or rows, by the key of its owner."""
    sets: Mapping[str, object] = config.validations
    found = {set_key(name): data for name, each in sets.items() if (data := getattr(each, "data_args", None)) is not None}
    return {"actor_train": config.actor_train.data_args, **found}
