"""A simulation in which things go wrong: workers hang and fail, links are slow, nodes are gone; and runs from checkpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from roll.core.configs.ppo import PPOConfig
from roll.core.errors import NodeLost
from roll.core.pipeline.prepared import Prepared
from roll.core.pipeline.run import Run
from roll.core.record.callbacks import Callback
from roll.core.record.checkpoint import Checkpoint, CheckpointStore, resumable
from roll.core.rewards.worker import RewardResult
from roll.prepare.beginning import standing
from roll.simulate.backend import Links, SimulatedBackend, SimulatedHandle
from roll.simulate.engine import ScriptedEngine
from roll.simulate.run import Config, Simulation, simulated, unheard
from roll.simulate.virtual_loop import run_virtually
from roll.simulate.workers import ScriptedInferWorker, ScriptedRewardWorker

Fault = Callable[[str, str], Exception | None]
"""(worker's name, method) -> what this call raises in its worker."""
Beside = Callable[[Run, SimulatedBackend], Coroutine[Any, Any, None]]
"""Runs beside a simulated run from its beginning on, and is cancelled when that has ended."""


class FaultyLinks(Links):
    def __init__(self, driver_s: float) -> None:
        super().__init__(driver_s)
        self.latency: Callable[[], float] = float
        """Seconds of the next message."""
        self.fault: Fault = lambda name, method: None

    async def pass_one(self, message_s: float = 0.0) -> None:
        await super().pass_one(message_s + self.latency())


class FaultyHandle(SimulatedHandle):
    _hangs = False

    async def call(self, method: str, *args: object) -> Any:
        if self._hangs and not self._dead.done():
            await asyncio.get_running_loop().create_future()
        return await super().call(method, *args)

    async def ping(self) -> None:
        if self._hangs and not self._dead.done():
            await asyncio.shield(self._dead)
        await super().ping()

    def hang(self) -> None:
        """It does nothing any more and answers no call."""
        self._hangs = True
        for work in list(self._open.values()):
            work.cancel()

    async def _answered(self, method: str, args: tuple[object, ...]) -> Any:
        if error := self._links.fault(self.name, method):
            raise error
        return await super()._answered(method, args)


class FaultyBackend(SimulatedBackend):
    handle = FaultyHandle

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.links = FaultyLinks(self._costs.message_s)
        self.without_node: set[str] = set()
        """Names of workers that cannot start now."""
        self._devices: dict[str, set[int]] = {}
        """Those of each worker."""

    def check_nodes(self, devices: Collection[int]) -> None:
        for name in sorted(self.without_node):
            if self._devices[name].intersection(devices):
                raise NodeLost(f"the node of {name} is gone")

    async def start(self, spec: Any) -> SimulatedHandle:
        self._devices[spec.name] = {*spec.placement.devices}
        if spec.name in self.without_node:
            raise NodeLost(f"the node of {spec.name} is gone")
        return await super().start(spec)


class CheckedEngine(ScriptedEngine):
    """It tells `wrong` when weights are not those of the version that their manifest names."""

    def __init__(self, *given: Any, wrong: list[str]) -> None:
        super().__init__(*given)
        self._wrong = wrong
        self._came: dict[int, set[int]] = {}
        """Version -> those that its buckets say they are."""

    async def receive_bucket(self, version: int, bucket: Any) -> None:
        await super().receive_bucket(version, bucket)
        self._came.setdefault(version, set()).update(int(trained) for trained in bucket.tensors.values())

    async def activate_weights(self, manifest: Any, mode: Any) -> float:
        if other := self._came.pop(manifest.version, set()) - {manifest.version}:
            self._wrong.append(f"version {manifest.version} came with the weights of {sorted(other)}")
        return await super().activate_weights(manifest, mode)


class CheckedInferWorker(ScriptedInferWorker):
    def __init__(self, *given: Any, wrong: list[str]) -> None:
        self.engine = partial(CheckedEngine, wrong=wrong)
        super().__init__(*given)


class FailingRewardWorker(ScriptedRewardWorker):
    fails = 0
    """So many judgements fail, from now on."""

    def _verdict(self, sample: Any) -> RewardResult:
        if self.fails:
            self.fails -= 1
            return RewardResult(error="a scripted failure")
        return super()._verdict(sample)


@dataclass(frozen=True)
class FaultySimulation(Simulation):
    wrong: list[str] = field(default_factory=list)
    resumed: Checkpoint | None = None
    callbacks: Sequence[Callback] = ()

    def backend(self) -> FaultyBackend:
        return FaultyBackend(self.inventory, self.costs, self.worker)

    def worker(self, spec: Any, part: Any) -> object:
        if spec.name.rpartition("-")[0] == "actor_infer":
            return CheckedInferWorker(self.costs, self.grain, spec.kwargs["options"], part, wrong=self.wrong)
        worker = super().worker(spec, part)
        if isinstance(worker, ScriptedRewardWorker):
            worker.__class__ = FailingRewardWorker
        return worker

    def prepared(self) -> Prepared:
        found = replace(super().prepared(), callbacks=tuple(self.callbacks), identity=standing(self.config, self.resumed))
        return found if self.resumed is None else found.resumed(self.resumed)

    def from_checkpoint(self) -> FaultySimulation:
        """From the newest that a simulated run has left in its folder, if there is one."""
        store = CheckpointStore(Path(self.config.run_dir) / "checkpoints")
        return replace(self, resumed=resumable(store, self.config))


def with_faults(config: PPOConfig, folder: Path) -> Config:
    """As `simulated`, but checkpoints are written, and workers are asked whether they live."""
    kept = ("save_steps", "heartbeat_timeout", "engine_health_interval_s")
    return replace(simulated(config, folder), **{name: getattr(config, name) for name in kept})


def simulate_with_faults(simulation: FaultySimulation, beside: Beside | None) -> dict[str, Any]:
    """As `simulate`."""

    async def main() -> dict[str, Any]:
        backend = simulation.backend()
        run = simulation.run(backend)
        other = asyncio.ensure_future(beside(run, backend)) if beside is not None else None
        try:
            return await run.run()
        finally:
            if other is not None:
                other.cancel()

    with unheard():
        return run_virtually(main())
