"""`start_rlvr_pipeline.py`: from the command line to a running pipeline."""

from __future__ import annotations

import argparse
import asyncio
import difflib
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from roll.configs.problems import MISSING_VALUE, ConfigError, Problem

EXIT_CODES = {"finished": 0, "failed": 1, "interrupted": 130}


class _Parser(argparse.ArgumentParser):
    """Complains in the form of every other bad input: one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError([Problem("command line", MISSING_VALUE, message, "see --help")])


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Raises `ConfigError`."""
    parser = _Parser(
        description="Reinforcement learning with verifiable rewards.",
        epilog="Any further key=value (or +key=value, ~key) overrides the YAML.",
        allow_abbrev=False,
    )
    parser.add_argument("--config_path", default="examples/config", help="folder of the YAML files (default: examples/config)")
    parser.add_argument("--config_name", default="rlvr_config_async", help="name of the YAML file (default: rlvr_config_async)")
    parser.add_argument("--local", action="store_true", help="one process, no Ray: for debuggers and single machines")
    known, overrides = parser.parse_known_args(arguments)
    for option in overrides:
        if option.startswith("-"):
            nearest = difflib.get_close_matches(option, ["--config_path", "--config_name", "--local"], n=1)
            advice = f"did you mean {nearest[0]}?" if nearest else "overrides are written key=value"
            raise ConfigError([Problem("command line", option, "unknown option", advice)])
    return known, overrides


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 finished, 1 failed, 2 bad configuration, 130 interrupted."""
    try:
        return _train(sys.argv[1:] if arguments is None else arguments)
    except ConfigError as error:
        for problem in error.problems:
            print(f"error: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_CODES["interrupted"]


def _train(arguments: Sequence[str]) -> int:
    """Raises `ConfigError`."""
    options, overrides = parse(arguments)
    # Models and data are local folders; a missing one is an error, never a download.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    from roll.cli.compose import load_rlvr_config

    config = load_rlvr_config(Path(options.config_path), options.config_name, overrides)

    # Heavy imports come after the configuration: a typo is answered at once.
    from roll.distributed.backend import Backend, LocalBackend
    from roll.distributed.devices import detect
    from roll.metrics.remote_trackers import TrackerError
    from roll.pipeline.rlvr.preparation import prepare
    from roll.pipeline.rlvr.rlvr_pipeline import RLVRPipeline
    from roll.pipeline.run_record import archive_previous

    inventory = detect(config.num_nodes, config.num_gpus_per_node)
    prepared = prepare(config, inventory, one_process=options.local)
    if not prepared.continues and (aside := archive_previous(prepared.run_dir)):
        print(f"the earlier run of this name was moved to {aside}")
    backend: Backend
    if options.local:
        backend = LocalBackend()
    else:
        from roll.distributed.ray_backend import RayBackend

        backend = RayBackend(inventory)
    try:
        pipeline = RLVRPipeline(config, prepared, inventory, backend)
    except TrackerError as error:
        raise ConfigError([Problem("track_with", config.track_with, str(error).removeprefix("track_with: "))]) from error
    except (ValueError, OSError) as error:  # journals that are not what the checkpoint recorded
        fix = "resume from another checkpoint, or start anew with false"
        raise ConfigError([Problem("resume_from_checkpoint", config.resume_from_checkpoint, str(error), fix)]) from error
    summary = asyncio.run(pipeline.run())
    if summary["status"] == "failed":
        print(f"error: {summary['reason']}", file=sys.stderr)
    return EXIT_CODES[summary["status"]]
