"""The groups of a run in a database, as its configuration says."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import time
from pathlib import Path

from roll.configs.ppo import PPOConfig
from roll.configs.problems import ConfigError, Problem
from roll.configs.redact import redact_text
from roll.metrics.run_identity import RunIdentity
from roll.metrics.run_log import GroupLog
from roll.metrics.trace import Trace
from roll.rollout.admission import Admission
from roll.rollout.pipeline_depth import PipelineDepth
from roll.rollout.progress import Progress
from roll.rollout.sql.admittance import Claim, ContractError, check_may_join
from roll.rollout.sql.database import Database, DatabaseError, open_engine, reading
from roll.rollout.sql.groups import SqlGroups
from roll.rollout.sql.joining import Member
from roll.rollout.tasks import OneTaskSet, TaskSource

NAME = 8
"""Letters of a task set's digest in the ids of its prompts."""


def sql_groups(
    config: PPOConfig,
    address: str,
    admission: Admission,
    depth: PipelineDepth,
    source: TaskSource,
    journal: GroupLog,
    trace: Trace,
    progress: Progress,
    identity: RunIdentity,
) -> SqlGroups:
    """`journal`: written by the process that trains."""
    me = member(config, source)
    return SqlGroups(
        admission,
        depth,
        OneTaskSet(source, me.task_set[:NAME]) if config.mode == "explore" else source,
        journal if config.mode != "explore" else None,
        trace,
        progress,
        time.monotonic,
        Database(address),
        me,
        config.member_timeout,
        config.peer_timeout,
        identity,
    )


def check_database(config: PPOConfig, address: str, claim: Claim) -> None:
    """That the database can be used, and that this process may take part in the run it holds, if there is one. Raises
    `ConfigError`."""
    key, given = "groups_database", redact_text(address)
    try:
        file = file_of(address)
        anew = claim.identity is None and config.mode == "both"
        if file is not None and (not file.exists() or (anew and Path(config.run_dir).resolve() in file.parents)):
            return  # what lies in the folder of an earlier run is moved aside with it
        with reading(address) as connection:
            check_may_join(connection, config.contract(), claim)
    except ContractError as error:
        fix = (
            error.fix
            or "write what the run's other processes have; or, for a run of its own, another exp_name and groups_database"
        )
        raise ConfigError([Problem(error.key or key, error.value if error.key else given, str(error), fix)]) from error
    except DatabaseError as error:
        fix = "sqlite:///path/to/groups.db, or postgresql+psycopg://user@host/name"
        raise ConfigError([Problem(key, given, str(error), fix)]) from error


def file_of(address: str) -> Path | None:
    """The file of a database that is one. Raises `DatabaseError`."""
    url = open_engine(address).url
    return Path(url.database or "").resolve() if url.get_backend_name() == "sqlite" else None


def lasting(address: str) -> str:
    """The address as it is right whatever folder a reader is in, without a password."""
    file = file_of(address)
    return redact_text(address) if file is None else f"sqlite:///{file}"


def member(config: PPOConfig, source: TaskSource) -> Member:
    """This process, as the others see it."""
    name = {"both": "driver", "train": "trainer", "explore": config.explorer_name}[config.mode]
    fixed = {key: value for key, value in source.cursor().items() if key not in ("served", "returned")}
    task_set = hashlib.blake2b(json.dumps(fixed, sort_keys=True).encode(), digest_size=16).hexdigest()
    devices = len(config.actor_infer.devices) if config.mode != "train" else 0
    return Member(name, config.mode != "train", config.mode != "explore", socket.gethostname(), os.getpid(), task_set, devices)
