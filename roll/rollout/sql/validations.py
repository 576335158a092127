"""Which explorer validates which version, and what came of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Executable, delete, insert, select, update

from roll.rollout.sql.tables import members, validations


def claim(connection: Connection, version: int, member: str, seq: int) -> Executable | None:
    """What makes it the member's to validate the version; None if another one has done so, or is at it."""
    row = connection.execute(select(validations).where(validations.c.version == version)).first()
    if row is not None:
        state = connection.execute(select(members.c.state).where(members.c.name == row.member)).scalar()
        if row.result is not None or (state == "alive" and row.member != member):
            return None
        connection.execute(delete(validations).where(validations.c.version == version))
    return insert(validations).values(version=version, seq=seq, member=member)


def report(version: int, result: Mapping[str, object], seq: int) -> Executable:
    return update(validations).where(validations.c.version == version).values(seq=seq, result=json.dumps(result))


def results(connection: Connection, after: int, until: int) -> list[dict[str, Any]]:
    """Those that changes `after` < number <= `until` reported."""
    query = select(validations.c.result).where(validations.c.seq > after, validations.c.seq <= until)
    query = query.where(validations.c.result.is_not(None)).order_by(validations.c.version)
    return [json.loads(result) for result in connection.execute(query).scalars()]
