"""What the advice at the end of a run would come to: the run as it was and as it is advised to be, both simulated from its trace.

Silent where that says little: the run was no plain RLVR run, its trace is too short, a simulation of the run itself misses the
time of its steps, or it would take longer than anybody waits for at the end of a run.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from roll.core.configs.problems import ConfigError
from roll.core.configs.rlvr import RLVRConfig
from roll.core.errors import Stuck
from roll.core.record.run_progress import ENGINES
from roll.prepare.compose import load
from roll.reports.advice import LEAST_GAIN
from roll.simulate.calibration import calibrated
from roll.simulate.costs import Costs
from roll.simulate.figures import Figures, steady, step_rows
from roll.simulate.run import Simulation, simulate, simulated
from roll.simulate.split import per_engine, with_devices

MOST_RESPONSES = 3_000
"""Of a simulation, each of which takes about a millisecond."""
FEWEST_STEPS = 6
FARTHEST = 0.15
"""A simulation of the run itself that misses its steps by more than this share knows too little of it."""
DIVISION = re.compile(r"(\d+) for actor_infer, (\d+) for actor_train")


def foretold(run_dir: Path, advised: Mapping[str, str]) -> str:
    """A sentence for people about what is `advised`, by key; "" where there is nothing to say."""
    try:
        config, _ = load(run_dir, "config", [])
        if not advised or not isinstance(config, RLVRConfig) or config.roles().get("actor_train") is None:
            return ""
        if (steps := MOST_RESPONSES // config.rollouts_per_step) < FEWEST_STEPS:
            return ""
        costs = calibrated(run_dir, config)
        seen = steady(step_rows(run_dir), config.rollouts_per_step, 0.0)
        now = _simulated(config, costs, steps)
        if abs(now.step_s / seen.step_s - 1) > FARTHEST:
            return ""
        then = _simulated(_followed(config, advised), costs, steps)
    except (ConfigError, Stuck, OSError, ValueError, LookupError, KeyboardInterrupt):
        return ""
    what = ", ".join(f"{key}: {value}" for key, value in advised.items())
    figures = f"a step takes {then.step_s:.3g} s instead of {now.step_s:.3g} s, at staleness {then.staleness:.2f} instead of "
    worth = "" if then.step_s < (1 - LEAST_GAIN) * now.step_s else ": not worth it"
    return f"simulated with {what}: {figures}{now.staleness:.2f}{worth} (roll simulate --trace)"


def _followed(config: RLVRConfig, advised: Mapping[str, str]) -> RLVRConfig:
    """Raises `ConfigError`."""
    if "async_generation_ratio" in advised:
        config = replace(config, async_generation_ratio=float(advised["async_generation_ratio"]))
    if ENGINES in advised:
        config = replace(config, max_running_requests=int(advised[ENGINES]))
    if found := DIVISION.fullmatch(advised.get("device_mapping", "")):
        infer, train = map(int, found.groups())
        config = with_devices(config, infer // per_engine(config), train)
    return config


def _simulated(config: RLVRConfig, costs: Costs, steps: int) -> Figures:
    """Raises `ConfigError`, `Stuck` and, for a run that failed, `ValueError`."""
    short = replace(config, max_steps=steps, total_epochs=None, validation=None, eval_steps=None, val_batch_size=None)
    with tempfile.TemporaryDirectory(prefix="roll-advice-") as folder:
        simulation = Simulation(simulated(short, Path(folder)), costs)
        summary = simulate(simulation)
        if summary["status"] != "finished":
            raise ValueError(summary["reason"])
        return steady(step_rows(Path(simulation.config.run_dir)), 1, 0.0)
