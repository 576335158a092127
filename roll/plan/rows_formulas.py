"""Objective of a run on rows, in formulas with its own numbers, and the amounts of its steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from roll.core.configs.ppo import PPOConfig
from roll.core.configs.rows import PairLossConfig
from roll.plan.counts import Quantity
from roll.plan.formulas import AGGREGATIONS, LossFormula, divergence_formula, teacher_weights
from roll.plan.rows_config import RowsConfig

_TOKENS = {
    "assistant": "the assistant's turns, with what ends each, are trained",
    "last": "the assistant's last turn is trained",
    "all": "whole rows are trained",
}


def rows_formula(config: RowsConfig) -> LossFormula:
    if config.pair_loss is not None:
        return pair_formula(config.pair_loss)
    mean, trained = AGGREGATIONS[config.loss_agg_mode], _TOKENS[config.loss_on]
    plain = LossFormula("mean(L_t)", "−ℓ", "none", "", "", mean, "", "", "", trained)
    if not config.teachers:
        return plain
    share, _ = teacher_weights(config)
    return replace(plain, total=f"mean((1 − {share})·L_t) + mean({share}·D_t)", divergence=divergence_formula(config))


def pair_formula(keys: PairLossConfig) -> LossFormula:
    sizes = {"sigmoid": "Σ_y(ℓ − ℓ_r)", "ipo": "mean_y(ℓ − ℓ_r)", "simpo": "mean_y ℓ"}
    h = f"h = {sizes[keys.loss]} of the chosen answer − that of the rejected one"
    if keys.loss == "ipo":
        return LossFormula("mean(L)", f"(h − {1 / (2 * keys.beta):g})², {h}", "none", "", "", "mean over pairs", "", "", "", "")
    logits = f"{keys.beta:g}·h" + (f" − {keys.margin:g}" if keys.loss == "simpo" else "")
    loss = f"−log σ({logits})"
    if keys.label_smoothing:
        loss = f"{1 - keys.label_smoothing:g}·{loss} − {keys.label_smoothing:g}·log σ(−({logits}))"
    return LossFormula("mean(L)", f"{loss}, {h}", "none", "", "", "mean over pairs", "", "", "", "")


def rows_of_step(config: PPOConfig) -> Iterator[Quantity]:
    training, steps, rows = config.actor_train.training_args, config.max_steps, config.groups_per_step
    ranks, pairs = config.actor_train.data_parallel_size, config.pair_loss is not None
    each, accumulated = training.per_device_train_batch_size, training.gradient_accumulation_steps
    yield Quantity(
        "pairs" if pairs else "rows",
        rows,
        rows * steps,
        f"{each:,} × {accumulated:,} × {ranks:,} data-parallel, one optimiser step",
    )
    samples, longest = rows * (1 + pairs), config.lengths().sequence
    tokens = samples * longest
    yield Quantity("tokens", tokens, tokens * steps, f"{samples:,} × sequence_length {longest:,}", at_most=True)


def answers(config: RowsConfig) -> Iterator[str]:
    """Yields the questions to the policy at each evaluation."""
    for name, each in config.validations.items():
        if rows := each.generate_during_eval:
            engine, n = config.actor_infer.strategy_args.strategy_name, each.generating_args.num_return_sequences or 1
            yield f"{name}: at each evaluation {engine} answers the questions of {rows:,} rows, {n:,} time{'s' * (n > 1)} each"
