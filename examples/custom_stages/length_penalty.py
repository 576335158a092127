"""A stage that takes a little of the reward for each token beyond the first `free` ones.

flow: {stages: [{after: reward, name: length_penalty, worker: length_penalty.length_penalty, args: {free: 64, each: 0.01}}]}
"""

from roll import SampleGroup


async def length_penalty(group: SampleGroup, free: int, each: float) -> SampleGroup:
    for sample in group.samples:
        if sample.reward is not None:
            penalty = each * max(0, len(sample.response_ids) - free)
            sample.reward -= penalty
            sample.reward_parts = {
                **sample.reward_parts,
                "length_penalty": -penalty,
            }  # a metric, and in samples.jsonl
    return group
