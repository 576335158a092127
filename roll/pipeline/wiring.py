"""The wiring of a run: the pipeline's explorer half, the buffer, and the trainer half that all pipelines share.

    dataloader → (rollouts) → rollout → [buffer] → batch → (value | log_prob | reference) → advantage → train
        ▲                                                                                                 │
        └── admission ◀── version published ◀── validation ◀── parameter_update ◀── [weight store] ◀──────┘

With a critic, train is (critic | policy) → gather. What stands beside one another works at the same time where devices allow it.

What is synchronous about `async_generation_ratio: 0` is only what admission lets start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from roll.algorithms.loss import LossSpec
from roll.algorithms.value_loss import ValueLossSpec
from roll.configs.ppo import PPOConfig
from roll.configs.worker import WorkerConfig
from roll.distributed.cluster import Cluster
from roll.distributed.device_locks import DeviceLocks
from roll.metrics.ledger import Ledger
from roll.pipeline.critic_stages import CriticStage, ValueStage
from roll.pipeline.engine_fleet import EngineFleet
from roll.pipeline.explorer_stages import DataloaderStage, ExplorerHalf, RolloutStage
from roll.pipeline.flow import Flow
from roll.pipeline.preparation import Prepared
from roll.pipeline.run_state import RunState
from roll.pipeline.side_by_side import SideBySide
from roll.pipeline.stage import Stage
from roll.pipeline.step_work import StepWork
from roll.pipeline.trainer_stages import (
    AdvantageStage,
    BatchStage,
    GatherStage,
    LogProbStage,
    PolicyStage,
    ReferenceStage,
    TrainItem,
    TrainStage,
)
from roll.pipeline.validation import ValidationStage
from roll.pipeline.weight_updates import ParameterUpdateStage, WeightUpdates

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Wiring:
    """The stages of a run, and the ones that have to be spoken to."""

    flow: Flow
    devices: DeviceLocks
    dataloader: DataloaderStage
    batches: BatchStage
    updates: WeightUpdates
    validation: ValidationStage
    explorer_half: ExplorerHalf
    trainer_half: tuple[Stage[Any, Any], ...]
    background: set[asyncio.Task[None]]
    """Cancellations of dropped groups that are under way."""

    def stop(self) -> None:
        """No group and no step begins any more; what has begun is finished."""
        self.batches.stop()
        self.dataloader.stop()


def wire(
    config: PPOConfig,
    prepared: Prepared,
    state: RunState,
    clusters: Mapping[str, Cluster],
    fleet: EngineFleet,
    half: ExplorerHalf,
    work: StepWork,
    loss: LossSpec,
    has_validation: bool,
    clock: Callable[[], float],
) -> Wiring:
    derived = prepared.derived
    trainers = clusters["actor_train"]
    devices = device_locks(config, clusters, fleet)
    flow = Flow(Ledger(clock()), devices, clock)
    background: set[asyncio.Task[None]] = set()

    def spawn(coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(coroutine)
        background.add(task)
        task.add_done_callback(background.discard)

    state.fates.on_drop += [state.buffer.drop, lambda group_id: spawn(half.cancel(group_id))]
    state.fates.on_change.append(state.buffer.changed)

    batches = BatchStage(
        state.buffer, work.make_batch, state.depth, state.fates.changed, clock, state.first_step, config.max_steps
    )
    due = partial(work.validation_due, has_validation)
    validation = ValidationStage(half.evaluation, due, work.report_validation, clock)

    def served(version: int) -> None:
        validation.expect(version)
        state.admission.publish(version)
        state.fates.changed()

    def awaited(version: int) -> bool:
        return config.weight_pull_interval == 0 or due(version) or version == config.max_steps

    updates = WeightUpdates(fleet, config.weight_pull_interval, state.admission, state.depth, served, validation.engines_free)
    state.fates.on_change.append(updates.look)
    for changes in (fleet.on_down, fleet.on_up):
        changes.append(lambda _: updates.look())
    rollout = RolloutStage(prepared.filters, state.fates, state.buffer, updates.group_ended)
    flow.chain(half.dataloader, *half.rollouts, rollout)

    async def trained(item: TrainItem) -> None:
        await work.finish(item)
        batches.step_trained()

    fleet.on_down.append(half.engine_down)
    fleet.on_up.append(half.engine_up)
    trainer_half: list[Stage[Any, Any]] = [batches]
    critic = clusters.get("critic")
    scoring: list[Stage[TrainItem, TrainItem]] = []
    if critic is not None:
        scoring.append(ValueStage(partial(work.per_token, critic, "values")))
    if derived.recompute_old_logprobs:
        scoring.append(LogProbStage(partial(work.per_token, trainers, "log_probs")))
    if "reference" in clusters:
        scoring.append(ReferenceStage(partial(work.per_token, clusters["reference"], "log_probs")))
    trainer_half += scoring if len(scoring) <= 1 else [SideBySide("scoring", flow, *scoring)]
    trainer_half.append(AdvantageStage(lambda batch, lease: state.advantages(batch, lease.groups)))
    policy = PolicyStage(trainers, replace(loss, engines=len(clusters["actor_infer"])), work.optimiser_batches)
    gather = GatherStage(trainers, fleet.store, config.model_update_buffer_size_mb * MIB, work.push, trained)
    if critic is None:
        trainer_half.append(TrainStage(policy, gather))
    else:

        async def save(step: int) -> None:
            if work.saves(step):
                await state.save_critic(critic, step)

        # The critic first: where the two take turns, the policy has the devices when its weights are gathered.
        training = (CriticStage(critic, ValueLossSpec(clip=config.value_clip), work.critic_batches, save), policy)
        trainer_half += [SideBySide("train", flow, *training), gather]
    trainer_half += [ParameterUpdateStage(updates, awaited), validation]
    flow.chain(*trainer_half)
    validation.begin(state.first_step)
    return Wiring(flow, devices, half.dataloader, batches, updates, validation, half, tuple(trainer_half), background)


def device_locks(config: PPOConfig, clusters: Mapping[str, Cluster], fleet: EngineFleet) -> DeviceLocks:
    """Roles that share a device take turns; who leaves it frees what it can."""
    placed: dict[str, WorkerConfig | None] = {
        "actor_train": config.actor_train,
        "actor_infer": config.actor_infer,
        "reference": config.reference,
        "critic": config.critic,
    }
    locks = DeviceLocks(
        {role: frozenset(worker.devices) for role, worker in placed.items() if worker is not None and role in clusters}
    )
    locks.on_turn("actor_infer", fleet.sleep, fleet.wake)
    for role in ("actor_train", "reference", "critic"):
        if role in clusters:
            call_all = clusters[role].call_all
            locks.on_turn(role, partial(call_all, "offload"), partial(call_all, "reload"))
    return locks
