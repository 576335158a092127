"""Groups as rows of the database: what is written of one, and what one is that another process rolls out."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from statistics import fmean
from typing import Any, NamedTuple

from sqlalchemy import Executable, Row, insert, update

from roll.data.sample import Prompt, SampleGroup
from roll.rollout.admission import GroupState
from roll.rollout.sql.packing import digest, pack
from roll.rollout.sql.tables import groups, samples, tasks


class Fate(NamedTuple):
    group: SampleGroup
    fate: str
    reason: str
    step: int
    lag: int | None


def started(group: SampleGroup, seq: int, member: str, task_set: str, cursor: Mapping[str, Any]) -> list[Executable]:
    """`cursor`: of the task set, behind the group's task."""
    row = {
        "id": group.group_id,
        "seq": seq,
        "state": GroupState.IN_FLIGHT.value,
        "member": member,
        "task_set": task_set,
        "prompt_uid": group.prompt.uid,
        "domain": group.prompt.domain,
        "start_version": group.start_version,
        "reason": "",
        "started_at": time.time(),
    }
    served = update(tasks).where(tasks.c.task_set == task_set).values(seq=seq, cursor=json.dumps(cursor))
    return [insert(groups).values(row), served]


def completed(group: SampleGroup, seq: int) -> list[Executable]:
    versions = [span.version for sample in group.samples for span in sample.versions]
    row = {
        "seq": seq,
        "state": GroupState.BUFFERED.value,
        "oldest_version": min(versions, default=-1),
        "newest_version": max(versions, default=-1),
        "samples": len(group.samples),
        "tokens": sum(len(sample.response_ids) for sample in group.samples),
        "reward": fmean(group.outcomes) if group.samples else None,
        "completed_at": time.time(),
    }
    data = pack(group)
    return [
        update(groups).where(groups.c.id == group.group_id).values(row),
        insert(samples).values(group_id=group.group_id, digest=digest(data), data=data),
    ]


def ended(fate: Fate, seq: int) -> Executable:
    row = {"seq": seq, "state": fate.fate, "reason": fate.reason, "step": fate.step, "lag": fate.lag, "ended_at": time.time()}
    return update(groups).where(groups.c.id == fate.group.group_id).values(row)


def outline(row: Row[Any]) -> SampleGroup:
    """A group of another process, without its samples."""
    return SampleGroup(row.id, row.start_version, Prompt(row.prompt_uid, [], "", row.domain, row.domain, ""))


def fate_of(row: Row[Any], group: SampleGroup) -> Fate:
    return Fate(group, row.state, row.reason, row.step, row.lag)
