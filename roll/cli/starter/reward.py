"""The reward of this run. Change it: whatever `grade` returns is what the model learns to raise."""

from roll import RewardWorker, Sample


class DigitsRewardWorker(RewardWorker):
    """The share of the answer's digits that are right, less a penalty for each digit too many."""

    async def grade(self, sample: Sample) -> float:
        said, right = sample.response_text.strip(), sample.prompt.ground_truth.strip()
        share = sum(a == b for a, b in zip(said, right, strict=False)) / len(right)
        penalty: float = self.reward_args.get("length_penalty", 0.0)
        return share - penalty * max(0, len(said) - len(right))
