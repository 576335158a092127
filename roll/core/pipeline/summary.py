"""The figures of a run, for summary.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from roll.core.configs.plain import JsonObject
from roll.core.engines.engine_fleet import EngineFleet
from roll.core.engines.weight_updates import UpdateStats
from roll.core.explorer.explorer import Explorer
from roll.core.flow.flow import Flow
from roll.core.pipeline.failures import TrainerRestarts
from roll.core.pipeline.state import RunState

OF_THE_TIME = (
    "wall_s", "started_s", "throughput", "idle_share", "weight_updates", "device_turns", "engines", "memory",
    "advice", "advised",
)  # fmt: skip
"""Figures that are measured while steps are trained."""


@dataclass(frozen=True, slots=True)
class RunComponents:
    """The components of a run when all workers are up; a process with one side of a run lacks those of the other."""

    flow: Flow
    engines: EngineFleet | None
    updates: UpdateStats
    explorer: Explorer | None


COUNTED = ("reward_errors", "rollout_failures", "samples_without_reward", "environment_failures", "redundant_episodes_aborted")
"""Figures of an explorer that begin at 0 with it."""


@dataclass(slots=True)
class CarriedOver:
    """Counts for the whole run, from components that a restart of the trainer has ended."""

    first_step: int
    """First step of this process."""
    updates: UpdateStats = field(default_factory=UpdateStats)
    recovered_s: list[float] = field(default_factory=list)
    broadcasts: dict[str, int] = field(default_factory=dict)
    explored: dict[str, object] = field(default_factory=dict)

    def add(self, components: RunComponents) -> None:
        self.updates = self.updates.plus(components.updates)
        if components.engines is not None:
            self.recovered_s += components.engines.recovered_s
            self.broadcasts = self.and_broadcasts(components.engines)
        self.explored = self.and_explored(components.explorer.figures() if components.explorer is not None else {})

    def and_broadcasts(self, engines: EngineFleet) -> dict[str, int]:
        broadcast = engines.broadcast
        return (
            self.broadcasts if broadcast is None else _sum({"sent": broadcast.sent, "failed": broadcast.failed}, self.broadcasts)
        )

    def and_explored(self, figures: Mapping[str, object]) -> dict[str, object]:
        return {**figures, **{name: _sum(self.explored[name], figures[name]) for name in COUNTED if name in self.explored}}


def _sum(one: Any, other: Any) -> Any:
    """Adds two numbers, or two dictionaries of numbers."""
    if isinstance(one, dict):
        return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}
    return one + other


def figures(
    state: RunState,
    wall_s: float,
    components: RunComponents | None,
    carried_over: CarriedOver,
    restarts: TrainerRestarts,
    synchronous_since: int | None,
) -> dict[str, object]:
    """`components`: None if the run ended before all workers were up. `synchronous_since`: the step after which the run is not
    asynchronous any more."""
    updates = carried_over.updates if components is None else carried_over.updates.plus(components.updates)
    summary: JsonObject = {
        "wall_s": wall_s,
        **state.record.figures(wall_s),
        "groups": state.groups.admission.counts(),
        "idle_share": {},
        **_of_engines(components.engines if components is not None else None, carried_over),
        "weight_updates": updates.summary(),
        "trainer_recovery_s": list(restarts.seconds),
        "trainer_resumed_from": list(restarts.resumed_from),
        "synchronous_since": synchronous_since,
        "resumed_from_step": carried_over.first_step,
    }
    if components is None:
        return summary
    flow, engines = components.flow, components.engines
    here = {stage.role for stage in flow.stages}
    judging = [name for name in flow.ledger.names() if name.startswith("rewards.")]
    roles = [role for role in ("actor_train", "actor_infer") if role in here]
    summary["idle_share"] = {role: flow.idle_share(role) for role in (*roles, *judging)}
    if "actor_train" not in here:  # an explorer: these figures are its trainer's
        del summary["staleness"], summary["throughput"]
    if turns := flow.devices.turns_s:
        summary["device_turns"] = {"count": len(turns), "mean_s": fmean(turns)}
    if engines is not None and (broadcasts := carried_over.and_broadcasts(engines)):
        summary["weight_updates"]["broadcasts"] = broadcasts
    return summary | (carried_over.and_explored(components.explorer.figures()) if components.explorer is not None else {})


def _of_engines(engines: EngineFleet | None, carried_over: CarriedOver) -> dict[str, object]:
    if engines is None:
        nothing: list[object] = []
        lost = {"engine_restarts": 0, "engine_recovery_s": [*carried_over.recovered_s]}
        return {**lost, "engine_silent_s": nothing, "engines": nothing}
    counted = [
        {"generated_tokens": stats.generated_tokens, "prefill_tokens": stats.prefill_tokens, "busy_s": stats.busy_s}
        for stats in engines.last_stats
    ]
    recovered_s = [*carried_over.recovered_s, *engines.recovered_s]
    lost = {"engine_restarts": engines.fleet.restarts, "engine_recovery_s": recovered_s}
    return {**lost, "engine_silent_s": list(engines.silent.seconds), "engines": counted}
