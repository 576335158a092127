"""Rules of a warm start: its rows, and the keys that exclude it."""

from __future__ import annotations

from collections.abc import Iterator

from roll.core.configs.ppo import PPOConfig
from roll.core.configs.problems import Problem
from roll.plan.rules.rows_rules import row_data_problems

BEFORE = "train it by itself: roll train sft, and name its exported model as pretrain"
ROWS = "warm_start"
"""The domain of the rows."""


def warm_start_problems(config: PPOConfig) -> Iterator[Problem]:
    warm = config.warm_start
    if warm is None or config.only_evaluates:
        return
    if config.is_one_of_several or config.groups_address is not None:
        key = "mode" if config.is_one_of_several else "groups_database"
        message = "warm_start trains rows in the process that has the engines, too"
        yield Problem(key, getattr(config, key), message, f"mode: both without groups_database; or {BEFORE}")
    elif warm.steps >= config.max_steps:
        message = f"{warm.steps} >= max_steps {config.max_steps}, which counts them: nothing would be rolled out"
        yield Problem("warm_start.steps", warm.steps, message, f"a larger max_steps; or {BEFORE}")
    yield from row_data_problems("warm_start.data_args", warm.data_args)
    if ROWS in config.domain_weights:
        yield Problem("warm_start", "given", "a domain has its name", "another name of the domain")
    yield from _beside(config)


def _beside(config: PPOConfig) -> Iterator[Problem]:
    """Keys whose work begins with the first step."""
    epochs, usual, interval = config.epochs, config.actor_train.training_args, config.weight_push_interval
    rate = config.warm_start is not None and config.warm_start.learning_rate
    relative = "it is taken as a multiple of actor_train's, which is 0"
    refused = (
        ("adv_estimator", config.adv_estimator, config.uses_critic, "a critic learns from rollouts, which a warm start lacks"),
        ("actor_log_prob", "given", config.actor_log_prob is not None, "no copy of the policy follows a warm start"),
        ("train_on_arrival", True, config.train_on_arrival, "rows arrive all together"),
        ("max_reuse", config.max_reuse, config.max_reuse > 1, "a row would be trained again as if it had been sampled"),
        ("weight_push_interval", interval, interval > 1, "each step waits for the weights of the one before"),
        ("total_epochs", epochs, epochs is not None, "max_steps says how long both parts are"),
        ("warm_start.learning_rate", rate, bool(rate) and not usual.learning_rate, relative),
    )
    for key, value, given, why in refused:
        if given:
            yield Problem(key, value, f"does not go with warm_start: {why}", f"leave one of the two out; or {BEFORE}")
