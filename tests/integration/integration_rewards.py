"""Judges for a random model. They look at the text alone, so a verdict is a function of the sample."""

import asyncio
import random
import threading

from roll.core.rewards.worker import RewardWorker


def verdict(text: str) -> float:
    """1 if at least a third of the characters are in a .. j: about half of a random model's responses."""
    return float(3 * sum("a" <= char <= "j" for char in text) >= max(len(text), 1))


class Letters(RewardWorker):
    async def grade(self, sample):
        return verdict(sample.response_text)


class Interrupts(RewardWorker):
    """At every fourth prompt, whatever the attempt."""

    def grade(self, sample):
        if int(sample.prompt.uid.rpartition("/")[2]) % 4 == 3:
            raise KeyboardInterrupt("why")
        return verdict(sample.response_text)


class SlowLetters(Letters):
    """A remote judge: answers after a time between 0 and `reward_args.max_s` that depends on the prompt and the sample alone."""

    async def grade(self, sample):
        delay = random.Random(f"{sample.prompt.uid}/{sample.index}").uniform(0, self.reward_args["max_s"])
        await asyncio.sleep(delay)
        return verdict(sample.response_text)


class Meeting(Letters):
    """Refuses to start if another one of it starts at the same time."""

    _met = threading.Barrier(2)

    def __init__(self, config):
        super().__init__(config)
        try:
            self._met.wait(timeout=0.2)
        except threading.BrokenBarrierError:
            self._met.reset()
        else:
            raise RuntimeError("two workers of one process started at the same time")


class Unreliable(Letters):
    """Always fails for the prompts whose row number is divisible by `reward_args.every`."""

    async def grade(self, sample):
        if int(sample.prompt.uid.rpartition("/")[2]) % self.reward_args["every"] == 0:
            raise ConnectionError("the judge is away")
        return verdict(sample.response_text)


class FailsForOne(Letters):
    """Always fails for the first sample of a group."""

    async def grade(self, sample):
        if sample.index == 0:
            raise ConnectionError("the judge is away")
        return verdict(sample.response_text)


class Hiccup(Letters):
    """Fails at the first attempt of each sample, then answers."""

    def __init__(self, config):
        super().__init__(config)
        self._seen = set()

    async def grade(self, sample):
        name = (sample.prompt.uid, sample.index)
        if name not in self._seen:
            self._seen.add(name)
            raise ConnectionError("try again")
        return verdict(sample.response_text)


class StragglingLetters(Letters):
    """Withholds its first verdicts on every `reward_args.every`-th row until `reward_args.until` others were given."""

    def __init__(self, config):
        super().__init__(config)
        self._given = 0
        self._another = asyncio.Condition()

    async def grade(self, sample):
        if int(sample.prompt.uid.rpartition("/")[2]) % self.reward_args["every"] == 0:
            async with self._another:
                await self._another.wait_for(lambda: self._given >= self.reward_args["until"])
        async with self._another:
            self._given += 1
            self._another.notify_all()
        return verdict(sample.response_text)


class FourthRows(Letters):
    """Passes all responses to the rows whose number is divisible by 4."""

    async def grade(self, sample):
        if int(sample.prompt.uid.rpartition("/")[2]) % 4 == 0:
            return 1.0
        return verdict(sample.response_text)


class Words(RewardWorker):
    """So many of the words as are shapes."""

    async def grade(self, sample):
        return sum(sample.response_text.count(word) for word in ("circle", "line", "star")) / 4
