"""Owner of a database, and admission of processes. A database is one run's.

A second run would roll the first one back to its own beginning and train its groups; so a run with another id than the database's
is refused, and told the owner. A trainer takes the place of an earlier one of its own run if that one is dead.

`LifeSigns`: the living processes of a run, as each of the others sees them. Every process counts a number of its own up, its
beat. An observer compares it with the last one it saw, by its own clock: clocks that differ or jump change nothing. Silence
counts only while it could look: a process that was stopped, or cut off from the database, does not know about the others.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Row, inspect, select

from roll.core.distributed.processes import Process
from roll.core.errors import ContractError
from roll.core.record.run_identity import RunIdentity
from roll.topologies.sql.database import LAYOUT
from roll.topologies.sql.tables import members, runs

BEAT_S = 2.0
WATCH_S = 2.5 * BEAT_S
"""A living process has beaten at least once in this time."""
SOON = 8
"""Divisor of `member_timeout` after which a silent explorer is missed where there are others."""
LOOK_S = 0.2

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Claim:
    """The claims of a process that asks to join."""

    identity: RunIdentity | None
    """Identity of its folder's run; None: it begins a run."""
    trains: bool
    step: int = 0
    """The step that a trainer resumes from."""
    patience_s: float = 60.0
    """A trainer that is silent for longer is dead."""


def check_may_join(connection: Connection, contract: Mapping[str, object], claim: Claim) -> None:
    """Checks a process before it takes part, perhaps before there is a run; outside of any transaction, for it may watch
    others for signs of life. Raises `ContractError`."""
    run = run_in(connection)
    if run is None:
        return
    check_owner(connection, run, claim.identity, WATCH_S)
    check_contract(run, contract)
    check_one_machine(connection, Process.this())
    if claim.trains:
        _check_trainers(connection, claim)
        _check_not_taken_back(run, claim)


def run_in(connection: Connection) -> Row[Any] | None:
    """Returns the run that the database holds, if any. Raises `ContractError` for tables of another layout."""
    if not inspect(connection).has_table(runs.name):
        return None
    layout = connection.execute(select(runs.c.layout)).scalar()
    if layout not in (None, LAYOUT):
        raise ContractError(f"its tables have layout {layout}, this version has {LAYOUT}: use the version of the others")
    return connection.execute(select(runs)).first()


def check_contract(run: Row[Any], contract: Mapping[str, object]) -> None:
    """Raises `ContractError`."""
    theirs = json.loads(run.contract)
    for key in {*theirs, *contract}:
        if theirs.get(key) != contract.get(key):
            message = f"the run was begun with {key}: {theirs.get(key)}, here it is {contract.get(key)}"
            raise ContractError(message, key, contract.get(key))


def check_owner(connection: Connection, run: Row[Any], identity: RunIdentity | None, watch_s: float = 0.0) -> None:
    """Raises `ContractError` if the database is another run's. `watch_s`: seconds of looking for signs of life of that run's
    trainer; outside of any transaction."""
    if identity is not None and identity.id == run.run_id:
        return
    owner = owner_of(run)
    length = f" of {run.max_steps}" if run.max_steps is not None else ""
    far = f"{run.status}, step {run.next_step}{length}, {run.trained} groups trained"
    message = f"the database is that of {owner}: {far}; {_trainer_of(connection, watch_s)}"
    ways = "a database of its own for this run (groups_database), or go on with that one: "
    raise ContractError(message, fix=f"{ways}output_dir {Path(owner.folder).parent}, exp_name {owner.exp_name}, " + RESUME)


RESUME = "resume_from_checkpoint: auto"


def owner_of(run: Row[Any]) -> RunIdentity:
    return RunIdentity(run.run_id, **json.loads(run.about))


def about(identity: RunIdentity) -> str:
    """Returns the identity of a run but for its id, as its row has it."""
    told = asdict(identity)
    return json.dumps({key: told[key] for key in ("exp_name", "folder", "host", "began")})


def _trainers(connection: Connection) -> Sequence[Row[Any]]:
    """Returns trainers, the one that joined last first."""
    query = select(members).where(members.c.role != "explorer").order_by(members.c.joined_at.desc())
    return connection.execute(query).all()


def _trainer_of(connection: Connection, watch_s: float) -> str:
    if not (rows := _trainers(connection)):
        return "its trainer has not begun"
    row = rows[0]
    if row.state != "alive":
        return f"its trainer is not running ({process_of(row)} was the last)"
    process = process_of(row)
    alive = process.alive or (process.alive is None and shows_life(connection, row, watch_s))
    state = "is alive" if alive else "gives no sign of life" if watch_s else "takes part"
    return f"its trainer {state} ({process})"


def _check_trainers(connection: Connection, claim: Claim) -> None:
    """Checks that an earlier trainer of the run is dead, or gives no sign of life. Raises `ContractError`."""
    for row in _trainers(connection):
        process = process_of(row)
        lives = None if process == Process.this() else process.alive
        if row.state == "left" or lives is False or (row.state == "lost" and not lives):
            continue
        if lives is None:
            waits = "the run's trainer was %s: waiting %g s at most for a sign of life of it (member_timeout)"
            logger.warning(waits, process, claim.patience_s)
        if lives or shows_life(connection, row, claim.patience_s):
            fix = "end that process first; or, for a run of its own, another exp_name and groups_database"
            raise ContractError(f"a trainer of this run is alive: {process}", fix=fix)


def _check_not_taken_back(run: Row[Any], claim: Claim) -> None:
    """Raises `ContractError` if a trainer without a checkpoint would undo steps that checkpoints have."""
    if claim.step == 0 and run.saved > 0:
        message = (
            f"the run has trained {run.next_step} steps, and this process does not go on from its checkpoint of step {run.saved}"
        )
        own = "for a run of its own, another exp_name and groups_database"
        raise ContractError(message, fix=f"{RESUME}, and bring its checkpoints back if they are gone; or, {own}")


def shows_life(connection: Connection, member: Row[Any], within_s: float, wait: Callable[[float], None] = time.sleep) -> bool:
    """Returns True if the process gives a sign of life within so many seconds: it beats, joins again or leaves."""
    end = time.monotonic() + within_s
    sign = select(members.c.term, members.c.beat).where(members.c.name == member.name)
    while time.monotonic() < end:
        if tuple(connection.execute(sign).one()) != (member.term, member.beat):
            return True
        wait(LOOK_S)
    return False


def check_one_machine(connection: Connection, mine: Process) -> None:
    """Checks that the processes of an SQLite file are on one machine, for they share its memory. Raises `ContractError` if one of
    another machine gives a sign of life; outside of any transaction."""
    if connection.dialect.name != "sqlite":
        return
    for row in connection.execute(select(members).where(members.c.state == "alive")).all():
        theirs = process_of(row)
        if theirs.boot not in ("", mine.boot) and shows_life(connection, row, WATCH_S):
            message = f"SQLite serves processes of one machine, and {theirs} takes part from another than this one ({mine.host})"
            raise ContractError(message, fix=MANY_MACHINES)


MANY_MACHINES = "groups_database: postgresql+psycopg://user@host/name, the same for all processes of the run"


def process_of(row: Row[Any]) -> Process:
    return Process(row.host, row.pid, row.boot, row.process_table, row.ticks)


def columns_of(process: Process) -> dict[str, object]:
    found = asdict(process)
    return {"process_table": found.pop("table"), **found}


class LifeSigns:
    def __init__(self, deadline_s: float) -> None:
        """`deadline_s`: a process whose beat stands still for longer counts as lost."""
        self.deadline_s = deadline_s
        self._silent: dict[str, tuple[object, float]] = {}
        """Process -> its last beat, and the seconds since in which another would have been heard."""
        self._looked: float | None = None
        self.was_deaf = False
        """True if it could not look for so long that the others, who could not be heard, have all their time anew."""

    def look(self, beats: Mapping[str, object], now: float, replaceable: Collection[str] = ()) -> list[str]:
        """`beats`: the present ones of all processes recorded as alive. `replaceable`: processes without which others go on, and
        which may come back: they are not waited for that long. Returns the lost ones."""
        pause, self._looked = now - (now if self._looked is None else self._looked), now
        self.was_deaf = pause > max(WATCH_S, self.deadline_s / 4)
        before = {} if self.was_deaf else self._silent
        heard = min(pause, WATCH_S / 2)
        self._silent = {
            name: (beat, before[name][1] + heard if name in before and before[name][0] == beat else 0.0)
            for name, beat in beats.items()
        }
        soon = min(self.deadline_s, max(WATCH_S, self.deadline_s / SOON))
        return [
            name for name, (_, silence) in self._silent.items() if silence > (soon if name in replaceable else self.deadline_s)
        ]
