"""What is expected to be left of a long response's gradient, from its length and from the programs that sample and train."""

from __future__ import annotations

from collections.abc import Iterator

from roll.algorithms.expected_left import ENGINES_NOISE, LEAST, expected, fix_of, weight_of
from roll.configs.derived import Derived
from roll.configs.losses import anchor_of
from roll.configs.ppo import PPOConfig


def own_ratio(config: PPOConfig, derived: Derived) -> bool:
    """Whether the loss takes its ratio to the sampler's log-probs."""
    return not derived.recompute_old_logprobs or anchor_of(config.actor_train.pg_variant) == "behaviour"


def remarks(config: PPOConfig, derived: Derived) -> Iterator[str]:
    """Nothing for hf_infer, which computes as the trainer does."""
    engine, tokens = config.actor_infer.strategy_args.strategy_name, derived.max_new_tokens
    if engine == "hf_infer":
        return
    given = (config.actor_train.pg_variant, derived.policy_loss, config.train_infer_correction)
    own = own_ratio(config, derived)
    for name, good in (("right", True), ("wrong", False)):
        left = expected(weight_of(*given, tokens, good=good, own_ratio=own), tokens, ENGINES_NOISE)
        if left < LEAST:
            yield (
                f"of a {name} response of {tokens:,} tokens about {left:.0%} of the gradient is left, if log-probs of {engine} "
                f"and trainer differ by {ENGINES_NOISE:g} a token (assumed; actor/gradient_left measures it): {fix_of(*given)}"
            )
