"""A stage that drops the groups of which too little can be learned: most responses cut off, or all of them the same.

flow: {stages: [{after: reward, name: group_quality, worker: group_quality.group_quality, args: {most_cut_off: 0.5}}]}
"""

from roll import Drop, SampleGroup


async def group_quality(group: SampleGroup, most_cut_off: float) -> SampleGroup | Drop:
    cut_off = sum(sample.finish_reason == "length" for sample in group.samples) / len(group.samples)
    if cut_off > most_cut_off:
        return Drop("cut_off", f"{cut_off:.0%} of the responses")  # counted by its reason; another prompt takes its place
    if len({sample.response_text for sample in group.samples}) == 1:
        return Drop("all_the_same")
    return group
