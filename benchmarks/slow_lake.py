"""The embedded agent's FrozenLake behind `LatencyEnv`: slow, and if wanted unreliable, as overrides of its configuration."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import yaml
from pipeline_run import ROOT, Run, run_pipeline

CONFIG = ROOT / "examples" / "config" / "agent_val_frozen_lake_async.yaml"
ENV = "custom_envs.FrozenLake"


def slow_lake(env_type: str = "latency.LatencyEnv", inside: str = "", **arguments: Any) -> list[str]:
    """Overrides that put the configuration's environment, or one of type `inside`, into one of type `env_type` with these
    arguments."""
    inner: dict[str, Any] = yaml.safe_load(CONFIG.read_text())["custom_envs"]["FrozenLake"]["env_config"]
    wrapped = {"env_type": inside, "env_config": {}} if inside else {"env_type": "frozen_lake", "env_config": inner}
    config = {**wrapped, **arguments}
    return [f"{ENV}.env_type={env_type}", *(f"~{ENV}.env_config.{key}" for key in inner), f"++{ENV}.env_config={_flow(config)}"]


def run_lake(overrides: list[str], out: Any, local: bool, **more: Any) -> Run:
    # Unless it is there already. What it says would stand in the middle of a table.
    subprocess.run([sys.executable, "examples/embedded/make_frozen_lake.py"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return run_pipeline(CONFIG, overrides, out, local, "start_agentic_pipeline.py", ("val_env_manager", "val_batch_size"), **more)


def _flow(value: Any) -> str:
    """As hydra reads it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in value.items()) + "}"
    return f"'{value}'" if isinstance(value, str) else yaml.safe_dump(value, default_flow_style=True).split("\n")[0]
