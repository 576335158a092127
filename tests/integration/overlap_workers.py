"""Workers that write down when they are called: a trainer that trains on only when the next step is being scored, and a reward
that is known only when the trainer has begun."""

import asyncio
import threading

from integration_rewards import Letters

from roll.core.workers.workers import CriticWorker, TrainWorker

CALLS: list[str] = []
"""Of all workers, in order; a run's own after `CALLS.clear()`."""
_called = threading.Condition()
LIMIT_S = 20.0


def note(call: str) -> None:
    with _called:
        CALLS.append(call)
        _called.notify_all()


def awaited(call: str, count: int) -> bool:
    """Whether the call has come that often, after a while."""
    with _called:
        return _called.wait_for(lambda: CALLS.count(call) >= count, LIMIT_S)


class Reference(TrainWorker):
    def log_probs(self, batch):
        note("reference")
        return super().log_probs(batch)


class Critic(CriticWorker):
    def values(self, batch):
        note("values")
        return super().values(batch)

    def train(self, batches, loss, totals):
        metrics = super().train(batches, loss, totals)
        note("critic trained")
        return metrics


class Policy(TrainWorker):
    """Its first two steps end when the groups of the next step are scored by everyone who scores."""

    def log_probs(self, batch):
        note("log_probs")
        return super().log_probs(batch)

    def train(self, batches, loss, totals):
        metrics = super().train(batches, loss, totals)
        trained = CALLS.count("trained") + 1
        if trained <= 2:
            for who in {"reference", "values"} & set(CALLS):
                assert awaited(who, trained + 1), f"{who} of step {trained + 1} does not begin while step {trained} trains"
        note("trained")
        return metrics


class Arriving(TrainWorker):
    def add_gradients(self, batch, loss):
        super().add_gradients(batch, loss)
        note("gradients")

    def step_on_gradients(self, loss, totals):
        CALLS.append("stepped")
        return super().step_on_gradients(loss, totals)


class AfterTraining(Letters):
    """Grades the last of the 16 samples of a step when gradients of others have been added."""

    graded = 0

    async def grade(self, sample):
        self.graded += 1
        step, position = divmod(self.graded - 1, 16)
        if position == 15:
            added = self._before(step)
            assert await asyncio.to_thread(awaited, "gradients", added + 1), "nothing is trained while a sample is graded"
        return await super().grade(sample)

    @staticmethod
    def _before(step):
        """Calls for gradients before the step."""
        stepped = [i for i, call in enumerate(CALLS) if call == "stepped"]
        return CALLS[: stepped[step - 1]].count("gradients") if step else 0
