"""Training back ends by `strategy_name`; a back end's packages are imported only when it is used."""

from __future__ import annotations

from typing import Any

from roll.strategies.train.interface import RankContext, TrainStrategy


def make_train_strategy(name: str, context: RankContext, options: dict[str, Any]) -> TrainStrategy:
    """`fsdp2_train` learns, `fsdp2_infer` is frozen."""
    if name in ("fsdp2_train", "fsdp2_infer"):
        from roll.strategies.train.fsdp2 import FSDP2Strategy

        return FSDP2Strategy(context, trainable=name == "fsdp2_train", **options)
    raise ValueError(f"unknown training strategy '{name}'; known: fsdp2_train, fsdp2_infer")
