"""The specification of a training back end from flat options, as short as a test wants them."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from roll.core.configs.arguments import STRATEGY_CONFIGS, ModelArguments, TrainingArguments
from roll.core.workers.train_spec import Optimisation, TrainSpec
from roll.plan.rules.loading import load_config


def train_spec(strategy_name: str, model_path: str | Path, **options: Any) -> TrainSpec:
    """Options are fields of the model's, the training's and the back end's blocks, whichever knows them; `zero` is short for
    `zero_optimization`. Unlike a configuration's, the learning rate is constant unless told otherwise."""
    if "zero" in options:
        options["zero_optimization"] = options.pop("zero")

    def own(cls: Any) -> dict[str, Any]:
        return {item.name: options.pop(item.name) for item in fields(cls) if item.name in options}

    kind: Any = STRATEGY_CONFIGS[strategy_name]
    backend = load_config(kind, own(kind))
    trained = options.pop("trainable", strategy_name.endswith("_train"))
    recompute = options.pop("gradient_checkpointing", False)
    model = load_config(ModelArguments, {"disable_gradient_checkpointing": not recompute, **own(ModelArguments)})
    training = load_config(TrainingArguments, {"lr_scheduler_type": "constant", **own(TrainingArguments)})
    optimisation = Optimisation(
        arguments=training,
        total_steps=options.pop("total_optimizer_steps", None),
        max_grad_norm=options.pop("max_grad_norm", 1.0),
        max_tokens_per_microbatch=options.pop("max_tokens_per_microbatch", 16384),
    )
    return TrainSpec(
        model_path=str(model_path),
        model=model,
        backend=backend,
        optimisation=optimisation if trained else None,
        max_tokens_per_microbatch_infer=options.pop("max_tokens_per_microbatch_infer", 16384),
        collective_timeout_s=600.0,
        **options,
    )


def fsdp2_spec(model_path: str | Path, **options: Any) -> TrainSpec:
    return train_spec("fsdp2_train", model_path, **options)
