"""The runs on rows of files: SFT, whose groups are conversations, and DPO, whose groups are pairs of answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from roll.core.configs.arguments import DataArguments
from roll.core.configs.ppo import set_key
from roll.core.configs.problems import Problem
from roll.core.data.sample import Prompt
from roll.core.distributed.backend import WorkerSpec
from roll.core.distributed.cluster import Cluster
from roll.core.distributed.devices import Inventory
from roll.core.engines.engine_fleet import EngineFleet
from roll.core.engines.rollout_client import RolloutClient
from roll.core.engines.router import Router
from roll.core.explorer.explorer import Exploration
from roll.core.flow.stage import AnyStage
from roll.core.pipeline.prepared import Prepared
from roll.core.pipeline.run import Run
from roll.core.record.ledger import Ledger
from roll.core.record.validation import ValidationSet
from roll.core.workers.infer_interface import sampling_params
from roll.plan.rows_config import DPOConfig, RowsConfig, RowSetConfig, SFTConfig
from roll.prepare.pipeline import Pipeline
from roll.prepare.preparation import Preparation
from roll.prepare.row_sets import RowSetSource, read_row_set
from roll.prompts.prompt_source import PromptSource
from roll.prompts.stored_rows import LeftOut, RowFile
from roll.topologies.rows.answered import RowAnswers, question
from roll.topologies.rows.row_losses import PairWeights, RowWeights

Config = TypeVar("Config", bound=RowsConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsPrepared(Prepared):
    config: RowsConfig
    skipped: dict[str, int]
    """Rows left out, by reason; those of an evaluated set after its name."""
    asked: Sequence[ValidationSet]
    """Questions that the policy answers at each evaluation."""


def prepare(config: RowsConfig, inventory: Inventory, one_process: bool = False) -> RowsPrepared:
    """Raises `ConfigError` with every problem found. `one_process`: all roles share this process (`--local`)."""
    shared = Preparation(config, inventory, one_process, {})
    read, skipped = _rows(config, "actor_train", config.actor_train.data_args, shared)
    sets, asked = [], []
    for name, each in config.validations.items():
        own, left_out = _rows(config, set_key(name), each.data_args, shared)
        prompts = tuple(row.prompt(0) for row in own.rows[: config.val_batch_size])
        sets.append(ValidationSet(name, prompts, 1, sampling_params(config.actor_infer.generating_args, 1, ())))
        if each.generate_during_eval and prompts and shared.tokenizer is not None:
            asked.append(_asked(name, each, prompts, shared))
        skipped |= {f"{name}: {reason}": count for reason, count in left_out.items()}
    shared.collect.raise_if_any()
    shared.count_epochs(config, len(read), "rows", "actor_train.training_args.per_device_train_batch_size")
    key = "actor_train.data_args.domain_interleave_probs"
    by_name, fix = read.by_domain(), "give each set its weight: the tags of its rows, or else the names of its files"
    source: PromptSource | None = shared.collect(
        key, config.domain_weights, lambda: PromptSource(by_name, config.domain_weights, config.seed), fix
    )
    shared.restore(source)
    shared.collect.raise_if_any()
    assert source is not None
    return RowsPrepared(**shared.common(source, {}), validation=sets, skipped=skipped, asked=asked)


def _asked(name: str, of: RowSetConfig, rows: Sequence[Prompt], shared: Preparation) -> ValidationSet:
    assert shared.tokenizer is not None
    args, text = of.generating_args, shared.tokenizer.decode
    prompts = tuple(question(row, f"{name}/{i}", text) for i, row in enumerate(rows[: of.generate_during_eval]))
    longest = max(len(each.input_ids) for each in prompts)
    room = shared.derived.sequence_length - longest
    if (most := args.max_new_tokens or room) > room:
        message = f"the longest question has {longest:,} tokens, and sequence_length is {shared.derived.sequence_length:,}"
        key = f"{set_key(name)}.generating_args.max_new_tokens"
        shared.collect.add([Problem(key, most, message, f"{room:,} at most, or a larger sequence_length")])
    return ValidationSet(name, prompts, args.num_return_sequences or 1, sampling_params(args, most, shared.models.ends))


def _rows(config: RowsConfig, role: str, data: DataArguments, shared: Preparation) -> tuple[RowFile, LeftOut]:
    by_name = role == "actor_train" and config.domain_weights
    return read_row_set(RowSetSource(role, data, config.columns, config.loss_on, "" if by_name else "rows"), shared)


class RowsRun(Run):
    prepared: RowsPrepared

    def own_specs(self) -> Mapping[str, Sequence[WorkerSpec]]:
        return {}

    @staticmethod
    def advantages(config: RowsConfig) -> RowWeights:
        return RowWeights(config) if config.pair_loss is None else PairWeights(config, config.pair_loss)

    @staticmethod
    def rollouts(config: RowsConfig, explorer: Any) -> list[AnyStage]:
        return []

    async def explorer(
        self, exploration: Exploration, clusters: Mapping[str, Cluster], engines: EngineFleet, ledger: Ledger
    ) -> RowAnswers:
        cluster, prepared = clusters["actor_infer"], self.prepared
        router = Router(len(cluster), prepared.derived.requests_per_engine)
        client = RolloutClient(cluster, router, prepared.tokenizer, self.config.seed, engines)
        return RowAnswers(replace(exploration, sets=prepared.asked), client)


class RowsPipeline(Pipeline[Config, RowsPrepared]):
    kind = RowsRun

    def prepare(self, inventory: Inventory) -> RowsPrepared:
        return prepare(self.config, inventory, one_process=self.local)


class SFTPipeline(RowsPipeline[SFTConfig]):
    """`SFTPipeline(config).run()` trains and returns the summary."""


class DPOPipeline(RowsPipeline[DPOConfig]):
    """`DPOPipeline(config).run()` trains and returns the summary."""
