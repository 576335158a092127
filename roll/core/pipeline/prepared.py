"""A run that is ready to start, as a value."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, TypeVar

from transformers import PreTrainedTokenizerBase

from roll.core.configs.derived import Derived
from roll.core.configs.plain import JsonObject
from roll.core.configs.ppo import PPOConfig
from roll.core.distributed.backend import Backend
from roll.core.distributed.cluster import Cluster
from roll.core.distributed.devices import Inventory
from roll.core.flow.custom_stage import CustomStage
from roll.core.flow.flow import Flow
from roll.core.groups.filters import GroupFilter
from roll.core.groups.groups import Groups
from roll.core.groups.memory_groups import MemoryGroups
from roll.core.groups.parts import GroupParts
from roll.core.groups.tasks import TaskSource
from roll.core.record.callbacks import Callback, Observers, Reports
from roll.core.record.checkpoint import Checkpoint, CheckpointStore, resumable
from roll.core.record.run_identity import RunIdentity
from roll.core.record.run_lock import RunLock
from roll.core.record.validation import ValidationSet
from roll.core.trainer.trainer import Teaching

P = TypeVar("P", bound="Prepared")
Onlookers = Callable[[Flow, Mapping[str, Cluster], Path, Reports], Sequence[Coroutine[object, object, None]]]


class GroupsDatabase(Protocol):
    """A database that holds the groups of a run."""

    def lasting(self) -> str:
        """Returns its address, as it is right from any folder, without a password."""

    def mend(self, checkpoint: Checkpoint, journal: Path) -> None:
        """Restores the checkpoint's state. `journal`: groups.jsonl. Raises `ValueError`, with nothing changed."""

    def groups(self, parts: GroupParts, identity: RunIdentity) -> Groups: ...

    async def copy(self, groups: Groups, file: Path, step: int) -> None:
        """Writes the database's copy for the checkpoint of `step`."""


@dataclass(frozen=True, slots=True)
class EvaluatedModel:
    version: int
    """The step of a checkpoint; 0 for the model of `pretrain`."""
    name: str
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A run that is ready to start."""

    config: PPOConfig
    """Always has `max_steps`, even if the run's length was given otherwise."""
    written: JsonObject | None = None
    """The configuration as plain values, with paths as the user wrote them."""
    derived: Derived
    tokenizer: PreTrainedTokenizerBase
    ends: tuple[int, ...] = ()
    """Token ids that end an answer of the policy, by its folder."""
    known: int | None = None
    """Limit of the token ids that all models which get the policy's tokens know."""
    source: TaskSource
    beginning: JsonObject
    """Initial position of the source."""
    filters: dict[str, GroupFilter]
    """The filter of each domain."""
    checkpoint: Checkpoint | None
    run_dir: Path
    validation: list[ValidationSet]
    """Validation sets of every evaluation."""
    stages: tuple[CustomStage, ...] = ()
    """The user's own stages."""
    callbacks: tuple[Callback, ...] = ()
    observers: Callable[[Prepared, Inventory, Backend], Observers]
    """Makes the reports of the run."""
    onlookers: Onlookers
    """Makes coroutines beside the stages that show people the state of the run, and change nothing."""
    lock: RunLock | None = None
    """Held by the driver; None where nothing else can write there (tests)."""
    evaluated: tuple[EvaluatedModel, ...] = ()
    """Models that a run without training evaluates."""
    remarks: tuple[str, ...] = ()
    """Findings of the preparation that are worth knowing."""
    warnings: tuple[str, ...] = ()
    """Odd findings of the preparation."""
    rules: dict[str, str] = field(default_factory=dict)
    """Tag -> the rules of its environments."""
    contract: JsonObject = field(default_factory=dict)
    """Values that all processes of the run must share, by key."""
    groups: Callable[[GroupParts], Groups] = MemoryGroups
    """Makes the groups of a run that has them in this process."""
    teaching: Teaching | None = None
    """Asks the teachers; None: there are none."""
    database: GroupsDatabase | None = None
    """Database of the groups of a run of several processes; None: they are in this process."""
    identity: RunIdentity | None = None
    """Identity of the run that this process goes on with, or joins; None: one begins."""

    @property
    def first_version(self) -> int:
        """Returns the version that engines and trainer begin with."""
        if self.evaluated:
            return self.evaluated[0].version
        return self.checkpoint.step if self.checkpoint is not None else 0

    @property
    def checkpoints(self) -> Path:
        return self.run_dir / "checkpoints"

    @property
    def continues(self) -> bool:
        """True if the run goes on in its own folder; one that starts from another run's checkpoint does not."""
        return self.checkpoint is not None and self.checkpoint.is_of(self.run_dir)

    @property
    def resumed_record(self) -> JsonObject | None:
        """Returns the run record's state in the checkpoint; another run's without its journals, but with their accounts."""
        if self.checkpoint is None:
            return None
        record, accounts = self.checkpoint.state["record"], self.checkpoint.state["admission"]
        fresh = {"groups": 0, "samples": 0, "metrics": 0, "digests": {}, "inherited": {"step": record["step"], **accounts}}
        return dict(record) if self.continues else record | fresh

    def resumed(self: P, checkpoint: Checkpoint | None) -> P:
        """Returns the run from this checkpoint, or from its beginning, with the source at its position then."""
        if self.config.groups_address is None:
            self.source.restore(checkpoint.state["cursor"] if checkpoint is not None else self.beginning)
        return replace(self, checkpoint=checkpoint)

    def newest_checkpoint(self) -> Checkpoint | None:
        """Returns the checkpoint to resume from: the run's own newest good one, else the initial one. Raises `ValueError`."""
        again = replace(self.config, resume_from_checkpoint="auto")
        return resumable(CheckpointStore(self.checkpoints), again) or self.checkpoint
