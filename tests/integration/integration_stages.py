"""Stages and callbacks that tests name by dotted path."""

import math

from roll.core.flow.stage import Stage
from roll.core.record.callbacks import Callback


def count_step(step):
    """A plain function: it runs in a thread."""
    return step


async def takes_two(group, other):
    return group


class NoProcess(Stage):
    pass


class CannotBeMade(Stage):
    def __init__(self):
        super().__init__()
        self.share = 1 / 0

    async def process(self, group):
        return group


async def forgets(group):
    group.samples[0].reward = 0.0


async def divides_by_zero(group):
    return group.samples[0].reward / 0


async def gives_nan(group):
    group.samples[0].reward = math.nan
    return group


class Fails(Callback):
    """`where` is set by the test."""

    where = ""

    def on_run_begin(self, step, rows):
        self._fail("on_run_begin")

    def on_step(self, step, metrics):
        self._fail("on_step")

    def on_validation(self, step, metrics):
        self._fail("on_validation")

    def on_group(self, group, reason):
        self._fail("on_group")

    def on_refresh(self, progress):
        self._fail("on_refresh")

    def on_summary(self, summary, progress):
        self._fail("on_summary")

    def on_run_end(self, summary):
        self._fail("on_run_end")

    def _fail(self, event):
        if event == self.where:
            raise LookupError("no such luck")


class Odd(BaseException):
    pass


class Raises(Callback):
    """`where` and `what` are set by the test."""

    where, what = "", Exception

    def on_step(self, step, metrics):
        self._raise("on_step")

    def on_validation(self, step, metrics):
        self._raise("on_validation")

    def on_group(self, group, reason):
        self._raise("on_group")

    def on_run_end(self, summary):
        self._raise("on_run_end")

    def _raise(self, event):
        if event == self.where:
            raise self.what("because")


class Flaky(Stage):
    """Halves rewards, and fails at some groups in the middle of it."""

    def __init__(self, at, what="RuntimeError"):
        super().__init__()
        self.at, self.what = at, {"RuntimeError": RuntimeError, "SystemExit": SystemExit, "Odd": Odd}[what]

    async def process(self, group):
        for sample in group.samples[:2]:
            sample.reward = 77.0
        if group.group_id in self.at:
            raise self.what("once")
        for sample in group.samples:
            sample.reward = 0.25 + sample.index
        return group


async def flaky_step(step):
    step.metrics["mine/half"] = 1.0
    if step.number == 0:
        raise LookupError("once")
    return step
