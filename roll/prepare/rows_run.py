"""The runs on rows of files: SFT, whose groups are conversations, and DPO, whose groups are pairs of answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from roll.core.configs.arguments import DataArguments
from roll.core.configs.ppo import set_key
from roll.core.configs.problems import ConfigError, Problem
from roll.core.distributed.backend import Backend, WorkerSpec
from roll.core.distributed.devices import Inventory
from roll.core.explorer.explorer import Explorer
from roll.core.flow.stage import AnyStage
from roll.core.pipeline.prepared import Prepared
from roll.core.pipeline.run import Run
from roll.core.record.validation import ValidationSet
from roll.core.workers.infer_interface import sampling_params
from roll.plan.rows_config import DPOConfig, RowsConfig, SFTConfig
from roll.prepare.pipeline import Pipeline
from roll.prepare.preparation import Preparation
from roll.prepare.row_sets import RowSetSource, read_row_set
from roll.prompts.prompt_source import PromptSource
from roll.prompts.row_tokens import LeftOutRows
from roll.prompts.stored_rows import RowFile
from roll.topologies.rows.row_losses import PairWeights, RowWeights

Config = TypeVar("Config", bound=RowsConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsPrepared(Prepared):
    config: RowsConfig
    skipped: dict[str, int]
    """Rows left out, by reason; those of an evaluated set after its name."""


def prepare(config: RowsConfig, inventory: Inventory, one_process: bool = False) -> RowsPrepared:
    """Raises `ConfigError` with every problem found. `one_process`: all roles share this process (`--local`)."""
    shared = Preparation(config, inventory, one_process, {})
    read, skipped = _rows(config, "actor_train", config.actor_train.data_args, shared)
    sets = []
    for name, each in config.validations.items():
        own, left_out = _rows(config, set_key(name), each.data_args, shared)
        prompts = tuple(row.prompt(0) for row in own.rows[: config.val_batch_size])
        sets.append(ValidationSet(name, prompts, 1, sampling_params(config.actor_infer.generating_args, 1, ())))
        skipped |= {f"{name}: {reason}": count for reason, count in left_out.items()}
    shared.collect.raise_if_any()
    _count_epochs(config, len(read), shared)
    key = "actor_train.data_args.domain_interleave_probs"
    by_name, fix = read.by_domain(), "give each set its weight: the tags of its rows, or else the names of its files"
    source: PromptSource | None = shared.collect(
        key, config.domain_weights, lambda: PromptSource(by_name, config.domain_weights, config.seed), fix
    )
    shared.restore(source)
    shared.collect.raise_if_any()
    assert source is not None
    return RowsPrepared(**shared.common(source, {}), validation=sets, skipped=skipped)


def _rows(config: RowsConfig, role: str, data: DataArguments, shared: Preparation) -> tuple[RowFile, LeftOutRows]:
    by_name = role == "actor_train" and config.domain_weights
    return read_row_set(RowSetSource(role, data, config.columns, config.loss_on, "" if by_name else "rows"), shared)


def _count_epochs(config: RowsConfig, rows: int, shared: Preparation) -> None:
    if config.total_epochs is None:
        return
    in_steps = config.in_steps(rows)
    if in_steps.max_steps == 0:
        message = f"{config.total_epochs:g} x {rows:,} usable rows are less than a batch of {config.groups_per_step:,}"
        fix = "more epochs, or a smaller actor_train.training_args.per_device_train_batch_size"
        raise ConfigError([Problem("total_epochs", config.total_epochs, message, fix)])
    shared.settle(in_steps)


class RowsRun(Run):
    def own_specs(self) -> Mapping[str, Sequence[WorkerSpec]]:
        return {}

    @staticmethod
    def advantages(config: RowsConfig) -> RowWeights:
        return PairWeights(config, config.dpo) if isinstance(config, DPOConfig) else RowWeights(config)

    @staticmethod
    def rollouts(config: RowsConfig, explorer: Any) -> list[AnyStage]:
        return []

    async def explorer(self, *_: object) -> Explorer:
        raise NotImplementedError("nothing is generated")


class RowsPipeline(Pipeline[Config, RowsPrepared]):
    kind = RowsRun

    def prepare(self, inventory: Inventory) -> RowsPrepared:
        return prepare(self.config, inventory, one_process=self.local)

    def assemble(self, prepared: RowsPrepared, inventory: Inventory, backend: Backend) -> RowsRun:
        return RowsRun(prepared.config, prepared, inventory, backend)


class SFTPipeline(RowsPipeline[SFTConfig]):
    """`SFTPipeline(config).run()` trains and returns the summary."""


class DPOPipeline(RowsPipeline[DPOConfig]):
    """`DPOPipeline(config).run()` trains and returns the summary."""
