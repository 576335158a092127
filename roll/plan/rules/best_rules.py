"""Rules of `keep_best` and `early_stopping`: there is a metric to compare, and a checkpoint of each step that may be best."""

from __future__ import annotations

import math
from collections.abc import Iterator

from roll.core.configs.ppo import PPOConfig
from roll.core.configs.problems import Problem, did_you_mean
from roll.core.configs.watching import KeepBestConfig
from roll.plan.rules.metric_rules import among, metric_names, of_validations, unknown


def best_problems(config: PPOConfig) -> Iterator[Problem]:
    """An evaluation trains nothing: its file may be that of a run which does."""
    if config.only_evaluates:
        return
    if config.keep_best is not None:
        yield from _kept(config, config.keep_best)
    if config.early_stopping is not None:
        name, names = config.early_stopping.metric, metric_names(config)
        if not among(name, names):
            yield unknown(name, "early_stopping.metric", names)


def _kept(config: PPOConfig, rule: KeepBestConfig) -> Iterator[Problem]:
    names = [*of_validations(config)]
    if not names:
        fix = f"{config.validation_block}, or no keep_best"
        yield Problem("keep_best.metric", rule.metric, "there is no validation set, so no best step", fix)
        return
    if among(rule.metric, metric_names(config)) and not among(rule.metric, names):
        message = "is a metric of training: its rollouts are those of older weights than the step's checkpoint has"
        yield Problem("keep_best.metric", rule.metric, message, "a metric of validations, e.g. val_correct/all/mean")
    elif not among(rule.metric, names):
        fix = did_you_mean(rule.metric, [each for each in names if "*" not in each], "e.g. val_correct/all/mean")
        yield Problem("keep_best.metric", rule.metric, "no validation of this run will have it", fix)
    yield from _saved(config)


def _saved(config: PPOConfig) -> Iterator[Problem]:
    """A step can be kept only if its checkpoint is written: before its validation ends nobody knows that it is the best."""
    every, push, save = config.steps_between_validations, config.weight_push_interval, config.save_steps
    period = push // math.gcd(every, push)  # the pattern of validated steps repeats after so many
    validated = [math.ceil(k * every / push) * push for k in range(1, period + 1)]
    validated = [step for step in validated if step < config.max_steps]
    if lost := next((step for step in validated if not save or step % save), None):
        fits = math.gcd(*validated)
        message = f"step {lost} is validated (every {every}: eval_steps) and leaves no checkpoint for keep_best to keep"
        larger = f", or eval_steps: {math.lcm(every, save)}" if save and push == 1 else ""
        yield Problem("save_steps", save, message, f"{fits}, or a divisor of it{larger}")
