"""The figures of a run, for summary.json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from roll.pipeline.benched_models import BenchedModel
from roll.pipeline.engine_fleet import EngineFleet
from roll.pipeline.explorer import Explorer
from roll.pipeline.flow import Flow
from roll.pipeline.state import RunState
from roll.pipeline.validation import ValidationResult
from roll.pipeline.weight_updates import UpdateStats

OF_TRAINING = (
    "steps", "validation", "groups", "staleness", "throughput", "idle_share", "weight_updates", "resumed_from_step", "alarms",
    "advice", "trainer_recovery_s", "synchronous_since",
)  # fmt: skip
"""Figures of which a run that only evaluates has none."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a run consists of when all workers are up; a process that is one half of a run lacks what the other has."""

    flow: Flow
    engines: EngineFleet | None
    updates: UpdateStats
    explorer: Explorer | None


def figures(
    state: RunState, wall_s: float, parts: Parts | None, trainer_recovery_s: Sequence[float], synchronous_since: int | None
) -> dict[str, Any]:
    """`parts`: None if the run ended before all workers were up. `trainer_recovery_s`: of each restart of the trainer.
    `synchronous_since`: the step after which the run is not asynchronous any more."""
    summary = {
        "wall_s": wall_s,
        **state.record.figures(wall_s),
        "groups": state.groups.admission.counts(),
        "idle_share": {},
        "engine_restarts": 0,
        "engine_recovery_s": [],
        "weight_updates": UpdateStats().summary(),
        "engines": [],
        "trainer_recovery_s": list(trainer_recovery_s),
        "synchronous_since": synchronous_since,
        "resumed_from_step": state.first_step,
    }
    if parts is None:
        return summary
    flow, engines = parts.flow, parts.engines
    updates: dict[str, Any] = parts.updates.summary()
    here = {stage.role for stage in flow.stages}
    judging = [name for name in flow.ledger.names() if name.startswith("rewards.")]
    roles = [role for role in ("actor_train", "actor_infer") if role in here]
    summary["idle_share"] = {role: flow.idle_share(role) for role in (*roles, *judging)}
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


def of_evaluation(summary: dict[str, Any], models: Sequence[BenchedModel], results: Sequence[ValidationResult]) -> dict[str, Any]:
    """The figures of a run that evaluates models, and nothing else."""
    by_version = {result.version: result for result in results}
    evaluation = [
        {"model": model.name, "step": model.version, "folder": str(model.folder), "errors": result.errors, "sets": _plain(result)}
        for model in models
        if (result := by_version.get(model.version)) is not None
    ]
    return {name: value for name, value in summary.items() if name not in OF_TRAINING} | {"evaluation": evaluation}


def _plain(result: ValidationResult) -> dict[str, Any]:
    """Set -> part -> figure -> value, low, high, prompts."""
    return {
        name: {part: {figure: estimate._asdict() for figure, estimate in found.items()} for part, found in parts.items()}
        for name, parts in result.sets.items()
    }
