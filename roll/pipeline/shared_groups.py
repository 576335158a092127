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
from roll.metrics.run_log import GroupLog
from roll.metrics.trace import Trace
from roll.rollout.admission import Admission
from roll.rollout.pipeline_depth import PipelineDepth
from roll.rollout.progress import Progress
from roll.rollout.sql.database import Database, DatabaseError, open_engine, reading
from roll.rollout.sql.groups import SqlGroups
from roll.rollout.sql.joining import ContractError, Member, check_may_join
from roll.rollout.tasks import TaskSource


def sql_groups(
    config: PPOConfig,
    address: str,
    admission: Admission,
    depth: PipelineDepth,
    source: TaskSource,
    journal: GroupLog,
    trace: Trace,
    progress: Progress,
) -> SqlGroups:
    """`journal`: written by the process that trains."""
    Path(config.shared_dir).mkdir(parents=True, exist_ok=True)
    return SqlGroups(
        admission,
        depth,
        source,
        journal if config.mode != "explore" else None,
        trace,
        progress,
        time.monotonic,
        Database(address),
        member(config, source),
        config.member_timeout,
        config.peer_timeout,
    )


def check_database(config: PPOConfig, address: str) -> None:
    """That the database can be used, and that this process may take part in the run it holds, if there is one. Raises
    `ConfigError`."""
    key, given = "groups_database", redact_text(address)
    try:
        file = open_engine(address).url.database
        if not address.startswith("sqlite:") or Path(file or "").exists():
            with reading(address) as connection:
                check_may_join(connection, config.contract())
    except ContractError as error:
        fix = "write the same, or another exp_name"
        raise ConfigError([Problem(error.key or key, error.value if error.key else given, str(error), fix)]) from error
    except DatabaseError as error:
        fix = "sqlite:///path/to/groups.db, or postgresql+psycopg://user@host/name"
        raise ConfigError([Problem(key, given, str(error), fix)]) from error


def member(config: PPOConfig, source: TaskSource) -> Member:
    """This process, as the others see it."""
    name = {"both": "driver", "train": "trainer", "explore": config.explorer_name}[config.mode]
    fixed = {key: value for key, value in source.cursor().items() if key not in ("served", "returned")}
    task_set = hashlib.blake2b(json.dumps(fixed, sort_keys=True).encode(), digest_size=16).hexdigest()
    devices = len(config.actor_infer.devices) if config.mode != "train" else 0
    return Member(name, config.mode != "train", config.mode != "explore", socket.gethostname(), os.getpid(), task_set, devices)
