"""Training on rows of files: supervised fine-tuning (SFT), and preferences (DPO). Nothing is generated: there are no engines."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

from roll.core.configs.arguments import DataArguments, GeneratingArguments
from roll.core.configs.derived import optimizer_batch_size
from roll.core.configs.fields import Bounds, option
from roll.core.configs.losses import LossAggregation
from roll.core.configs.ppo import MAIN_SET, Lengths, PPOConfig

LossOn = Literal["assistant", "last", "all"]


@dataclass(frozen=True, kw_only=True)
class RowSetConfig:
    """A fixed set of rows whose loss is computed every eval_steps."""

    data_args: DataArguments = option(DataArguments(), "Its rows.")


@dataclass(frozen=True, kw_only=True)
class ColumnsConfig:
    """Columns of rows besides those of data_args."""

    system: str | None = option(None, "Column with the system message of rows that have a prompt and no messages.")
    query: str | None = option(None, "Column with a text that follows the prompt on a line of its own.")
    tools: str = option("tools", "Column with the tools that the chat template shows: a list, or its JSON.")


@dataclass(frozen=True, kw_only=True)
class SFTKeysConfig(ColumnsConfig):
    loss_on: LossOn = option(
        "assistant",
        "Tokens that are trained.\n"
        "assistant: those of the assistant's turns, with the token that ends each.\n"
        "last: those of its last turn.\n"
        "all: those of the whole row.",
    )
    response: str = option("response", "Column with the answer to the prompt, in rows without messages.")


@dataclass(frozen=True, kw_only=True)
class DPOKeysConfig(ColumnsConfig):
    loss: Literal["sigmoid", "ipo", "simpo"] = option(
        "sigmoid",
        "Loss of a pair with log-ratios to the reference h = Σ(ℓ − ℓ_r) of the chosen answer minus that of the rejected one.\n"
        "sigmoid: −log σ(β·h), DPO.\n"
        "ipo: (h − 1/(2β))², h of means over an answer's tokens.\n"
        "simpo: −log σ(β·h − margin), h of mean ℓ over an answer's tokens, without a reference.",
    )
    beta: float = option(0.1, "β: strength of the preference; SimPO's is about 2.", bounds=Bounds(gt=0))
    label_smoothing: float = option(
        0.0, "sigmoid, simpo: share of pairs taken to be labelled the wrong way round.", bounds=Bounds(ge=0, lt=0.5)
    )
    margin: float = option(0.0, "simpo: least difference that is asked for.", bounds=Bounds(ge=0))
    chosen: str = option("chosen", "Column with the better answer: a text, messages, or the conversation that ends with it.")
    rejected: str = option("rejected", "Column with the worse answer, in the same form.")


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
    def pg_variant(self) -> str:
        return "roll.topologies.row_losses.likelihood"

    @property
    def has_engines(self) -> bool:
        return False

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

    def in_steps(self, rows: int) -> Self:
        """Returns a copy with `max_steps` in place of `total_epochs`, if that is given."""
        if self.total_epochs is None:
            return self
        return replace(self, max_steps=math.floor(self.total_epochs * rows / self.groups_per_step + 1e-9), total_epochs=None)

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
    def validation_sampling(self) -> dict[str, GeneratingArguments]:
        return {}


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
    def uses_reference(self) -> bool:
        return self.dpo.loss != "simpo"
