"""The figures of a run, for summary.json."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from roll.pipeline.engine_fleet import EngineFleet
from roll.pipeline.explorer import Explorer
from roll.pipeline.flow import Flow
from roll.pipeline.state import RunState
from roll.pipeline.weight_updates import UpdateStats


@dataclass(frozen=True, slots=True)
class Parts:
    """What a run consists of when all workers are up; a process that is one half of a run lacks what the other has."""

    flow: Flow
    engines: EngineFleet | None
    updates: UpdateStats
    explorer: Explorer | None


def figures(state: RunState, wall_s: float, parts: Parts | None) -> dict[str, Any]:
    """`parts`: None if the run ended before all workers were up."""
    summary = {
        **state.record.figures(wall_s),
        "groups": state.groups.admission.counts(),
        "idle_share": {},
        "engine_restarts": 0,
        "engine_recovery_s": [],
        "weight_updates": UpdateStats().summary(),
        "engines": [],
        "resumed_from_step": state.first_step,
    }
    if parts is None:
        return summary
    flow, engines = parts.flow, parts.engines
    updates: dict[str, Any] = parts.updates.summary()
    here = {stage.role for stage in flow.stages}
    summary["idle_share"] = {role: flow.idle_share(role) for role in ("actor_train", "actor_infer") if role in here}
    if "actor_train" not in here:  # an explorer: these figures are its trainer's
        del summary["staleness"], summary["throughput"]
    summary["weight_updates"] = updates
    if engines is not None:
        if engines.broadcast is not None:
            updates["broadcasts"] = {"sent": engines.broadcast.sent, "failed": engines.broadcast.failed}
        summary["engine_restarts"] = engines.fleet.restarts
        summary["engine_recovery_s"] = engines.recovered_s
        summary["engines"] = [
            {"generated_tokens": e.generated_tokens, "prefill_tokens": e.prefill_tokens, "busy_s": e.busy_s}
            for e in engines.last_stats
        ]
    return summary | (parts.explorer.figures() if parts.explorer is not None else {})
