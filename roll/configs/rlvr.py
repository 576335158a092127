"""Reinforcement learning with verifiable rewards: one prompt, one response, one reward."""

from __future__ import annotations

from dataclasses import dataclass

from roll.configs.fields import option
from roll.configs.ppo import PPOConfig
from roll.configs.worker import RewardConfig, ValidationConfig


@dataclass(frozen=True, kw_only=True)
class RLVRConfig(PPOConfig):
    rewards: dict[str, RewardConfig] = option({}, "Reward workers by domain.")
    validation: ValidationConfig | None = option(None, "Fixed prompts evaluated every eval_steps; null means none.")
    max_len_mask: bool = option(False, "Leave responses that were cut off at the length limit out of the loss.")
    difficulty_mask: bool = option(
        False, "Leave groups out of the loss unless difficulty_low_threshold < mean reward < difficulty_high_threshold."
    )
    difficulty_low_threshold: float = option(0.0, "Mean reward at or below which a group is too hard.")
    difficulty_high_threshold: float = option(1.0, "Mean reward at or above which a group is too easy.")
