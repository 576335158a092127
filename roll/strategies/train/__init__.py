"""Training back ends by `strategy_name`; a back end's packages are imported only when it is used."""

from __future__ import annotations

from typing import Any

from roll.strategies.train.interface import RankContext, TrainStrategy


def make_train_strategy(name: str, context: RankContext, options: dict[str, Any]) -> TrainStrategy:
    """Names ending in `_train` learn, those in `_infer` are frozen."""
    if name in ("fsdp2_train", "fsdp2_infer"):
        from roll.strategies.train.fsdp2 import FSDP2Strategy

        return FSDP2Strategy(context, trainable=name == "fsdp2_train", **options)
    if name in ("deepspeed_train", "deepspeed_infer"):
        from roll.strategies.train.deepspeed.strategy import DeepSpeedStrategy

        return DeepSpeedStrategy(context, trainable=name == "deepspeed_train", **options)
    if name in ("megatron_train", "megatron_infer"):
        from roll.strategies.train.megatron.strategy import MegatronStrategy

        return MegatronStrategy(context, trainable=name == "megatron_train", **options)
    known = "fsdp2_train, fsdp2_infer, deepspeed_train, deepspeed_infer, megatron_train, megatron_infer"
    raise ValueError(f"unknown training strategy '{name}'; known: {known}")
