"""The groups of a run in a database, as its configuration says."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from roll.core.configs.ppo import PPOConfig
from roll.core.configs.problems import ConfigError, Problem
from roll.core.configs.redact import redact_text
from roll.core.distributed.processes import Process
from roll.core.errors import ContractError, DatabaseDamaged, DatabaseError, DatabaseFailed
from roll.core.groups.groups import Groups
from roll.core.groups.parts import GroupParts
from roll.core.groups.tasks import TaskSource
from roll.core.record.checkpoint import Checkpoint
from roll.core.record.run_identity import RunIdentity
from roll.platform.file_systems import of_network
from roll.topologies.one_task_set import OneTaskSet
from roll.topologies.sql.admittance import MANY_MACHINES, Claim, check_may_join
from roll.topologies.sql.connecting import file_of, open_engine, reading
from roll.topologies.sql.copying import EMPTY, JournalEnd, check_copy, differs, restore_copy, write_copy, write_none
from roll.topologies.sql.database import Database, OpenDatabase
from roll.topologies.sql.following import Membership
from roll.topologies.sql.groups import SqlGroups
from roll.topologies.sql.joining import Member
from roll.topologies.sql.rows import REUSED

NAME = 8
"""Letters of a task set's digest in the ids of its prompts."""

logger = logging.getLogger(__name__)


class SharedGroups:
    """The database of a run of several processes: a `GroupsDatabase`."""

    def __init__(self, config: PPOConfig, address: str, open_database: OpenDatabase = Database) -> None:
        self._config, self._address, self._open = config, address, open_database

    def lasting(self) -> str:
        return lasting(self._address)

    def mend(self, checkpoint: Checkpoint, journal: Path) -> None:
        mend_database(self._address, checkpoint, journal)

    def groups(self, parts: GroupParts, identity: RunIdentity) -> SqlGroups:
        """The journal is written by the process that trains."""
        config = self._config
        me = member(config, parts.source)
        source = OneTaskSet(parts.source, me.task_set[:NAME]) if config.only_explores else parts.source
        journal = parts.journal if config.trains else None
        membership = Membership(me, identity, config.member_timeout, config.peer_timeout)
        database = self._open(self._address, config.member_timeout)
        return SqlGroups(replace(parts, source=source, journal=journal), database, membership)

    async def copy(self, groups: Groups, file: Path, step: int) -> None:
        shared, oldest = shared_groups(groups), groups.admission.reuse.oldest_after(step)
        try:
            await shared.beside(partial(write_copy, self._address, file, step, oldest))
        except DatabaseFailed as error:
            if not shared.outage.over:
                raise
            logger.warning("the checkpoint of step %d has no copy of the database: %s", step, error)
            await asyncio.to_thread(write_none, file)


def shared_groups(groups: Groups) -> SqlGroups:
    """Returns the groups of a run of several processes."""
    assert isinstance(groups, SqlGroups), "the rules of `mode` give such a run a database"
    return groups


def check_database(
    config: PPOConfig, address: str, contract: Mapping[str, object], claim: Claim, checkpoint: Checkpoint | None = None
) -> None:
    """Checks that the database can be used, and that this process may take part in its run, if it has one. `contract`: the keys
    that all processes share. `checkpoint`: the one of its own that the run goes on from; with its copy, a damaged database is
    restored. Raises `ConfigError`."""
    key, given = "groups_database", redact_text(address)
    try:
        if checkpoint is not None:
            check_copy(checkpoint.database, contract)
        file = file_of(open_engine(address))
        if file is not None and (kind := of_network(file)):
            local = f"with all processes on one machine, sqlite:///<a path on its own disk>; else {MANY_MACHINES}"
            raise ContractError(f"SQLite's file {file} lies on a network file system ({kind}), where it is not safe", fix=local)
        anew = claim.identity is None and config.has_both_sides
        if file is not None and (not file.exists() or (anew and Path(config.run_dir).resolve() in file.parents)):
            return  # what lies in the folder of an earlier run is moved aside with it
        with reading(address) as connection:
            check_may_join(connection, contract, claim)
    except ContractError as error:
        fix = (
            error.fix
            or "write what the run's other processes have; or, for a run of its own, another exp_name and groups_database"
        )
        raise ConfigError([Problem(error.key or key, error.value if error.key else given, str(error), fix)]) from error
    except DatabaseDamaged as error:
        if checkpoint is None:
            trainer = "start the trainer with resume_from_checkpoint: auto, it restores the database from its newest checkpoint"
            fix = trainer if config.only_explores else "restore the file from a copy, or start over with another exp_name"
            raise ConfigError([Problem(key, given, f"the database is damaged: {error}", fix)]) from error
    except DatabaseError as error:
        fix = "a database that answers here: sqlite:///path/to/groups.db, or postgresql+psycopg://user@host/name"
        raise ConfigError([Problem(key, given, str(error), fix)]) from error


def mend_database(address: str, checkpoint: Checkpoint, journal: Path) -> None:
    """Restores the database from the copy of `checkpoint`, from which a trainer resumes in its own folder, if it does not belong
    to it; the old one is set aside. `journal`: groups.jsonl. Raises `ValueError` if it cannot be restored, and has changed
    nothing then."""
    place, engine = redact_text(address), open_engine(address)
    why = _unlike(address, checkpoint, journal)
    if not why:
        return
    file = file_of(engine)
    if file is None and why != EMPTY:
        raise ValueError(f"{place}: {why}; restore its backup, or empty it: then it is filled from {checkpoint.database}")
    aside = _set_aside(file) if file is not None else ""
    with engine.begin() as connection:
        restore_copy(connection, checkpoint.database)
    engine.dispose()
    logger.warning("%s: %s; it was restored from %s%s", place, why, checkpoint.path.name, aside)


def _unlike(address: str, checkpoint: Checkpoint, journal: Path) -> str:
    """Returns why the database does not belong to the checkpoint; empty if it does."""
    position, seq = checkpoint.state["record"]["groups"], checkpoint.state["database"]["seq"]
    with journal.open("rb") as lines:
        rows = [json.loads(line) for line in lines.read(position).splitlines()]
    statuses = {row["group_id"]: JournalEnd(row["status"], row["step"]) for row in rows if row["status"] != REUSED}
    file = file_of(open_engine(address))
    if file is not None and not file.is_file():
        return EMPTY
    try:
        with reading(address) as connection:
            return differs(connection, seq, statuses)
    except DatabaseDamaged as error:
        return f"it is damaged: {error}"


def _set_aside(file: Path) -> str:
    """Renames the files of an SQLite database. Returns a clause that says so."""
    found = [path for end in ("", "-wal", "-shm") if (path := file.with_name(file.name + end)).exists()]
    number = next(number for number in itertools.count(1) if not any(_aside(path, number).exists() for path in found))
    for path in found:
        path.rename(_aside(path, number))
    return f"; what there was is in {_aside(file, number)}" if found else ""


def _aside(path: Path, number: int) -> Path:
    return path.with_name(f"damaged-{number}-{path.name}")


def lasting(address: str) -> str:
    """Returns the address in a form that is right in any folder, without a password."""
    file = file_of(open_engine(address))
    return redact_text(address) if file is None else f"sqlite:///{file}"


def member(config: PPOConfig, source: TaskSource) -> Member:
    """Returns this process, as the others see it."""
    name = config.explorer_name if config.only_explores else "driver" if config.explores else "trainer"
    fixed = {key: value for key, value in source.cursor().items() if key not in ("served", "returned")}
    task_set = hashlib.blake2b(json.dumps(fixed, sort_keys=True).encode(), digest_size=16).hexdigest()
    devices = len(config.actor_infer.devices) if config.explores else 0
    return Member(name, config.explores, config.trains, Process.this(), task_set, devices)
