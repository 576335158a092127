"""Reasons to refuse a run on this machine that are known without a worker: trackers, the port of its figures, receivers of its
notices, the checkpoint that it resumes from, the database of its groups. Imports nothing heavy, and changes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile

from roll.core.configs.ppo import PPOConfig
from roll.core.configs.problems import Note
from roll.core.configs.redact import redact_text
from roll.core.configs.sizes import GIB
from roll.core.errors import DatabaseError, Fixable
from roll.core.record.checkpoint import Checkpoint
from roll.plan.contract import contract
from roll.plan.rules.addresses import FREE, listening_at
from roll.platform.ports import check_listening
from roll.prepare.beginning import beginning, standing
from roll.reports.receivers import receivers_of
from roll.reports.spans import INSTALL, check_installed

MOST_READ = 4 * GIB
"""A larger checkpoint is read by the start alone: it takes minutes."""


def refused_here(config: PPOConfig) -> Iterator[Note]:
    yield from _trackers(config)
    yield from _operated(config)
    if config.only_evaluates:
        yield from _evaluated(config)
    if config.resume_from_checkpoint is False:
        yield from _begun(config)
    checkpoint = None
    if not _is_large(config):
        try:
            checkpoint = beginning(config)
            standing(config, checkpoint)
        except (ValueError, OSError) as error:
            fix = getattr(error, "fix", "") or "another checkpoint, or another exp_name"
            yield Note("resume_from_checkpoint", config.resume_from_checkpoint, f"{' '.join(str(error).split())}; fix: {fix}")
            return
    if config.groups_database is not None:
        yield from _database(config, config.groups_database, checkpoint)


def unwritable(folder: Path) -> str:
    """Returns why no file can be made in the folder, or in the nearest that is there; empty if one can."""
    nearest = next(each for each in (folder, *folder.parents) if each.exists())
    try:
        TemporaryFile(dir=nearest).close()  # rights alone say little: root has them in /proc, too
    except OSError as error:
        return f"{nearest} cannot be written to: {error.strerror}"
    return ""


def _begun(config: PPOConfig) -> Iterator[Note]:
    """A trainer alone moves nothing aside: explorers may be at work."""
    if config.mode == "train" and Path(config.run_dir, "config.yaml").exists():
        message = f"{config.run_dir} holds a run that has begun; fix: auto, to go on with it, or another exp_name"
        yield Note("resume_from_checkpoint", False, message)


def _evaluated(config: PPOConfig) -> Iterator[Note]:
    from roll.topologies.evaluation import evaluated_models

    try:
        evaluated_models(config)
    except (ValueError, OSError) as error:
        fix = "name complete checkpoints, runs that have some, or pretrain"
        yield Note("bench_checkpoints", config.bench_checkpoints, f"{' '.join(str(error).split())}; fix: {fix}")


def _trackers(config: PPOConfig) -> Iterator[Note]:
    names = [config.track_with] if isinstance(config.track_with, str) else config.track_with
    for name in names if config.trains or config.only_evaluates else ():
        if name != "none" and find_spec(name) is None:
            message = f"needs the package {name}, which is not installed; fix: pip install {name}, or leave it out"
            yield Note("track_with", config.track_with, message)


def _operated(config: PPOConfig) -> Iterator[Note]:
    if (address := config.metrics_address) is not None:
        try:
            check_listening(*listening_at(address))
        except ValueError as error:
            yield Note("metrics_address", address, f"{error}; fix: {FREE}")
    if config.otlp_endpoint is not None:
        try:
            check_installed()
        except ValueError as error:
            yield Note("otlp_endpoint", config.otlp_endpoint, f"{error}; fix: {INSTALL}")
    for receiver in () if config.only_explores else receivers_of(config.on_event):
        try:
            receiver.check()
        except ValueError as error:
            yield Note(f"on_event.{receiver.event}", receiver.to, f"{error}; fix: export it, or name another")


def _is_large(config: PPOConfig) -> bool:
    asked = config.resume_from_checkpoint
    folders = sorted(Path(config.run_dir, "checkpoints").glob("step-*")) if asked in (True, "auto") else [Path(str(asked))]
    if asked is False:
        return False
    sizes = (path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file())
    return sum(sizes) > MOST_READ * max(len(folders), 1)


def _database(config: PPOConfig, address: str, checkpoint: Checkpoint | None) -> Iterator[Note]:
    key, shown = "groups_database", redact_text(address)
    try:
        from roll.topologies.sql.admittance import check_contract, check_owner, run_in
        from roll.topologies.sql.connecting import file_of, open_engine, reading
    except ImportError as error:
        fix = "pip install sqlalchemy watchfiles"
        yield Note(key, shown, f"groups in a database need {error.name}, which is not installed; fix: {fix}")
        return
    try:
        file = file_of(open_engine(address))
        if file is not None and not file.exists():
            if why := unwritable(file.parent):
                yield Note(key, shown, f"{why}; fix: a file in a folder of yours")
            return
        with reading(address) as connection:
            if (run := run_in(connection)) is not None:
                check_owner(connection, run, standing(config, checkpoint))
                check_contract(run, {**json.loads(run.contract), **contract(config)})
    except (DatabaseError, Fixable, ValueError) as error:
        usual = "a database that answers here: sqlite:///path/to/groups.db, or postgresql+psycopg://user@host/name"
        yield Note(key, shown, f"{' '.join(str(error).split())}; fix: {getattr(error, 'fix', '') or usual}")
