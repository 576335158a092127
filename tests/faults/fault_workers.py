"""Rewards and environments that the fault tests name in their YAML, and that import nothing heavy; trainers are in
`fault_trainers.py`. The folder `$FAULTS` is their telephone to the test."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import time
from pathlib import Path

from roll.core.data.sample import Sample
from roll.core.rewards.worker import RewardWorker


def hang(what: str) -> None:
    """Reports `what`, and goes on only if the test says so."""
    folder = Path(os.environ["FAULTS"])
    (folder / what).touch()
    while not (folder / "released").exists():
        time.sleep(0.02)


class EvenRewardWorker(RewardWorker):
    """Reward 1 for a response of even digit sum. Takes its time, differently for every sample, as a remote judge would."""

    async def grade(self, sample: Sample) -> float:
        await asyncio.sleep(random.Random(f"{sample.prompt.uid}/{sample.index}").uniform(0.0, 0.03))
        return float(sum(int(c) for c in sample.response_text if c.isdigit()) % 2 == 0)


class JudgesOneValidation(EvenRewardWorker):
    """And the responses of the next never. The prompts of validation have numbers from 50 on; there are four."""

    judged = 0

    async def grade(self, sample: Sample) -> float:
        if int(sample.prompt.text.partition("+")[0]) >= 50:
            self.judged += 1
            if self.judged > 4:
                Path(os.environ["FAULTS"], "judging").touch()
                await asyncio.Event().wait()
        return await super().grade(sample)


class BlocksForOnePrompt(EvenRewardWorker):
    """In one sample of each of the prompt's groups."""

    async def grade(self, sample: Sample) -> float:
        if sample.prompt.uid.endswith("/p3") and sample.index == 0:
            time.sleep(1000)
        return await super().grade(sample)


class Letters:
    """Shows a letter a turn, chosen by seed and turn, three times; an answer that begins with it earns 1."""

    instructions = "Write the letter you see."

    def _show(self) -> str:
        return f"{'abcd'[(self.seed + self.turn) % 4]}="

    async def reset(self, seed: int):
        self.seed, self.turn = seed, 0
        return self._show(), {}

    async def step(self, action_text: str):
        """Takes its time, as a tool would."""
        await asyncio.sleep(random.Random(f"{self.seed}/{self.turn}").uniform(0.0, 0.03))
        right = action_text.startswith(self._show()[0])
        self.turn += 1
        return self._show(), float(right), self.turn == 3, False, {"action_is_valid": True, "action_is_effective": right}

    def close(self) -> None: ...


class Shop(Letters):
    """Twenty turns, each with an effect outside: a line of the file `orders`, with the basket of the episode."""

    length = 20

    async def reset(self, seed: int):
        self.basket = secrets.token_hex(8)
        return (await super().reset(seed))[0], {"basket": self.basket}

    async def step(self, action_text: str):
        with self._orders.open("a") as file:
            file.write(self._order())
        await asyncio.sleep(0.03)
        return self._outcome()

    def _outcome(self):
        self.turn += 1
        info = {"action_is_valid": True, "action_is_effective": True, "basket": self.basket}
        return self._show(), float(self.turn % 3 == 0), self.turn == self.length, False, info

    @property
    def _orders(self) -> Path:
        return Path(os.environ["FAULTS"], "orders")

    def _order(self) -> str:
        return f"{self.basket} {self.turn}\n"

    async def resume(self, past):
        self.seed, self.turn, self.basket = past["seed"], len(past["actions"]), past["info"]["basket"]
        if past["begun"] is None:
            return None
        is_done = self._orders.exists() and self._order() in self._orders.read_text().splitlines(keepends=True)
        return self._outcome() if is_done else await self.step(past["begun"])


def letters_right(trace, folder):
    """Of letters_agent: answers that begin with what was shown."""
    (conversation,) = trace["conversations"]
    said = [message["content"] for message in conversation["messages"]]
    return sum(answer.startswith(shown[0]) for shown, answer in zip(said[::2], said[1::2], strict=True))
