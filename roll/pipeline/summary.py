"""The figures of a run, for summary.json."""

from __future__ import annotations

from typing import Any

from roll.pipeline.engine_fleet import EngineFleet
from roll.pipeline.explorer import Explorer
from roll.pipeline.flow import Flow
from roll.pipeline.state import RunState
from roll.pipeline.weight_updates import UpdateStats, WeightUpdates


def figures(state: RunState, wall_s: float, parts: tuple[Flow, EngineFleet, WeightUpdates, Explorer] | None) -> dict[str, Any]:
    """`parts`: None if the run ended before all workers were up."""
    common = {
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
        return common
    flow, engines, weights, explorer = parts
    updates: dict[str, Any] = weights.stats.summary()
    if engines.broadcast is not None:
        updates["broadcasts"] = {"sent": engines.broadcast.sent, "failed": engines.broadcast.failed}
    return common | {
        "idle_share": {role: flow.idle_share(role) for role in ("actor_train", "actor_infer")},
        "engine_restarts": engines.fleet.restarts,
        "engine_recovery_s": engines.recovered_s,
        "weight_updates": updates,
        "engines": [
            {"generated_tokens": e.generated_tokens, "prefill_tokens": e.prefill_tokens, "busy_s": e.busy_s}
            for e in engines.last_stats
        ],
        **explorer.figures(),
    }
