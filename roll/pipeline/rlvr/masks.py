"""Which responses RLVR leaves out of the loss."""

from __future__ import annotations

from roll.configs.rlvr import RLVRConfig
from roll.data.sample import Sample, SampleGroup
from roll.pipeline.batch import Keep


def kept(config: RLVRConfig) -> Keep:
    """Not those that were cut off at the length limit (`max_len_mask`), nor those of groups that are too easy or too hard
    (`difficulty_mask`)."""

    def keep(group: SampleGroup, sample: Sample) -> bool:
        if config.max_len_mask and sample.finish_reason == "length":
            return False
        if not config.difficulty_mask:
            return True
        mean = sum(group.rewards) / len(group.samples)
        return config.difficulty_low_threshold < mean < config.difficulty_high_threshold

    return keep
