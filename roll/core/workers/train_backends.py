"""Training back ends by the class of their options: one row has the dotted paths of their code. A back end's packages are
imported only when it is used."""

from __future__ import annotations

from dataclasses import dataclass

from roll.core.configs.arguments import FSDP2Config
from roll.core.configs.backend_arguments import DeepSpeedConfig, MegatronConfig
from roll.core.configs.dotted_path import named_object
from roll.core.workers.train_interface import CriticStrategy, RankContext, TrainStrategy
from roll.core.workers.train_spec import TrainSpec


@dataclass(frozen=True, slots=True)
class BackendTraits:
    strategy: str
    """Its `TrainStrategy`, by dotted path."""
    critic: str
    """Its `CriticStrategy`, by dotted path."""


_TRAIN = "roll.strategies.train"
BACKENDS: dict[type, BackendTraits] = {
    FSDP2Config: BackendTraits(f"{_TRAIN}.fsdp2.FSDP2Strategy", f"{_TRAIN}.critic.FSDP2Critic"),
    DeepSpeedConfig: BackendTraits(f"{_TRAIN}.deepspeed_zero.DeepSpeedStrategy", f"{_TRAIN}.deepspeed_critic.DeepSpeedCritic"),
    MegatronConfig: BackendTraits(f"{_TRAIN}.megatron.strategy.MegatronStrategy", f"{_TRAIN}.megatron.critic.MegatronCritic"),
}


def make_train_strategy(context: RankContext, spec: TrainSpec) -> TrainStrategy:
    strategy: TrainStrategy = named_object(BACKENDS[type(spec.backend)].strategy)(context, spec)
    return strategy


def make_critic(context: RankContext, spec: TrainSpec) -> CriticStrategy:
    """Makes the critic. Raises `ValueError` for a frozen model."""
    if not spec.trained:
        raise ValueError("a critic is trained, and its specification has no optimisation")
    critic: CriticStrategy = named_object(BACKENDS[type(spec.backend)].critic)(context, spec)
    return critic
