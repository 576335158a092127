"""Arenas of players: the episodes of an environment, or the prompts of a reward worker, which are answered once."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from roll.core.data.sample import Prompt, Sample
from roll.core.data.seeding import derive_seed
from roll.core.rewards.worker import RewardResult, RewardWorker
from roll.envs.check import Episode, Policy, again, play
from roll.envs.registry import make_env
from roll.envs.rules import instructions
from roll.graders.players import CHANCE, WORDS, Player

KNOWN_ANSWERS = 64


@dataclass(frozen=True, slots=True)
class PlayerRewards:
    """Rewards of one player, or of the references."""

    values: Sequence[float | None]
    """A reward a task; None: there was none."""
    failures: Sequence[str] = ()
    text: str = ""
    """The player's text."""
    done: Sequence[bool] = ()
    """True for each task that was solved, where an environment says it."""

    @property
    def known(self) -> list[float]:
        return [value for value in self.values if value is not None]


class Arena(Protocol):
    """Some tasks, and their rewards."""

    async def earned(self, player: Player) -> PlayerRewards: ...

    async def references(self) -> PlayerRewards | None:
        """Returns the rewards of oracle or reference answers; None: there are none."""

    async def repeats(self) -> bool:
        """True if the same tasks and answers earn the same again."""

    advice: str
    """Advice for the case that nothing is paid too well."""
    words: list[str]
    """Words of the rules, or of the prompts."""
    takes_all: bool
    """True if there has to be a reward whatever is written."""

    known: list[str]
    """Some answers as a good player writes them; none if nobody knows the form of an answer."""
    seconds: list[float]
    """Seconds that each step, or each judgement, has taken so far."""

    def draw(self, rng: random.Random) -> str:
        """Any answer."""


class EnvArena:
    takes_all = True
    advice = "; where a move costs something, a text without one has to cost as much (format_penalty)"

    def __init__(self, env_type: str, env_config: Mapping[str, object], tasks: int, seed: int, most_turns: int) -> None:
        """Raises `ConfigError`."""
        self._made = env_type, env_config
        self._env = make_env(env_type, env_config)
        self._seeds = [derive_seed("audit", seed, i) for i in range(tasks)]
        self._most_turns = most_turns
        self._sample = getattr(self._env, "sample_action", None)
        self._drawn: list[Episode] = []
        self.seconds: list[float] = []
        self.words = [word for word in str(instructions(self._env)).split() if word.isalnum()]
        rng = random.Random(seed)
        self.known = [] if self._sample is None else [self._sample(rng) for _ in range(KNOWN_ANSWERS)]

    def draw(self, rng: random.Random) -> str:
        return str(self._sample(rng) if self._sample is not None else rng.choice(self.words or WORDS))

    async def earned(self, player: Player) -> PlayerRewards:
        episodes = [await self._episode(seed, player.begin(task)) for task, seed in enumerate(self._seeds)]
        if player.kind == CHANCE:
            self._drawn = episodes
        return _of_episodes(episodes, player.text)

    async def _episode(self, seed: int, move: Policy) -> Episode:
        episode = await play(self._env, seed, move, self._most_turns)
        if episode.turns:
            self.seconds.append(episode.steps_s / len(episode.turns))
        return episode

    async def references(self) -> PlayerRewards | None:
        oracle = getattr(self._env, "oracle_action", None)
        if oracle is None:
            return None
        episodes = [await self._episode(seed, lambda seen: oracle()) for seed in self._seeds]
        return _of_episodes(episodes, "") if any(episode.turns for episode in episodes) else None

    async def repeats(self) -> bool:
        return await again(*self._made, self._drawn) == self._drawn

    def close(self) -> None:
        self._env.close()


def _of_episodes(episodes: Sequence[Episode], text: str) -> PlayerRewards:
    values = [None if episode.error else episode.total_reward for episode in episodes]
    done = [] if any(episode.success is None for episode in episodes) else [episode.success is True for episode in episodes]
    return PlayerRewards(values, [episode.error for episode in episodes if episode.error], text, done)


class RewardArena:
    takes_all = False
    advice = ""

    def __init__(self, worker: RewardWorker, prompts: Sequence[Prompt]) -> None:
        """The worker is started."""
        self._worker, self._prompts = worker, prompts
        solutions = [worker.solution(prompt.ground_truth) for prompt in prompts]
        self.known = [text for text in solutions if text] if None not in solutions else []
        self.words = [word for prompt in prompts[:KNOWN_ANSWERS] for word in prompt.text.split() if word.isalnum()]
        self._drawn: list[tuple[Sample, RewardResult]] = []
        self.seconds: list[float] = []

    def draw(self, rng: random.Random) -> str:
        if self.known:
            return rng.choice(self.known)
        return " ".join(rng.choices(self.words or WORDS, k=rng.randint(1, 30)))

    async def earned(self, player: Player) -> PlayerRewards:
        texts = [player.begin(task)(prompt.text) for task, prompt in enumerate(self._prompts)]
        samples = [_answer(prompt, text) for prompt, text in zip(self._prompts, texts, strict=True)]
        results = await self._judged(samples)
        if player.kind == CHANCE:
            self._drawn = list(zip(samples, results, strict=True))
        return _of_results(results, player.text)

    async def _judged(self, samples: Sequence[Sample]) -> list[RewardResult]:
        """One after another: so it is known how long each takes."""
        results = []
        for sample in samples:
            started = time.perf_counter()
            results.append(await self._worker.result(sample))
            self.seconds.append(time.perf_counter() - started)
        return results

    async def references(self) -> PlayerRewards | None:
        if not self.known:
            return None
        answers = [_answer(prompt, self._worker.solution(prompt.ground_truth) or "") for prompt in self._prompts]
        return _of_results(await self._judged(answers), "")

    async def repeats(self) -> bool:
        results = await self._judged([sample for sample, _ in reversed(self._drawn)])
        return all(one == other for one, (_, other) in zip(results, reversed(self._drawn), strict=True))


def _answer(prompt: Prompt, text: str) -> Sample:
    tokens = len(text.split())
    return Sample(prompt, 0, [0] * tokens, [0.0] * tokens, [], "stop", response_text=text)


def _of_results(results: Sequence[RewardResult], text: str) -> PlayerRewards:
    return PlayerRewards([each.value for each in results], [each.error for each in results if each.error is not None], text)
