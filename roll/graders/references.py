"""Earnings of a domain's reference answers as responses, tried before any worker starts: a slip in the reward's code is found
before groups are dropped for it, and the reward from which a response is a success becomes known."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import islice, pairwise
from math import isclose
from statistics import median_low
from typing import Any

from roll.core.configs.dotted_path import dotted_path
from roll.core.configs.problems import Problem, did_you_mean
from roll.core.configs.worker import RewardConfig
from roll.core.data.sample import FULL_REWARD, ROUNDING, Prompt, Sample, reaches
from roll.core.distributed.user_code import SLIPS, is_slip, try_aside
from roll.core.errors import boundary, reason
from roll.core.rewards.worker import RewardWorker, worker_class

TRIED = 8
"""Reference answers of a domain that are judged."""
WRONG, MOST_WRONG = "I do not know.", 3
"""A response that answers no prompt; the number of wrong responses that are judged."""


@dataclass(frozen=True, slots=True)
class ReferenceRewards:
    """Rewards of some reference answers, one each, and of a response without a word."""

    values: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """Reasons why others have no reward."""
    empty: float | None = None
    """None if that is not known."""
    empty_failure: str = ""
    """The reason."""
    wrong: int = 0
    """Responses to other prompts, or to none, that were judged."""
    wrong_failures: list[str] = field(default_factory=list)
    """Reasons why some of them have no reward."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """The `reward_args` that nothing has looked at meanwhile, and a guess at the name that was meant."""

    @property
    def usual(self) -> float | None:
        return median_low(self.values) if self.values else None

    @property
    def right(self) -> list[float]:
        """Returns the rewards no worse than the usual one by more than half of its distance from that of an empty response. Empty
        if the usual one is not above that: then reference answers are no measure of a success."""
        usual, nothing = self.usual, 0.0 if self.empty is None else self.empty
        if usual is None or usual <= nothing:
            return []
        return [value for value in self.values if value >= (usual + nothing) / 2]


def success_at(earned: ReferenceRewards, chosen: float | None) -> float:
    """Returns the reward from which on a response is a success. `chosen`: the user's own."""
    if chosen is not None:
        return chosen
    least = min(earned.right, default=FULL_REWARD)
    return FULL_REWARD if isclose(least, FULL_REWARD, rel_tol=ROUNDING) else least


def remark(domain: str, earned: ReferenceRewards, chosen: float | None) -> str:
    """Returns a note on the reward of a success; empty if the user chose it, or if it is 1."""
    at = success_at(earned, chosen)
    if chosen is not None or at == FULL_REWARD:
        return ""
    return f"rewards.{domain}: reference answers earn {at:g}, so a reward of {at:g} or more is a success (success_at)"


def oddities(domain: str, earned: ReferenceRewards, chosen: float | None) -> Iterator[str]:
    """Yields sentences; none if the reference answers earn the reward of a success, and all arguments are read."""
    for name, meant in earned.unread.items():
        yield f"rewards.{domain}.reward_args.{name}: nothing reads it while reference answers are judged; {meant}"
    at, count = success_at(earned, chosen), len(earned.values) + len(earned.failures)
    counted = f"validation counts a reward of {at:g} or more as a success (rewards.{domain}.success_at)"
    if earned.failures:
        yield f"rewards.{domain}: {len(earned.failures)} of {count} reference answers have no reward: {earned.failures[0]}"
    if earned.empty_failure:
        yield f"rewards.{domain}: an empty response has no reward: {earned.empty_failure}"
    if earned.wrong_failures:
        unjudged = f"{len(earned.wrong_failures)} of {earned.wrong} wrong responses have no reward"
        yield f"rewards.{domain}: {unjudged}: {earned.wrong_failures[0]}"
    if not earned.values:
        return
    said, missed = _span(earned.values), sum(not reaches(value, at) for value in earned.values)
    if chosen is None and not earned.right:
        than = "nothing" if earned.empty is None else f"an empty response ({earned.empty:g})"
        yield f"rewards.{domain}: reference answers earn {said}, no more than {than}; {counted}"
    elif missed:
        yield f"rewards.{domain}: reference answers earn {said}, and {missed} of {len(earned.values)} are no success; {counted}"


def cut_off(domain: str, earned: ReferenceRewards, tokens: Sequence[int], longest: int) -> Iterator[str]:
    """`tokens`: of each reference answer. `longest`: response_length. Where references earn nothing they are no answers."""
    if earned.right and tokens and min(tokens) > longest:
        yield (
            f"rewards.{domain}: the reference answers have {min(tokens)} tokens or more, and response_length is {longest}: "
            "no response can say them"
        )


def no_full_marks(domain: str) -> str:
    return (
        f"rewards.{domain}: the scores of a reward model have no full marks, and validation counts {FULL_REWARD:g} or more as a "
        f"success: say rewards.{domain}.success_at"
    )


def _span(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:g}" if reaches(low, high) else f"{low:g} to {high:g}"


def spread(rows: int, most: int) -> Sequence[int]:
    """The places of so many rows at most, from the first on, evenly spread."""
    return range(0, rows, max(1, -(-rows // most)))


class Looked(dict[str, Any]):
    """Knows which names were asked for, also of those that it has not."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        super().__init__(given)
        self._asked: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self._asked.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self._asked.add(name)
        return super().get(name, default)

    def __contains__(self, name: object) -> bool:
        self._asked.add(str(name))
        return super().__contains__(name)

    def __iter__(self) -> Iterator[str]:
        self._asked |= super().keys()
        return super().__iter__()

    def keys(self) -> Any:
        return dict.fromkeys(self).keys()

    def items(self) -> Any:
        return {name: self[name] for name in self}.items()

    @property
    def unread(self) -> dict[str, str]:
        """Names that nobody has read, and a guess at the name that was meant."""
        wanted = sorted(self._asked - super().keys())
        return {name: did_you_mean(name, wanted, "is it spelt right?") for name in sorted(super().keys() - self._asked)}


def try_reward(reward: RewardConfig, prompts: Sequence[Prompt], policy: str = "") -> ReferenceRewards:
    """Has the domain's worker judge the ground truths as if they were responses, and some that are wrong. `policy`: folder of the
    policy's model. Raises `ValueError` for a worker that cannot be made, and for a mistake in its code, such as an answer that is
    no finite number."""
    cls = worker_class(reward.worker_cls)
    if reward.models:  # this process is no place for a model
        return ReferenceRewards()
    trial = _Trial(cls, reward, prompts, policy)
    with suppress(TimeoutError):  # a judge that is slow now may be faster when the run begins
        try_aside(trial.run, reward.timeout_s + cls.starts_within_s)
    return trial.earned()


class _Trial:
    def __init__(self, cls: type[RewardWorker], reward: RewardConfig, prompts: Sequence[Prompt], policy: str) -> None:
        self._cls = cls
        self._reward = reward
        self._prompts = prompts
        self._policy = policy
        self._found: dict[str, float | Exception] = {}
        """Rewards by the prompt's uid."""
        self._empty: float | Exception | None = None
        self._wrong: dict[tuple[str, str], float | Exception] = {}
        """Rewards by the prompt's uid, and the response."""
        self._late = f"its start() takes longer than {cls.starts_within_s:g} s"
        """The reason why an answer has no reward by the end."""
        self._arguments = Looked(reward.reward_args)

    def earned(self) -> ReferenceRewards:
        """Returns the earnings known so far."""
        values = [found for found in self._found.values() if isinstance(found, float)]
        failures = [_reason(found, self._late) for found in self._found.values() if isinstance(found, Exception)]
        unread = self._arguments.unread if values or isinstance(self._empty, float) else {}
        empty, failed = (None, _reason(self._empty, self._late)) if isinstance(self._empty, Exception) else (self._empty, "")
        wrong = [_reason(found, self._late) for found in self._wrong.values() if isinstance(found, Exception)]
        return ReferenceRewards(values, failures, empty, failed, len(self._wrong), wrong, unread)

    async def run(self) -> None:
        with boundary(ValueError, "it cannot be made"):
            worker = self._cls(asdict(self._reward) | {"policy": self._policy, "reward_args": self._arguments})
        asked = {prompt.uid: prompt for prompt in self._prompts if worker.solution(prompt.ground_truth)}
        self._found |= {uid: TimeoutError() for uid in asked}  # until they are judged
        free = asyncio.Semaphore(worker.max_concurrency)

        async def judge(prompt: Prompt, response: str) -> float | Exception:
            async with free:
                return await _judged(worker, prompt, response)

        async def ask(prompt: Prompt) -> None:
            self._found[prompt.uid] = await judge(prompt, worker.solution(prompt.ground_truth) or "")

        try:
            await worker.start()
            self._late = f"not judged within {self._reward.timeout_s:g} s (timeout_s)"
            await asyncio.gather(*map(ask, asked.values()))
            for prompt in self._prompts[:1]:
                self._empty = await judge(prompt, "")
            for prompt, response in _wrong(self._prompts, worker):
                self._wrong[prompt.uid, response] = await judge(prompt, response)
        except (Exception, SystemExit) as error:  # boundary: the world may be otherwise when the run begins
            if isinstance(error, SLIPS):
                raise ValueError(f"its start() fails: {type(error).__name__}: {error}") from error
        finally:
            await worker.close()
        self._raise_slips()

    def _raise_slips(self) -> None:
        """A mistake that half of the answers meet lies in the code, not in a row."""
        references = {f"the ground truth of prompt {uid}": found for uid, found in self._found.items()}
        wrong = {f"the response {said!r}, which is wrong for prompt {uid}": found for (uid, said), found in self._wrong.items()}
        for asked in (references, {"an empty response": self._empty}, wrong):
            slips = [(what, found) for what, found in asked.items() if isinstance(found, Exception) and is_slip(found)]
            if slips and 2 * len(slips) >= len(asked):
                what, slip = slips[0]
                cause = slip if isinstance(slip, SLIPS) else slip.__cause__ or slip
                raise ValueError(f"it fails on {what}: {reason(cause)}") from slip


def _wrong(prompts: Sequence[Prompt], worker: RewardWorker) -> Iterator[tuple[Prompt, str]]:
    """Responses that answer no prompt, and reference answers of others."""
    others = ((prompt, other.ground_truth) for prompt, other in pairwise(prompts) if other.ground_truth != prompt.ground_truth)
    yield from ((prompt, WRONG) for prompt in prompts[:1])
    solved = ((prompt, said) for prompt, truth in others if (said := worker.solution(truth)))
    yield from islice(solved, MOST_WRONG - 1)


def unasked(domain: str, reward: RewardConfig) -> Iterator[Problem]:
    """The models of a domain that its worker never asks. Raises `ValueError` where there is no such worker."""
    asks = worker_class(reward.worker_cls).asks
    for name in reward.models:
        if name != asks:
            message = f"{dotted_path(reward.worker_cls)} asks no {name}"
            fix = "remove it; in a file of ROLL's: model_args, strategy_args and device_mapping of the reward"
            yield Problem(f"rewards.{domain}.{name}", "given", message, fix)


async def _judged(worker: RewardWorker, prompt: Prompt, response: str) -> float | Exception:
    try:
        return (await worker.judge(Sample(prompt, 0, [], [], [], "stop", response_text=response))).value or 0.0
    except (Exception, SystemExit) as error:  # boundary: a user's code
        if isinstance(error, Exception):
            return error
        ended = RuntimeError(f"SystemExit: {error}")
        ended.__cause__ = error
        return ended


def _reason(error: Exception, late: str) -> str:
    return late if isinstance(error, TimeoutError) else reason(error)
