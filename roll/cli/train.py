"""`roll train`, `start_rlvr_pipeline.py`, `start_agentic_pipeline.py`: from the command line to a running pipeline."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import resource
import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roll.cli.embedded import missing_model
from roll.cli.hub import asks_the_hub, with_fetched_models
from roll.cli.options import OVERRIDES, Parser, complain, config_folder
from roll.cli.page import fitted
from roll.cli.surroundings import too_few_files
from roll.configs.agentic import AgenticConfig
from roll.configs.ppo import PPOConfig
from roll.configs.problems import ConfigError, Problem
from roll.configs.report import LoadReport
from roll.configs.rlvr import RLVRConfig
from roll.configs.visible import visible
from roll.distributed.machine import this_machine

if TYPE_CHECKING:
    from roll.distributed.backend import Backend
    from roll.distributed.devices import Inventory
    from roll.distributed.watchdog import Watchdog
    from roll.pipeline.agentic.preparation import AgenticPrepared
    from roll.pipeline.rlvr.preparation import RLVRPrepared
    from roll.pipeline.run import Pipeline
    from roll.pipeline.run_lock import RunLock

EXIT_CODES = {"finished": 0, "failed": 1, "interrupted": 130}
BAD_CONFIGURATION = 2
DEFAULT_CONFIG = {"rlvr": "rlvr_config_async", "agentic": "agent_val_frozen_lake_async"}
DESCRIPTIONS = {
    "rlvr": "Reinforcement learning with verifiable rewards.",
    "agentic": "Reinforcement learning of agents in environments.",
}


class _Formatter(logging.Formatter):
    """Messages may quote what a model, an environment or a foreign package wrote."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record), keep="\n\t")


def parser_of(pipelines: Sequence[str], prog: str) -> Parser:
    """The options of one pipeline; for a help text, of several."""
    parser = Parser(
        prog=prog, description=" ".join(DESCRIPTIONS[each] for each in pipelines), epilog=OVERRIDES, allow_abbrev=False
    )
    parser.add_config_options(" or ".join(DEFAULT_CONFIG[each] for each in pipelines))
    parser.add_argument("--local", action="store_true", help="one process, no Ray: for debuggers and single machines")
    parser.add_argument("--compat", action="store_true", help="report what is not known here, instead of refusing it")
    return parser


def parse(arguments: Sequence[str], pipeline: str, prog: str) -> tuple[argparse.Namespace, list[str]]:
    """Raises `ConfigError`."""
    return parser_of([pipeline], prog).parse_with_overrides(arguments)


def main(arguments: Sequence[str] | None = None, prog: str = "roll train") -> int:
    """The first argument may be the pipeline, `rlvr` (the default) or `agentic`. `prog`: how the user called this.

    Returns the exit code: 0 finished, 1 failed, 2 bad configuration, 130 interrupted."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    pipeline = given.pop(0) if given and given[0] in DEFAULT_CONFIG else ""
    if not pipeline and prog == "roll train" and {"-h", "--help"} & set(given):
        parser_of(list(DEFAULT_CONFIG), "roll train rlvr|agentic").print_help()
        return 0
    pipeline = pipeline or "rlvr"
    try:
        return _train(pipeline, given, prog if prog.endswith(".py") else f"{prog} {pipeline}")
    except ConfigError as error:
        complain(error.problems)
        return BAD_CONFIGURATION
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_CODES["interrupted"]


def _train(pipeline: str, arguments: Sequence[str], prog: str) -> int:
    """Raises `ConfigError`."""
    options, overrides = parse(arguments, pipeline, prog)
    prepare_process()
    from roll.cli.compose import load_to_start

    config, report = load_to_start(config_folder(options.config_path), options.config_name, overrides, compat=options.compat)
    given = "agentic" if isinstance(config, AgenticConfig) else "rlvr"
    if given != pipeline:
        before, _, after = prog.rpartition(pipeline)
        fix = f"{before}{given}{after}"
        raise ConfigError([Problem("config_name", options.config_name, f"is the configuration of the {given} pipeline", fix)])
    return run(config, report, options.local)


def prepare_process() -> None:
    """What has to be set before a configuration is loaded."""
    # A reward or an environment of the user's own lies where the command is given; it never hides what is installed.
    sys.path.append(os.getcwd())
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if not this_machine().accelerators:
        # Where DeepSpeed is installed transformers imports it, and it would say in every process that it found no accelerator.
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    if not sys.stdout.isatty():
        os.environ.setdefault("RAY_COLOR_PREFIX", "0")  # Ray colours what workers print, also in a file
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


def run(config: RLVRConfig | AgenticConfig, report: LoadReport, local: bool) -> int:
    """Returns the exit code. Raises `ConfigError`."""
    from roll.cli.check import contradictions

    if report.summary:
        print(report.summary)
    if not asks_the_hub(config):  # nothing is fetched that was not asked for
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if problems := contradictions(config, this_machine()) or missing_model(config.pretrain):
        raise ConfigError(report.located(problems))
    try:
        return _run(config, local)
    except ConfigError as error:
        raise ConfigError(report.located(error.problems)) from error


def _run(config: RLVRConfig | AgenticConfig, local: bool) -> int:
    """Raises `ConfigError`."""
    from roll.pipeline.run_lock import RunInUse, RunLock

    if problem := too_few_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0], local):
        raise ConfigError([problem])
    run_dir = Path(config.run_dir)
    try:
        lock = RunLock(run_dir)
    except RunInUse as error:
        fix = "wait until that run ends, end it, or write another exp_name"
        raise ConfigError([Problem("exp_name", config.exp_name, str(error), fix)]) from None
    except OSError as error:
        raise ConfigError([_cannot_write(config, error)]) from None
    with closing(lock):
        return _run_locked(config, local, lock)


def _run_locked(config: RLVRConfig | AgenticConfig, local: bool, lock: RunLock) -> int:
    """The lock is there before anything is read for a resumption, or moved. Raises `ConfigError`."""
    # Heavy imports come after the configuration: a typo is answered at once.
    from roll.distributed import determinism

    if config.deterministic:
        determinism.set_environment()
    from roll.cli.check import announce
    from roll.distributed.devices import detect
    from roll.distributed.watchdog import Watchdog
    from roll.pipeline.live_files import SUMMARY, announce_running
    from roll.pipeline.run_record import archive_previous

    inventory = detect(config.num_nodes, config.num_gpus_per_node)
    config = with_fetched_models(config)
    prepared = replace(_prepare(config, inventory, local), lock=lock)
    config = prepared.config
    for line in prepared.checkpoint.skipped if prepared.checkpoint is not None else ():
        print(f"a checkpoint cannot be resumed from, and is left out: {visible(line)}")
    watchdog = Watchdog()
    try:
        if config.mode == "train" and not prepared.continues:
            _refuse_to_displace(config, prepared.run_dir)
        elif not prepared.continues and (aside := archive_previous(prepared.run_dir)):
            print(f"the earlier run of this name was moved to {aside}")
        print(visible("\n".join(fitted(announce(config))), keep="\n"))
        pipeline = _pipeline(prepared, inventory, _backend(config, inventory, local, watchdog, prepared.run_dir))
        announced = announce_running(prepared.run_dir, lock.owner.started)
        why = f"the driver (process {os.getpid()}) was killed, or crashed; what it wrote last is on its standard error"
        watchdog.amends(prepared.run_dir / SUMMARY, announced, {"status": "failed", "reason": why}, f"error: {why}")
        summary = _to_the_end(pipeline, prepared.run_dir, lock)
    except OSError as error:
        raise ConfigError([_cannot_write(config, error)]) from error
    finally:
        watchdog.dismiss()
    if summary["status"] == "failed":
        print(f"error: {visible(summary['reason'])}", file=sys.stderr)
    return EXIT_CODES[summary["status"]]


def _refuse_to_displace(config: PPOConfig, run_dir: Path) -> None:
    """Explorers may be at work on an earlier run of this name, so its folder stays where it is. Raises `ConfigError`."""
    if config.resume_from_checkpoint is False and (run_dir / "config.yaml").exists():
        message = f"{run_dir} holds a run that has begun, and explorers may be at work on it"
        fix = "auto, to go on with it, or another exp_name"
        raise ConfigError([Problem("resume_from_checkpoint", False, message, fix)])


def _to_the_end(pipeline: Pipeline, run_dir: Path, lock: RunLock) -> dict[str, Any]:
    """Runs the pipeline to its end and returns the summary, which is written whatever ends the run."""
    from roll.pipeline.live_files import amend_summary
    from roll.pipeline.run_lock import Superseded

    try:
        return asyncio.run(pipeline.run())
    except BaseException as error:
        status = "interrupted" if isinstance(error, KeyboardInterrupt | asyncio.CancelledError) else "failed"
        summary = {"status": status, "reason": " ".join(f"{type(error).__name__}: {error}".split())}
        with suppress(Superseded):
            lock.check()
            amend_summary(run_dir, summary)
        if isinstance(error, OSError):  # a full disk also stops the handler of the error that ended the run
            return summary
        raise


def _backend(config: PPOConfig, inventory: Inventory, local: bool, watchdog: Watchdog, run_dir: Path) -> Backend:
    if local:
        from roll.distributed.backend import LocalBackend

        return LocalBackend()
    from roll.distributed import determinism
    from roll.distributed.ray_backend import RayBackend

    environment = {name: os.environ[name] for name in determinism.ENVIRONMENT if config.deterministic}
    return RayBackend(inventory, environment, watchdog, logs=run_dir / "ray_logs")


def _prepare(config: RLVRConfig | AgenticConfig, inventory: Inventory, local: bool) -> RLVRPrepared | AgenticPrepared:
    """Raises `ConfigError`."""
    if isinstance(config, AgenticConfig):
        from roll.pipeline.agentic.preparation import prepare as prepare_agentic

        return prepare_agentic(config, inventory, one_process=local)
    from roll.pipeline.rlvr.preparation import prepare

    return prepare(config, inventory, one_process=local)


def _pipeline(prepared: RLVRPrepared | AgenticPrepared, inventory: Inventory, backend: Backend) -> Pipeline:
    """Raises `ConfigError`."""
    from roll.metrics.remote_trackers import TrackerError
    from roll.pipeline.rlvr.preparation import RLVRPrepared

    config = prepared.config
    try:
        if isinstance(prepared, RLVRPrepared):
            from roll.pipeline.rlvr.rlvr_pipeline import RLVRPipeline

            return RLVRPipeline(prepared.config, prepared, inventory, backend)
        from roll.pipeline.agentic.agentic_pipeline import AgenticPipeline

        return AgenticPipeline(prepared.config, prepared, inventory, backend)
    except TrackerError as error:
        raise ConfigError([Problem("track_with", config.track_with, str(error).removeprefix("track_with: "))]) from error
    except ValueError as error:  # the journals differ from what the checkpoint recorded
        raise ConfigError([_cannot_resume(config, str(error))]) from error
    except (LookupError, TypeError, AttributeError) as error:  # a checkpoint is text that anybody may have edited
        if prepared.checkpoint is None:
            raise
        message = f"{prepared.checkpoint.path} has contents that this version did not write: {type(error).__name__}: {error}"
        raise ConfigError([_cannot_resume(config, message)]) from error


def _cannot_write(config: RLVRConfig | AgenticConfig, error: OSError) -> Problem:
    where = error.filename or Path(config.output_dir) / config.exp_name  # a write that fails names no file
    message = f"{where}: {error.strerror}"
    return Problem("output_dir", config.output_dir, message, "name a folder that can be written to, on a disk with space")


def _cannot_resume(config: RLVRConfig | AgenticConfig, message: str) -> Problem:
    fix = "resume from another checkpoint, or start anew with false"
    return Problem("resume_from_checkpoint", config.resume_from_checkpoint, " ".join(message.split()), fix)
