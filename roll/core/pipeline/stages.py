"""The stages of both sides of a run, in the order in which an item meets them.

| stage | consumes | waits until | unblocked by |
|---|---|---|---|
| admit | a task of the source | admission lets a group start | a version that is served, a ticket given back |
| generate, episodes | an admitted group | an engine has a place | a request that ends |
| reward | a group with responses | its judges have answered | – |
| keep | a rewarded group | – | – |
| lease | the groups of a step | the batch is complete | keep |
| value, log_prob, reference, teachers.* | a leased step, side by side | the weights they score with are there | the step before |
| advantage | a scored step | the step before is trained and written down | train |
| train (or critic and policy) | a step with advantages | – | – |
| gather | a trained step, where a critic trains beside the policy | – | – |
| publish | new weights | all engines serve them, if that is asked for | the engines' flips |
| served | nothing | a version that is to be validated is served | the engines' flips |
| validate | a version that all engines serve | its rollouts are judged | – |

Every stage that has a role also waits for that role's devices. A channel between two stages holds one item: a stage that is
slower than the one before it holds that one up.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from roll.core.configs.derived import Derived
from roll.core.configs.worker import TEACHERS
from roll.core.data.sample import SampleGroup
from roll.core.flow.stage import AnyStage, GatedStage, SourceStage, Stage, parallel
from roll.core.trainer.trainer import Step, Trainer
from roll.core.weights.transport import NewWeights


class Explores(Protocol):
    async def next(self) -> SampleGroup: ...

    async def keep(self, group: SampleGroup) -> None: ...

    async def validation(self, version: int) -> None: ...


class Publishes(Protocol):
    async def publish(self, weights: NewWeights) -> int | None:
        """Returns the version if it is to be validated here."""


class Announces(Protocol):
    async def next_version(self) -> int:
        """Returns the next version to validate that all engines serve. Raises `Closed` after the last."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The objects whose methods are the stages' work. A mode reads only those that it has."""

    explorer: Explores
    trainer: Trainer
    publisher: Publishes
    versions: Announces


class _Nobody:
    """Placeholder for a part that a process lacks, and in an outline, which runs no stage."""

    def __getattr__(self, name: str) -> None:
        return None


_NOBODY: Any = _Nobody()
NO_PARTS = Parts(_NOBODY, _NOBODY, _NOBODY, _NOBODY)


def exploring(explorer: Explores, rollouts: Sequence[AnyStage]) -> list[AnyStage]:
    """Returns stages from admission to a group to train. `rollouts`: from an admitted group to samples with rewards."""
    return [SourceStage("admit", explorer.next), *rollouts, Stage("keep", explorer.keep)]


def training(trainer: Trainer, publisher: Publishes, derived: Derived, roles: Collection[str]) -> list[AnyStage]:
    """Returns the stages from the groups of a step to its published weights."""
    with_critic, with_reference = "critic" in roles, "reference" in roles
    scorer = "actor_log_prob" if "actor_log_prob" in roles else "actor_train"
    scoring = [
        with_critic and GatedStage("value", trainer.values, trainer.before_values, role="critic"),
        derived.recompute_old_logprobs and GatedStage("log_prob", trainer.log_probs, trainer.before_log_probs, role=scorer),
        with_reference and _frozen("reference", trainer.reference, trainer, "reference"),
        *(_teaching(trainer, role, role) for role in roles if role.startswith(TEACHERS)),
        *(_teaching(trainer, name, role) for name, role in derived.teachers_elsewhere.items()),
    ]
    update: list[AnyStage] = [Stage("train", trainer.train, role="actor_train")]
    if with_critic:
        # The critic first: where the two take turns, the policy has the devices when its weights are gathered.
        critic = Stage("critic", trainer.update_critic, role="critic")
        policy = GatedStage("policy", trainer.update, trainer.before_policy_update, role="actor_train")
        update = [*parallel("train", [critic, policy]), Stage("gather", trainer.gather, role="actor_train")]
    advantage = GatedStage("advantage", trainer.advantages, trainer.before_advantages)
    source: SourceStage[Any] = SourceStage("lease", trainer.lease)
    return [source, *parallel("scoring", scoring), advantage, *update, Stage("publish", publisher.publish)]


def _frozen(name: str, work: Callable[[Step], Awaitable[Step]], trainer: Trainer, role: str | None) -> GatedStage[Step, Step]:
    return GatedStage(name, work, lambda step: trainer.before_frozen(step, name), role=role)


def _teaching(trainer: Trainer, name: str, role: str | None) -> GatedStage[Step, Step]:
    return _frozen(name, lambda step: trainer.teach(step, name), trainer, role)


def announcing(versions: Announces) -> AnyStage:
    return SourceStage("served", versions.next_version)


def validating(explorer: Explores) -> AnyStage:
    return Stage("validate", explorer.validation, role="actor_infer")
