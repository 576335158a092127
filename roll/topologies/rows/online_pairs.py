"""DPO on pairs that a run makes itself: of each group the response with the highest reward against the one with the lowest.

The other responses of a group are not trained, and a group of equal rewards has no pair: it is dropped with that reason. The loss
asks nothing of who wrote an answer, so responses of older versions need no correction; admission bounds how old they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from roll.core.configs.rlvr import RLVRConfig
from roll.core.data.numbers import are_equal
from roll.core.data.sample import Sample, SampleGroup
from roll.core.data.token_batch import TokenBatch
from roll.core.groups.filters import GroupFilter, equal_rewards
from roll.core.trainer.batch import rollout_metrics
from roll.topologies.rows.row_losses import PairWeights


def pair_of(group: SampleGroup) -> tuple[int, int] | None:
    """Returns the places of the best sample and of the worst, of equals the first; None if all are equal."""
    rewards = group.rewards
    return None if are_equal(rewards) else (rewards.index(max(rewards)), rewards.index(min(rewards)))


def with_pair(also: GroupFilter | None) -> GroupFilter:
    """Drops groups that have no pair. `also`: a filter of the configuration, which is asked first."""

    def apply(rewards: Sequence[float]) -> str | None:
        return (also(rewards) if also is not None else None) or equal_rewards(rewards)

    return apply


class OnlinePairs(PairWeights):
    def trains(self, group: SampleGroup, sample: Sample) -> bool:
        pair = pair_of(group)
        return pair is not None and any(group.samples[place] is sample for place in pair)

    def rollouts(self, groups: Sequence[SampleGroup]) -> dict[str, float]:
        return rollout_metrics(groups)

    def __call__(self, batch: TokenBatch, groups: Sequence[SampleGroup]) -> tuple[TokenBatch, dict[str, float]]:
        places, first = list[int](), 0
        for group in groups:
            places += [first + place for place in pair_of(group) or ()]
            first += len(group.samples)
        advantages, metrics = torch.zeros(batch.num_tokens), dict[str, float]()
        if places:
            weighed, metrics = super().__call__(batch.select(places), groups)
            offsets = batch.offsets.tolist()
            parts = weighed.advantages.split(weighed.lengths.tolist())
            for place, part in zip(places, parts, strict=True):
                advantages[offsets[place] : offsets[place + 1]] = part
        return batch.with_(advantages=advantages, proximal_logprobs=None, reference_logprobs=None), metrics


def online_pairs(config: RLVRConfig) -> OnlinePairs | None:
    return None if config.online_pairs is None else OnlinePairs(config, config.online_pairs)
