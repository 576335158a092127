"""The reward of this run. Change it: whatever `grade` returns is what the model learns to raise."""

import re

from roll import RewardWorker, Sample


def last_number(text: str) -> str | None:
    found = re.findall(r"-?\d[\d,]*(?:\.\d+)?", text)
    return found[-1].replace(",", "") if found else None


class AnswerRewardWorker(RewardWorker):
    """1 if the last number of the response is that of the reference answer; of an answer without numbers, if the texts agree."""

    async def grade(self, sample: Sample) -> float:
        said, right = sample.response_text.strip(), sample.prompt.ground_truth.strip()
        number = last_number(right)
        return float(said.casefold() == right.casefold() if number is None else last_number(said) == number)
