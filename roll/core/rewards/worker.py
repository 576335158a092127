"""Reward workers: samples in, one number or one reason each out.

Invariant: a reward is a judgement of the answer. A failure of the judge (time limit, crash, refused connection) is an
error with a reason, never a number.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeAlias

from roll.core.configs.dotted_path import Code, dotted_path, import_object
from roll.core.configs.plain import JsonMapping
from roll.core.data.numbers import read_number
from roll.core.data.sample import JUDGED, Sample
from roll.core.data.untrusted import described
from roll.core.distributed.clock import monotonic
from roll.core.distributed.user_code import START_S, UserThreads
from roll.core.errors import escapes, reason

Grade: TypeAlias = float | tuple[float, Mapping[str, float]]
"""A reward, or a reward and its parts by name."""


@dataclass(frozen=True, slots=True)
class RewardResult:
    """Exactly one of `value` and `error` is set."""

    value: float | None = None
    """Finite reward."""
    error: str | None = None
    """Reason for a missing reward."""
    parts: dict[str, float] = field(default_factory=dict)
    """Components of the reward, for metrics and samples.jsonl."""
    seconds: float = field(default=0.0, compare=False)
    """Seconds of judging, without the wait for one of `max_concurrency` places."""

    def __post_init__(self) -> None:
        if (self.value is None) == (self.error is None):
            raise ValueError("a reward result has either a value or an error")
        if self.value is not None and not math.isfinite(self.value):
            raise ValueError(f"the reward is not finite: {self.value}")


class RewardWorker:
    """Base class of reward workers: a subclass writes `grade`, as a coroutine or an ordinary method, which then runs in a thread.
    If it raises, the sample has an error instead of a reward."""

    reads: ClassVar[frozenset[str] | None] = None
    """Accepted `reward_args`: any other is refused. None: all are accepted."""
    asks: ClassVar[str] = ""
    """The block of its domain that names the model that it uses: judge or reward_model. `config["engine"]` then holds the parts
    to build its engine from."""
    starts_within_s: ClassVar[float] = START_S
    """Seconds allowed for `start` in its trial before a run."""
    keeps_time_limit: ClassVar[bool] = False
    """True if `grade` applies `timeout_s` itself (because it also waits for something else first)."""

    def __init__(self, config: JsonMapping) -> None:
        """`config`: `timeout_s` (limit for one sample), `max_concurrency` (samples graded side by side), `reward_args`; in a run
        also `policy`, the folder of its model."""
        self.timeout_s = float(config["timeout_s"])
        self.max_concurrency = int(config["max_concurrency"])
        self.reward_args: JsonMapping = config.get("reward_args") or {}
        if self.reads is not None and (unknown := set(self.reward_args) - self.reads):
            known = ", ".join(sorted(self.reads)) or "none"
            raise ValueError(f"reward_args.{min(unknown)} is not read by {type(self).__name__}; known: {known}")
        self._free = asyncio.Semaphore(self.max_concurrency)
        self._threads = UserThreads(f"{type(self).__name__}.grade")

    async def start(self) -> None:
        """Prepares the worker before the first sample. Raises if the worker can never grade."""

    async def close(self) -> None:
        """Releases the resources of `start` and `grade`."""

    async def grade(self, sample: Sample) -> Grade:
        """Returns the reward of one sample. At most `max_concurrency` calls run at a time."""
        raise NotImplementedError(f"{type(self).__name__} does not define grade()")

    def solution(self, ground_truth: str) -> str | None:
        """Returns a response with the reference answer, in the form that the worker asks for. None: the ground truth is no
        answer, but something that an answer is compared with."""
        return ground_truth

    async def judge(self, sample: Sample) -> RewardResult:
        """Grades the sample within the time limit. Raises any error of `grade`, `TimeoutError`, and `TypeError` if its answer is
        no reward."""
        async with asyncio.timeout(None if self.keeps_time_limit else self.timeout_s):
            if inspect.iscoroutinefunction(self.grade):
                answer = await self.grade(sample)
            else:
                answer = await self._in_thread(sample)
                answer = await answer if inspect.isawaitable(answer) else answer
        return _result(answer)

    async def _in_thread(self, sample: Sample) -> Any:
        """Calls a plain `grade` in a thread: a call that never comes back costs no other sample its thread."""
        thread = self._threads.start(self.grade, sample)
        try:
            return await asyncio.wrap_future(thread.outcome)
        finally:
            self._threads.leave(thread)

    async def compute_rewards(self, samples: Sequence[Sample]) -> list[RewardResult]:
        """Returns one result per sample, in order."""
        return list(await asyncio.gather(*(self.result(sample) for sample in samples)))

    async def result(self, sample: Sample) -> RewardResult:
        """Boundary: any exception of `grade` becomes the sample's error."""
        async with self._free:
            began = monotonic()
            try:
                with escapes():
                    result = await self.judge(sample)
            except TimeoutError:
                result = RewardResult(error="timeout")
            except Exception as error:
                result = RewardResult(error=reason(error))
            return replace(result, seconds=monotonic() - began)


class FunctionRewardWorker(RewardWorker):
    """Worker of a user's function: `worker_cls: my_module.reward`. It may return any value that `grade` may return."""

    reads = frozenset()  # it is called with the sample alone

    def __init__(self, config: JsonMapping) -> None:
        """`config["worker_cls"]`: the function, plain or a coroutine function, or its dotted path."""
        super().__init__(config)
        # The worker calls it as it would its own method, in a thread if it is plain.
        self.grade = import_object(config["worker_cls"])  # type: ignore[method-assign]

    async def grade(self, sample: Sample) -> Grade:
        raise AssertionError("replaced by the function")


def worker_class(worker_cls: Code) -> type[RewardWorker]:
    """Returns the class that runs `worker_cls`: a class itself, a function the class above. Raises `ValueError`."""
    found = import_object(worker_cls)
    if isinstance(found, type):
        if carrier := getattr(found, "carried_by", None):  # a class of another framework's form names what carries it
            carrying: type[RewardWorker] = import_object(carrier)
            return carrying
        if not issubclass(found, RewardWorker):
            raise ValueError(f"{dotted_path(found)} is a class, but no RewardWorker; derive it from roll.RewardWorker")
        if found.compute_rewards is not RewardWorker.compute_rewards:
            raise ValueError(f"{dotted_path(found)} has compute_rewards, which is not asked; write grade(sample)")
        return found
    if callable(found):
        takes = inspect.signature(found).parameters
        theirs = {"completions": "the completions of a batch, as TRL's do", "solution_str": "verl's arguments"}
        if given := next((said for name, said in theirs.items() if name in takes), ""):
            ours = "def reward(sample): ... sample.response_text ... sample.prompt.ground_truth"
            raise ValueError(f"{dotted_path(found)} takes {given}; here it takes one sample: {ours}")
        return FunctionRewardWorker
    raise ValueError(f"{worker_cls} is neither a class nor a function, but {type(found).__name__}")


def _result(answer: Any) -> RewardResult:
    value, parts = answer if isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], Mapping) else (answer, {})
    try:
        number = read_number(value)
    except ValueError as error:
        wanted = "grade must return a finite number, or (number, {name: number})"
        raise TypeError(f"{wanted}, not {described(answer)}: it {error}") from error
    numbers = dict[str, float]()
    for name, part in parts.items():
        try:
            numbers[str(name)] = read_number(part)
        except ValueError as error:
            raise TypeError(f"grade returns the part {str(name)!r}, which {error}") from error
    if JUDGED in numbers:
        raise TypeError(f"grade must not return a part {JUDGED!r}: the name is taken")
    return RewardResult(value=number, parts=numbers)
