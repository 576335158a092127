"""`start_rlvr_pipeline.py`: from the command line to a running pipeline."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from roll.configs.problems import ConfigError

EXIT_CODES = {"finished": 0, "failed": 1, "interrupted": 130}


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        description="Reinforcement learning with verifiable rewards.",
        epilog="Any further key=value (or +key=value, ~key) overrides the YAML.",
    )
    parser.add_argument("--config_path", default="examples/config", help="folder of the YAML files (default: examples/config)")
    parser.add_argument("--config_name", default="rlvr_config_async", help="name of the YAML file (default: rlvr_config_async)")
    parser.add_argument("--local", action="store_true", help="one process, no Ray: for debuggers and single machines")
    known, overrides = parser.parse_known_args(arguments)
    options = [override for override in overrides if override.startswith("--")]
    if options:
        parser.error(f"unknown option {options[0]}; overrides are written key=value")
    return known, overrides


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 finished, 1 failed, 2 bad configuration, 130 interrupted."""
    options, overrides = parse(sys.argv[1:] if arguments is None else arguments)
    # Models and data are local folders; a missing one is an error, never a download.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    from roll.cli.compose import load_rlvr_config

    try:
        config = load_rlvr_config(Path(options.config_path), options.config_name, overrides)
    except ConfigError as error:
        return _refuse(error)

    from roll.distributed.backend import Backend, LocalBackend
    from roll.distributed.devices import detect
    from roll.pipeline.rlvr.preparation import prepare
    from roll.pipeline.rlvr.rlvr_pipeline import RLVRPipeline
    from roll.pipeline.run_record import archive_previous

    inventory = detect(config.num_nodes, config.num_gpus_per_node)
    try:
        prepared = prepare(config, inventory)
    except ConfigError as error:
        return _refuse(error)
    if prepared.checkpoint is None and (aside := archive_previous(prepared.run_dir)):
        print(f"the earlier run of this name was moved to {aside}")

    async def run() -> int:
        backend: Backend
        if options.local:
            backend = LocalBackend()
        else:
            from roll.distributed.ray_backend import RayBackend

            backend = RayBackend(inventory)
        summary = await RLVRPipeline(config, prepared, inventory, backend).run()
        return EXIT_CODES[summary["status"]]

    return asyncio.run(run())


def _refuse(error: ConfigError) -> int:
    for problem in error.problems:
        print(f"error: {problem}", file=sys.stderr)
    return 2
