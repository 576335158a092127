"""Groups as rows of the database: their writing, and the reading of another process's groups. Also the rows of validations: the
explorer of each version, and its result.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any, NamedTuple

from sqlalchemy import Connection, Executable, LargeBinary, Row, Select, delete, insert, literal, select, update

from roll.core.data.sample import Prompt, SampleGroup
from roll.core.errors import PackingError
from roll.core.groups.admission import Admission
from roll.core.groups.ticket import GroupState
from roll.topologies.packing import packed, unpacked
from roll.topologies.sql.tables import groups, members, reuses, samples, tasks, validations


def digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def unpack(data: bytes, expected: str) -> SampleGroup:
    """`expected`: the digest that was stored with the data. Raises `PackingError`."""
    if digest(data) != expected:
        raise PackingError("its samples are not the ones that were stored")
    return unpacked(data)


def unpack_group(group_id: int, stored: tuple[bytes, str] | None) -> SampleGroup:
    """`stored`: data and digest, if there are any. Raises `PackingError`."""
    if stored is None:
        raise PackingError("its samples are gone")
    group = unpack(*stored)
    if group.group_id != group_id:
        raise PackingError(f"its samples are those of group {group.group_id}")
    return group


REUSED = "reused"
"""Status of a further use, which is a row of its own: no state of a group, which was trained before."""


class EndedGroup(NamedTuple):
    group: SampleGroup
    status: str
    reason: str
    step: int
    lag: int | None


def of_run(admission: Admission, depth: float) -> dict[str, Any]:
    """Returns the row of the run, as far as it concerns its groups."""
    return {
        "version": admission.version,
        "newest": admission.newest,
        "next_step": admission.next_step,
        "trained": admission.trained,
        "reused": admission.reuse.done,
        "reusing": admission.reuse.under_way,
        "depth": depth,
    }


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


def completed(group: SampleGroup, seq: int) -> Executable:
    """Marks the group as completed; its samples are `PackedGroup`."""
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
    return update(groups).where(groups.c.id == group.group_id).values(row)


class PackedGroup:
    """The samples of a group that is still in flight, packed."""

    def __init__(self, group: SampleGroup, member: str) -> None:
        data = packed(group)
        theirs = (groups.c.id == group.group_id, groups.c.member == member, groups.c.state == GroupState.IN_FLIGHT.value)
        row = select(groups.c.id, literal(digest(data)), literal(data, LargeBinary)).where(*theirs)
        self._statements = (  # which may be executed again
            delete(samples).where(samples.c.group_id.in_(select(groups.c.id).where(*theirs))),
            insert(samples).from_select(["group_id", "digest", "data"], row),
        )

    def __call__(self, connection: Connection) -> None:
        for statement in self._statements:
            connection.execute(statement)


def stored_anew(group: SampleGroup) -> Callable[[Connection], object]:
    """Stores the samples of a group that the trainer has, with all that it knows of them."""
    data = packed(group)
    changed = update(samples).where(samples.c.group_id == group.group_id).values(digest=digest(data), data=data)
    return lambda connection: connection.execute(changed)


def content(connection: Connection, group_id: int) -> SampleGroup | PackingError:
    """Returns the group with its samples, or the error why it has none."""
    found = connection.execute(select(samples.c.data, samples.c.digest).where(samples.c.group_id == group_id)).first()
    try:
        return unpack_group(group_id, None if found is None else (found.data, found.digest))
    except PackingError as error:
        return error


def ended(group: EndedGroup, seq: int) -> Executable:
    if group.status == REUSED:
        return insert(reuses).values(group_id=group.group.group_id, step=group.step, seq=seq, lag=group.lag)
    row = {
        "seq": seq,
        "state": group.status,
        "reason": group.reason,
        "step": group.step,
        "lag": group.lag,
        "ended_at": time.time(),
    }
    return update(groups).where(groups.c.id == group.group.group_id).values(row)


def outline(row: Row[object]) -> SampleGroup:
    """Returns a group of another process, without its samples."""
    return SampleGroup(row.id, row.start_version, Prompt(row.prompt_uid, [], "", row.domain, row.domain, ""))


def ended_group(row: Row[object], group: SampleGroup) -> EndedGroup:
    return EndedGroup(group, row.state, row.reason, row.step, row.lag)


def superfluous(step: int, oldest: int | None) -> list[Select[tuple[int]]]:
    """Selects the groups whose samples no process needs that resumes from the checkpoint of `step` or a later one. `oldest`: the
    start version from which on a group may be trained again then; None: no group is."""
    done = select(groups.c.id).where(groups.c.state == "trained", groups.c.step <= step)
    done = done if oldest is None else done.where(groups.c.start_version < oldest)
    return [done, select(groups.c.id).where(groups.c.state == "dropped")]


def not_needed(step: int, oldest: int | None) -> list[Executable]:
    """Deletes the samples of `superfluous` groups."""
    return [delete(samples).where(samples.c.group_id.in_(ids)) for ids in superfluous(step, oldest)]


def claim_validation(connection: Connection, version: int, member: str, seq: int) -> Executable | None:
    """Returns the statement that lets the member validate the version; None if another has done so, or is at it."""
    row = connection.execute(select(validations).where(validations.c.version == version)).first()
    if row is not None:
        state = connection.execute(select(members.c.state).where(members.c.name == row.member)).scalar()
        if row.result is not None or (state == "alive" and row.member != member):
            return None
        connection.execute(delete(validations).where(validations.c.version == version))
    return insert(validations).values(version=version, seq=seq, member=member)


def report_validation(version: int, result: Mapping[str, object], seq: int) -> Executable:
    return update(validations).where(validations.c.version == version).values(seq=seq, result=json.dumps(result))


def validation_results(connection: Connection, after: int, until: int) -> list[dict[str, Any]]:
    """Returns the results that changes `after` < number <= `until` reported."""
    query = select(validations.c.result).where(validations.c.seq > after, validations.c.seq <= until)
    query = query.where(validations.c.result.is_not(None)).order_by(validations.c.version)
    return [json.loads(result) for result in connection.execute(query).scalars()]
