"""Training back ends by the options that they take; a back end's packages are imported only when it is used."""

from __future__ import annotations

from roll.configs.arguments import FSDP2Config
from roll.configs.backend_arguments import DeepSpeedConfig
from roll.strategies.train.interface import RankContext, TrainStrategy
from roll.strategies.train.spec import TrainSpec


def make_train_strategy(context: RankContext, spec: TrainSpec) -> TrainStrategy:
    if isinstance(spec.backend, FSDP2Config):
        from roll.strategies.train.fsdp2 import FSDP2Strategy

        return FSDP2Strategy(context, spec)
    if isinstance(spec.backend, DeepSpeedConfig):
        from roll.strategies.train.deepspeed_zero import DeepSpeedStrategy

        return DeepSpeedStrategy(context, spec)
    from roll.strategies.train.megatron.strategy import MegatronStrategy

    return MegatronStrategy(context, spec)
