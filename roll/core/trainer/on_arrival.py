"""Trains a step while its groups still arrive: gradients add up, and the optimiser steps when the batch is complete.

    lease, group by group → (reference | log_probs) → advantages → gradients ──last──▶ step → gather

The weights stay the same until the last group has arrived: on-policy samples stay so, and the update equals that of the whole
batch in one piece, but for the order of its sums.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from roll.core.algorithms.loss import prepare_batch
from roll.core.data.token_batch import TokenBatch
from roll.core.distributed.clock import monotonic
from roll.core.errors import contained
from roll.core.trainer.milestones import Milestone
from roll.core.trainer.optimise import add_gradients, step_on_gradients
from roll.core.trainer.trainer import Step, Trainer
from roll.core.weights.transport import NewWeights


class TrainerOnArrival(Trainer):
    """A trainer whose `Step` is a part of one until the last part has arrived."""

    on_arrival = True
    _parts: tuple[Step, ...] = ()
    _free_at: float | None = None
    """Time since which the trainer has nothing to train."""
    _idle_s = 0.0

    async def before_advantages(self, step: Step) -> None:
        await self.after_previous_step(step, "advantage")

    async def advantages(self, step: Step) -> Step:
        step.batch = await asyncio.to_thread(contained, self._advantages.of_part, step.batch, step.lease.groups)
        return step

    async def train(self, step: Step) -> NewWeights | None:
        self._idle_s += monotonic() - (step.lease.asked_at if self._free_at is None else self._free_at)
        await add_gradients(self._policy, prepare_batch(step.batch, self._loss), self._loss)
        self._parts += (step,)
        weights = await self._train_whole() if step.lease.last else None
        self._free_at = monotonic()
        return weights

    async def _train_whole(self) -> NewWeights | None:
        """The step of all parts."""
        last = self._parts[-1].lease
        begun_at = max(self._parts[0].lease.asked_at, self._done_at)
        step = joined(self._parts, begun_at + self._idle_s)
        step.idle_s, self._idle_s, self._parts = self._idle_s, 0.0, ()
        if self._step_s:
            await self._groups.observe_step(step.idle_s, self._step_s, max(0.0, last.asked_at - last.complete_at), 0.0, self._ess)
        step.batch, metrics = await asyncio.to_thread(contained, self._advantages, step.batch, step.lease.groups)
        self.milestones.passed(Milestone.BEGUN, step.number + 1)
        step.metrics |= metrics | await step_on_gradients(self._policy, step.batch, self._loss)
        return await self.gather(step)


def joined(parts: Sequence[Step], leased_at: float) -> Step:
    """Returns the whole step, its groups in the order of admission."""
    groups = [group for part in parts for group in part.lease.groups]
    samples = [group.group_id for group in groups for _ in group.samples]
    batch = TokenBatch.joined([part.batch for part in parts])
    order = sorted(range(len(samples)), key=samples.__getitem__)
    in_order = tuple(sorted(groups, key=lambda group: group.group_id))
    lease = replace(parts[-1].lease, groups=in_order, asked_at=parts[0].lease.asked_at, leased_at=leased_at)
    return Step(lease, batch.select(order))
