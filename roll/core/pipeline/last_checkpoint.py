"""The last checkpoint of a run that fails: of the last step that was trained, if anybody could go on from it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping

from roll.core.distributed.cluster import Cluster
from roll.core.errors import BackendLost, Expelled, Superseded, TakenBack
from roll.core.flow.flow import one_line
from roll.core.pipeline.failures import dead_rank
from roll.core.trainer.checkpoint_writer import CheckpointWriter
from roll.core.trainer.milestones import Milestones

OTHERS_NOW = (Expelled, Superseded, TakenBack)
"""Another process goes on with the run, and its checkpoints are the run's."""


async def saved_or_why_not(
    save: Callable[[], Awaitable[None]],
    writer: CheckpointWriter,
    error: Exception,
    milestones: Milestones,
    clusters: Mapping[str, Cluster],
) -> str:
    """Saves it; else why there is none. `error`: what has ended the run."""
    if refused := _refusal(error, milestones) or await dead_rank(clusters):
        return refused
    try:
        await save()
    except Exception as why:  # boundary: a disk, a database or a worker may be what has failed
        return one_line(why)
    except asyncio.CancelledError:  # the run has its reason already
        writer.give_up()
        if (task := asyncio.current_task()) is not None:
            task.uncancel()
        return "stopped immediately by a signal"
    return ""


def unreachable(error: Exception) -> bool:
    """True if nothing can be asked of any worker: Ray ends a process that tries for long."""
    return any(isinstance(cause, BackendLost) for cause in _causes(error))


def _refusal(error: Exception, milestones: Milestones) -> str:
    causes = list(_causes(error))
    if any(isinstance(cause, OTHERS_NOW) for cause in causes):
        return "another process has taken over the run"
    if unreachable(error):
        return "no worker can be reached"
    if any(isinstance(cause, FloatingPointError) for cause in causes):
        return "the weights are not finite"
    if not milestones.whole:
        return f"step {milestones.begun} was being trained, and the weights are those of no step"
    return ""


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error.__cause__ or error.__context__
