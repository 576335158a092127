"""The configurations of runs on rows of files: supervised fine-tuning (SFT), and preferences (DPO). Nothing that is trained is
generated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from roll.core.configs.arguments import DataArguments, GeneratingArguments
from roll.core.configs.derived import optimizer_batch_size
from roll.core.configs.fields import Bounds, option
from roll.core.configs.losses import LossAggregation
from roll.core.configs.ppo import MAIN_SET, PPOConfig, set_key
from roll.core.configs.rows import ColumnsConfig, DPOKeysConfig, LossOn, PairLossConfig, SFTKeysConfig
from roll.core.configs.sizes import Lengths
from roll.core.configs.worker import RoleConfig


@dataclass(frozen=True, kw_only=True)
class RowSetConfig:
    """A fixed set of rows whose loss is computed every eval_steps."""

    data_args: DataArguments = option(DataArguments(), "Its rows.")
    generate_during_eval: int = option(
        0,
        "Rows, the first ones, whose last answer the policy gives itself at each evaluation, on the engines of actor_infer: "
        "samples.jsonl has it beside the row's own.",
        bounds=Bounds(ge=0),
    )
    generating_args: GeneratingArguments = option(
        GeneratingArguments(temperature=0.0), "Their sampling; max_new_tokens null: what sequence_length leaves them."
    )


@dataclass(frozen=True, kw_only=True)
class RowsConfig(PPOConfig, ABC):
    from_rows = True
    group_size_key = "rows"
    refused_estimators: ClassVar[Mapping[str, str]] = {}

    validation: RowSetConfig | None = option(None, "Rows whose loss is computed every eval_steps; null means none.")
    validation_sets: dict[str, RowSetConfig] = option({}, "More such sets by name.")
    total_epochs: float | None = option(
        None, "Passes over the rows, instead of max_steps; rows that do not fill a last batch wait.", bounds=Bounds(gt=0)
    )
    loss_agg_mode: LossAggregation = option("token-mean", "How token losses become one number; dpo: token-mean.")

    @property
    @abstractmethod
    def columns(self) -> ColumnsConfig: ...

    @property
    def loss_on(self) -> LossOn:
        return "last"

    @property
    def compares_in_groups(self) -> bool:
        return False

    @property
    def has_engines(self) -> bool:
        """Returns True if the policy answers questions of evaluated rows."""
        return bool(self.validation_sampling)

    def configured_roles(self) -> dict[str, RoleConfig]:
        unread = {"actor_log_prob", "critic"} | (set() if self.has_engines else {"actor_infer"})
        return {name: role for name, role in super().configured_roles().items() if name not in unread}

    @property
    def group_size(self) -> int:
        return 1

    @property
    def groups_per_step(self) -> int:
        return optimizer_batch_size(self.actor_train)

    @property
    def rollouts_per_step(self) -> int:
        """A row counts once, a pair too: a step is one optimiser step."""
        return self.groups_per_step

    @property
    def epochs(self) -> float | None:
        return self.total_epochs

    def lengths(self) -> Lengths:
        """Returns the lengths. Raises `ValueError` if sequence_length is not given."""
        if self.sequence_length is None:
            raise ValueError("sequence_length is needed")
        return Lengths(self.sequence_length, self.sequence_length, self.sequence_length)

    @property
    def domain_weights(self) -> dict[str, float]:
        return self.actor_train.data_args.domain_interleave_probs or {}

    @property
    def tag_to_domain(self) -> dict[str, str]:
        return {name: name for name in self.domain_weights}

    @property
    def validations(self) -> dict[str, RowSetConfig]:
        return ({MAIN_SET: self.validation} if self.validation else {}) | self.validation_sets

    @property
    def data_sources(self) -> dict[str, DataArguments]:
        return super().data_sources | {set_key(name): each.data_args for name, each in self.validations.items()}

    @property
    def validation_sampling(self) -> dict[str, GeneratingArguments]:
        """Returns that of the sets whose questions the policy answers."""
        return {name: each.generating_args for name, each in self.validations.items() if each.generate_during_eval}


@dataclass(frozen=True, kw_only=True)
class SFTConfig(RowsConfig):
    kind = "sft"
    sft: SFTKeysConfig = option(SFTKeysConfig(), "Rows, and their trained tokens; the block makes a file one of SFT.")

    @property
    def columns(self) -> ColumnsConfig:
        return self.sft

    @property
    def loss_on(self) -> LossOn:
        return self.sft.loss_on

    @property
    def uses_reference(self) -> bool:
        return False


@dataclass(frozen=True, kw_only=True)
class DPOConfig(RowsConfig):
    kind = "dpo"
    dpo: DPOKeysConfig = option(DPOKeysConfig(), "Pairs, and their loss; the block makes a file one of DPO.")

    @property
    def columns(self) -> ColumnsConfig:
        return self.dpo

    @property
    def pair_loss(self) -> PairLossConfig:
        return self.dpo
