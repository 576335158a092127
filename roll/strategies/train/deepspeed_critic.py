"""The critic on DeepSpeed."""

from __future__ import annotations

from roll.strategies.train.critic import ValueModel
from roll.strategies.train.deepspeed_zero import DeepSpeedStrategy


class DeepSpeedCritic(ValueModel, DeepSpeedStrategy):
    pass
