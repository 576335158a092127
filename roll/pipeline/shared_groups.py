"""The groups of a run in a database, as its configuration says."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import time
from pathlib import Path

from roll.configs.ppo import PPOConfig
from roll.metrics.run_log import GroupLog
from roll.rollout.admission import Admission
from roll.rollout.groups import TaskSource
from roll.rollout.pipeline_depth import PipelineDepth
from roll.rollout.progress import Progress
from roll.rollout.sql.database import Database
from roll.rollout.sql.groups import SqlGroups
from roll.rollout.sql.joining import Member


def sql_groups(
    config: PPOConfig,
    address: str,
    admission: Admission,
    depth: PipelineDepth,
    source: TaskSource,
    journal: GroupLog,
    progress: Progress,
) -> SqlGroups:
    """`journal`: written by the process that trains."""
    Path(config.shared_dir).mkdir(parents=True, exist_ok=True)
    return SqlGroups(
        admission,
        depth,
        source,
        journal if config.mode != "explore" else None,
        progress,
        time.monotonic,
        Database(address),
        member(config, source),
        config.member_timeout,
        config.peer_timeout,
    )


def member(config: PPOConfig, source: TaskSource) -> Member:
    """This process, as the others see it."""
    name = {"both": "driver", "train": "trainer", "explore": config.explorer_name}[config.mode]
    fixed = {key: value for key, value in source.cursor().items() if key not in ("served", "returned")}
    task_set = hashlib.blake2b(json.dumps(fixed, sort_keys=True).encode(), digest_size=16).hexdigest()
    return Member(name, config.mode != "train", config.mode != "explore", socket.gethostname(), os.getpid(), task_set)
