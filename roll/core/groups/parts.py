"""The components that the owner of groups works with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from roll.core.groups.admission import Admission
from roll.core.groups.pipeline_depth import PipelineDepth
from roll.core.groups.progress import Progress
from roll.core.groups.tasks import TaskSource
from roll.core.record.group_log import GroupLog
from roll.core.record.trace import Trace


@dataclass(frozen=True, slots=True)
class GroupParts:
    admission: Admission
    depth: PipelineDepth
    """The depth of rollouts, within admission's limit; learns from the trainer's measurements."""
    source: TaskSource
    journal: GroupLog | None
    """None where another process writes it."""
    trace: Trace
    """Shows each group's way."""
    progress: Progress
    """Ends a run that drops groups without end."""
    clock: Callable[[], float]
