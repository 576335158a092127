"""Pipeline depth: batches that rollouts are started ahead, as few as keep the trainer busy. Pure: fed with measured seconds.

`async_generation_ratio` bounds staleness; it does not say how much of it is needed. Filling the whole allowance immediately pins
every sample at the bound even when generation is instant. The depth therefore starts low and follows the trainer's measurements:

* it waited `wait_s` for its batch. One more batch of depth gives the last group of a batch one more train step of lead, and
  only a whole one does, so the depth grows by `wait_s / train_s`, rounded up, immediately;
* its batch lay complete for `slack_s` before it was needed. If that was nearly a train step, a step of lead may be one too
  many: the depth shrinks by a probe. A probe after which the trainer waits is taken back and the next one comes only after
  four times as many steps, so a latency-bound run does not wait every other step.

`target_ess` bounds the depth from above by the importance weights of the data. If every version moves the policy by as
much, and another way, the variance of a response's log-ratio grows in proportion to the lag, and ln ESS falls in proportion
to it: a step with ESS e at depth d asks for the depth d · ln target / ln e. As long as it is not below the target the bound
rises by a probe. With such a bound the depth need not begin low: one batch is started ahead before anything is measured.

A step whose batch was filled with groups that were trained before (`max_reuse`) did not wait, but lacked fresh ones all the same:
reuse stands in for rollouts that are late, not for rollouts that were never started.
"""

from __future__ import annotations

import math
from typing import NamedTuple

TOLERATED_WAIT = 0.05
"""Share of a train step that the trainer may wait: below it, a shallower pipeline is worth more than the time."""

PROBE = 0.125
"""Batches by which the depth shrinks when data came early: eight steps to give up one batch of staleness."""

EARLY = 0.75
"""Share of a train step that a batch must have lain complete before a probe: with less, the groups that the probe starts one
step later would be waited for."""

LONGEST_HOLD = 64
"""Steps between two probes at the most, so that the depth follows a run whose responses become shorter."""


class StepTimes(NamedTuple):
    """Times at which a step came to its training. Its groups may be leased, and scored, while the step before trains."""

    asked: float
    """Whoever begins with the groups had nothing else to do."""
    complete: float
    """The groups lay ready."""
    leased: float
    scored_s: float
    """Seconds that scoring ahead of the training takes."""
    before_done: float
    """The step before was trained."""

    @property
    def wait_s(self) -> float:
        """Seconds that scoring and training both stood idle because the groups came late."""
        return max(0.0, min(self.leased - self.asked, self.leased + self.scored_s - self.before_done))

    @property
    def slack_s(self) -> float:
        """Seconds that the groups lay complete before they were needed, scored, by the training."""
        return max(0.0, max(self.asked, self.before_done - self.scored_s) - self.complete)


class PipelineDepth:
    def __init__(self, limit: float, fixed: float | None = None, floor: float = 0.0, target_ess: float | None = None) -> None:
        """`limit`: α, or less where groups are to be young enough to be trained again. `fixed`: a constant depth instead of the
        adaptive one. `floor`: batches beyond the first that the trainer needs of one version (weights are published every
        floor + 1 steps): a shallower pipeline would starve it. `target_ess`: of the importance weights of a step, as a share of
        its responses; None: they do not matter."""
        self.limit = limit
        self.floor = floor
        self.fixed = fixed
        self.depth = min(limit, max(floor, float(target_ess is not None)) if fixed is None else fixed)
        self._target_ess = target_ess
        self._most = limit
        """Returns the depth that the target allows."""
        self._settling = 0
        self._hold = 0
        self._patience = 4
        self._probed = False

    def observe(self, wait_s: float, train_s: float, slack_s: float, reused: float = 0.0, ess: float | None = None) -> None:
        """Adapts the depth after a step: seconds waited for its batch, seconds trained, seconds its batch lay complete before it
        was taken, its share of reuses, and the effective sample size in (0, 1] that was measured last."""
        if self.fixed is not None:
            return
        wait_s = max(wait_s, reused * train_s)
        if self._settling > 0:
            self._settling -= 1
            return
        if ess is not None and self._target_ess is not None and self._too_deep(ess, self._target_ess):
            return
        tolerated = TOLERATED_WAIT * train_s
        if wait_s > tolerated:
            if self._probed:
                self._change_to(self.depth + PROBE)
                self._patience = min(4 * self._patience, LONGEST_HOLD)
                self._hold = self._patience
            else:
                self._change_to(math.ceil(self.depth + wait_s / max(train_s, 1e-9)))
            self._probed = False
        elif self._hold > 0:
            self._hold -= 1
        elif slack_s > EARLY * train_s and self.depth > self.floor:
            self._change_to(self.depth - PROBE)
            self._probed = True

    def _too_deep(self, ess: float, target: float) -> bool:
        """True if the depth is to be lowered."""
        if ess >= target:
            self._most = min(self.limit, self._most + PROBE)
            return False
        self._most = max(self.floor, self.depth * math.log(target) / math.log(ess))
        if self._most == self.depth:
            return False
        self._change_to(self._most)
        self._probed = False
        return True

    def _change_to(self, depth: float) -> None:
        before, self.depth = self.depth, min(self._most, max(self.floor, depth))
        # Batches that were started under the old depth come first; they say nothing about the new one.
        self._settling = math.ceil(max(before, self.depth))
