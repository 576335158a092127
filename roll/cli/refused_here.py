"""Reasons to refuse a run on this machine that are known without a worker: trackers, the port of its figures, receivers of its
notices, the checkpoint that it resumes from, the database of its groups. Imports nothing heavy, and changes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile

from roll.core.configs.ppo import PPOConfig
from roll.core.configs.problems import Collector, ConfigError, Problem
from roll.core.configs.redact import redact_text
from roll.core.configs.sizes import GIB
from roll.core.errors import Misfit
from roll.core.record.checkpoint import Checkpoint
from roll.plan.contract import contract
from roll.prepare.beginning import beginning, standing
from roll.prepare.check import listeners

MOST_READ = 4 * GIB
"""A larger checkpoint is read by the start alone: it takes minutes."""
_ANSWERS = "a database that answers here: sqlite:///path/to/groups.db, or postgresql+psycopg://user@host/name"


def refused_here(config: PPOConfig) -> list[Problem]:
    collect = Collector()
    collect.add(_trackers(config))
    for listener in listeners(config):
        collect(*listener)
    if config.only_evaluates:
        fix = "name complete checkpoints, runs that have some, or pretrain"
        collect("bench_checkpoints", config.bench_checkpoints, partial(_evaluated, config), fix)
    resume = config.resume_from_checkpoint
    # A trainer alone moves nothing aside: explorers may be at work.
    if config.mode == "train" and resume is False and Path(config.run_dir, "config.yaml").exists():
        message = f"{config.run_dir} holds a run that has begun"
        collect.add([Problem("resume_from_checkpoint", False, message, "auto, to go on with it, or another exp_name")])

    def begin() -> None:
        checkpoint = None
        if not _is_large(config):
            standing(config, checkpoint := beginning(config))
        if (address := config.groups_database) is not None:
            check = partial(_check_database, config, address, checkpoint)
            collect("groups_database", redact_text(address), check, _ANSWERS)

    collect("resume_from_checkpoint", resume, begin, "another checkpoint, or another exp_name")
    try:
        collect.raise_if_any()
    except ConfigError as error:
        return error.problems
    return []


def unwritable(folder: Path) -> str:
    """Returns why no file can be made in the folder, or in the nearest that is there; empty if one can."""
    nearest = next(each for each in (folder, *folder.parents) if each.exists())
    try:
        TemporaryFile(dir=nearest).close()  # rights alone say little: root has them in /proc, too
    except OSError as error:
        return f"{nearest} cannot be written to: {error.strerror}"
    return ""


def _evaluated(config: PPOConfig) -> None:
    from roll.topologies.evaluation import evaluated_models

    evaluated_models(config)


def _trackers(config: PPOConfig) -> Iterator[Problem]:
    names = [config.track_with] if isinstance(config.track_with, str) else config.track_with
    for name in names if config.trains or config.only_evaluates else ():
        if name != "none" and find_spec(name) is None:
            message = f"needs the package {name}, which is not installed"
            yield Problem("track_with", config.track_with, message, f"pip install {name}, or leave it out")


def _is_large(config: PPOConfig) -> bool:
    asked = config.resume_from_checkpoint
    folders = sorted(Path(config.run_dir, "checkpoints").glob("step-*")) if asked in (True, "auto") else [Path(str(asked))]
    if asked is False:
        return False
    sizes = (path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file())
    return sum(sizes) > MOST_READ * max(len(folders), 1)


def _check_database(config: PPOConfig, address: str, checkpoint: Checkpoint | None) -> None:
    """Raises `ValueError`."""
    try:
        from roll.topologies.sql.admittance import check_contract, check_owner, run_in
        from roll.topologies.sql.connecting import file_of, open_engine, reading
    except ImportError as error:
        message = f"groups in a database need {error.name}, which is not installed"
        raise Misfit(message, "pip install sqlalchemy watchfiles") from error
    file = file_of(open_engine(address))
    if file is not None and not file.exists():
        if why := unwritable(file.parent):
            raise Misfit(why, "a file in a folder of yours")
        return
    with reading(address) as connection:
        if (run := run_in(connection)) is not None:
            check_owner(connection, run, standing(config, checkpoint))
            check_contract(run, {**json.loads(run.contract), **contract(config)})
