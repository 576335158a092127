"""`mode: bench`: models that were trained before are evaluated, one after another, on the same engines; nothing is trained. Each
engine reads the tensors from a model's Hugging Face folder itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from roll.core.configs.base import PRETRAIN
from roll.core.configs.derived import Derived
from roll.core.configs.ppo import PPOConfig
from roll.core.configs.sizes import TORCH_NAMES, compute_dtype
from roll.core.engines.engine_fleet import EngineFleet
from roll.core.engines.weight_updates import EngineUpdates
from roll.core.errors import CheckpointError, Closed
from roll.core.flow.stage import AnyStage
from roll.core.groups.groups import Groups
from roll.core.groups.schedule import StepSchedule
from roll.core.pipeline.prepared import EvaluatedModel
from roll.core.pipeline.stages import NO_PARTS, Parts, announcing, validating
from roll.core.pipeline.topology import Rollouts, Topology, Watchers
from roll.core.record.checkpoint import CheckpointStore
from roll.core.record.manifest import MANIFEST
from roll.core.record.trace import Trace
from roll.core.record.validation import ValidationResult
from roll.core.weights.bucket import Bucket, BucketFile, WeightManifest, manifest_of
from roll.core.weights.folder_files import weight_files
from roll.core.weights.store import Buckets, Receive
from roll.platform.checkpoint_readers import Hold, reading
from roll.prompts.paths import BEST
from roll.transports.buckets import make_buckets

OF_TRAINING = (
    "steps", "validation", "groups", "staleness", "throughput", "idle_share", "weight_updates", "resumed_from_step",
    "trainer_recovery_s", "trainer_resumed_from", "synchronous_since",
)  # fmt: skip
"""Figures that a run that only evaluates lacks."""


def evaluated_models(config: PPOConfig) -> tuple[EvaluatedModel, ...]:
    """Returns models in the order of their steps. Raises `ValueError`, also for weights that differ from the saved ones."""
    found = []
    if PRETRAIN in config.bench_checkpoints:
        found.append(EvaluatedModel(0, PRETRAIN, Path(config.model_folder(config.actor_infer))))
    for path in _checkpoints(config):
        hold = reading(path)
        step, folder = CheckpointStore(path.parent).model(path)
        found.append(HeldModel(step, f"step-{step}", folder, hold))
    found.sort(key=lambda model: model.version)
    for one, other in pairwise(found):
        if one.version == other.version:
            raise ValueError(f"{one.folder} and {other.folder} are both of step {one.version}: evaluate them one after the other")
    return tuple(found)


@dataclass(frozen=True, slots=True)
class HeldModel(EvaluatedModel):
    """The model of a checkpoint, which its run does not delete while this object exists."""

    hold: Hold


def _checkpoints(config: PPOConfig) -> list[Path]:
    """Returns the folders of the named checkpoints, each once."""
    found: dict[Path, None] = {}
    best = Path(config.shared_dir) / "checkpoints" / BEST
    for path in (Path(each) for each in config.bench_checkpoints if each != PRETRAIN):
        if str(path) == BEST and not path.exists():
            path = best
            if not best.exists():
                raise CheckpointError(f"{best} is not there: the run keeps no best checkpoint (keep_best), or has none yet")
        steps = CheckpointStore(path / "checkpoints").steps()
        if steps:
            found |= dict.fromkeys((path / "checkpoints" / f"step-{step}").resolve() for step in steps)
        elif (path / MANIFEST).is_file():
            found[path.resolve()] = None
        else:
            raise CheckpointError(f"{path} is no folder of a checkpoint, and none of a run that has complete ones")
    return list(found)


def model_source(config: PPOConfig, models: Sequence[EvaluatedModel], on_accelerators: bool) -> ModelFolders:
    dtype = TORCH_NAMES[compute_dtype(config.actor_infer.model_args.dtype, on_accelerators)]
    folders = {model.version: model.folder.resolve() for model in models}
    return ModelFolders(folders, dtype, config.model_update_buffer_size_mb << 20)


class ModelsInTurn(EngineUpdates):
    """Engines receive the next model while they sample from the one before, and flip when that has been evaluated."""

    def __init__(
        self, engines: EngineFleet, groups: Groups, schedule: StepSchedule, trace: Trace, models: Sequence[EvaluatedModel]
    ) -> None:
        super().__init__(engines, groups, schedule, trace)
        self._to_come = deque(model.version for model in models[1:])
        self._looked_at = -1

    async def next_version(self) -> int:
        """Returns the next model, as soon as all engines serve it. Raises `Closed` after the last, and after `Groups.stop`."""
        if self._looked_at >= 0:
            if self._groups.stopped or not self._to_come:
                raise Closed
            self._pulls.publish(self._to_come.popleft(), awaited=True)
            self._groups.changes.notify()
        await self._groups.until(lambda: self._groups.stopped or (self._held and self._served > self._looked_at))
        if self._groups.stopped:
            raise Closed
        self._looked_at = self._served
        return self._served


def check_complete(models: Sequence[EvaluatedModel], results: Sequence[ValidationResult]) -> None:
    """Raises `RuntimeError` if a model has no result on a set."""
    names = {model.version: model.name for model in models}
    for result in results:
        for name, score in result.scores.items():
            if score is None:
                raise RuntimeError(f"{names[result.version]} on {name}: not one rollout could be judged")


@dataclass(frozen=True, slots=True)
class FolderBucket(BucketFile):
    """Some of the tensors in a file of a model, as a type that engines compute in."""

    dtype: str

    def read(self) -> Bucket:
        tensors = dict(_tensors(Path(self.path), self.names, self.dtype))
        return Bucket(tensors, self.checksum)


class ModelFolders:
    """A `WeightSource`."""

    def __init__(self, folders: Mapping[int, Path], dtype: str, bucket_bytes: int) -> None:
        """`folders`: of each version, on a file system that the engines see, too. `dtype`: the engines' number type."""
        self._folders = folders
        self._dtype = dtype
        self._bucket_bytes = bucket_bytes
        self._read: dict[int, list[FolderBucket]] = {}
        self._reading = asyncio.Lock()

    async def pull(self, version: int, into: Receive) -> WeightManifest:
        async with self._reading:
            if version not in self._read:
                self._read[version] = await asyncio.to_thread(self._buckets, self._folders[version])
        await Buckets(version, self._read[version]).hand_over(into)
        return self.manifest(version)

    def manifest(self, version: int) -> WeightManifest:
        """Returns the manifest of a version that was pulled before."""
        return manifest_of(version, self._read[version])

    async def retain(self, versions: Collection[int]) -> None:
        """Does nothing: the folders are others'."""

    def _buckets(self, folder: Path) -> list[FolderBucket]:
        return [
            FolderBucket(str(path), bucket.names, bucket.checksum, bucket.nbytes, self._dtype)
            for path in weight_files(folder)
            for bucket in make_buckets(_tensors(path, None, self._dtype), self._bucket_bytes)
        ]


def _tensors(path: Path, names: Collection[str] | None, dtype: str) -> Iterator[tuple[str, Tensor]]:
    """Yields tensors of a file, one at a time; integers keep their type. `names`: None for all. Raises `ValueError`."""
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys() if names is None else names:
                tensor = file.get_tensor(name)
                yield name, tensor.to(getattr(torch, dtype)) if tensor.is_floating_point() else tensor
    except (OSError, SafetensorError) as error:
        raise ValueError(f"the weights in '{path}' cannot be read: {error}") from error


class EvalOnly(Topology):
    """Evaluates models that were trained before, one after another."""

    @staticmethod
    def stages(rollouts: Rollouts, config: PPOConfig, derived: Derived, parts: Parts) -> list[list[AnyStage]]:
        return [[announcing(parts.versions), validating(parts.explorer)]]

    @staticmethod
    def summary(figures: dict[str, Any], models: Sequence[EvaluatedModel], results: Sequence[ValidationResult]) -> dict[str, Any]:
        by_version = {result.version: result for result in results}
        evaluation = [
            {"model": model.name, "step": model.version, "folder": str(model.folder), "errors": result.errors}
            | {"scores": result.scores, "sets": _plain(result)}
            for model in models
            if (result := by_version.get(model.version)) is not None
        ]
        return {name: value for name, value in figures.items() if name not in OF_TRAINING} | {"evaluation": evaluation}

    async def open(self) -> bool:
        state, models = self._state, self._prepared.evaluated
        store = model_source(self._config, models, self._around.accelerators)
        self.engines = engines = self._fleet(store, state.first_step, self._prepared.derived.engines_start_empty)
        await engines.load()
        self.weights = ModelsInTurn(engines, state.groups, state.schedule, state.record.files.trace, models)
        self.updates = self.weights.stats
        self.explorer = self.counter = explorer = await self._explorer(engines, self.weights)
        self.parts = replace(NO_PARTS, explorer=explorer, versions=self.weights)
        return True

    def watchers(self) -> Watchers:
        assert self.engines is not None
        return [self.engines.supervise(), self.weights.run()]

    async def close(self) -> str:
        check_complete(self._prepared.evaluated, self._state.record.results)
        return ""


def _plain(result: ValidationResult) -> dict[str, object]:
    """Returns set -> part -> figure -> value, low, high, prompts."""
    return {
        name: {part: {figure: estimate._asdict() for figure, estimate in found.items()} for part, found in parts.items()}
        for name, parts in result.sets.items()
    }
