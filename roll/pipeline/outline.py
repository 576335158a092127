"""The flow of a run that does not run: its stages, channels and devices, of the very lists that a run is made of."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from roll.configs.ppo import PPOConfig
from roll.configs.problems import Problem
from roll.distributed.device_locks import DeviceLocks
from roll.metrics.ledger import Ledger
from roll.pipeline.flow import Flow
from roll.pipeline.own_stage import OwnStage, names
from roll.pipeline.run import Run


class _Nobody:
    """Stands where a run has its explorer, its trainer and its weights: nothing of it can be called."""

    def __getattr__(self, name: str) -> None:
        return None


_NOBODY = _Nobody()


def outline(kind: type[Run], config: PPOConfig, own: Sequence[OwnStage]) -> Flow:
    devices = {role: frozenset(worker.devices) for role, worker in config.roles().items()}
    flow = Flow(Ledger(0.0), DeviceLocks(devices), time.monotonic)
    for half in kind.halves(config, own, _NOBODY, _NOBODY, _NOBODY):
        flow.join(half)
    return flow


def misplaced(kind: type[Run], config: PPOConfig, own: Sequence[OwnStage]) -> Iterator[Problem]:
    """Stages of a name that is taken, or after one that is not there or hands nothing on."""
    whole = _places(kind, replace(config, mode="both"))
    taken = set(whole)
    # What ends a half in this process may go on in another; what is not here at all runs in another.
    ends = {name for name, is_end in (whole | _places(kind, config)).items() if is_end}
    for stage in own:
        open_ends = ", ".join(name for name in [*whole, *taken - whole.keys()] if name not in ends)
        key = f"flow.stages.{stage.name}"
        if stage.name in taken:
            yield Problem(f"{key}.name", stage.name, "there is a stage of this name", "another name")
        elif stage.after not in taken:
            yield Problem(f"{key}.after", stage.after, "there is no such stage before it", f"one of {open_ends}")
        elif stage.after in ends:
            yield Problem(f"{key}.after", stage.after, "it ends its half and hands nothing on", f"one of {open_ends}")
        taken.add(stage.name)


def _places(kind: type[Run], config: Any) -> dict[str, bool]:
    """The names of the stages of a run without any of the user's own -> whether it is the last of its half."""
    halves = kind.halves(config, (), _NOBODY, _NOBODY, _NOBODY)
    return {name: stage is half[-1] for half in halves for stage in half for name in names(stage)}
