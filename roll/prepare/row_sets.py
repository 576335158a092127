"""Reads sets of rows that are trained, or evaluated, as they stand; and puts those of a warm start before a run's tasks."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from roll.core.configs.arguments import DataArguments
from roll.core.configs.rows import ColumnsConfig, LossOn
from roll.core.errors import PromptFileError
from roll.core.groups.tasks import TaskSource
from roll.plan.rules.warm_start_rules import ROWS
from roll.platform.file_systems import of_network
from roll.prepare.preparation import Preparation
from roll.prompts.prompt_file import announced
from roll.prompts.prompt_source import PromptSource
from roll.prompts.row_tokens import RowTokenizer
from roll.prompts.stored_rows import LeftOut, RowFile
from roll.prompts.training_rows import read_training_rows
from roll.topologies.rows.warm_start import RowsFirst


@dataclass(frozen=True, slots=True)
class RowSetSource:
    """Source of a set of rows, and the parts of it that are trained."""

    key: str
    """The configuration's name for it, before `.data_args`."""
    data: DataArguments
    columns: ColumnsConfig
    loss_on: LossOn
    domain: str = "rows"
    """Domain of all rows; empty: each has the name of its set."""


def read_row_set(of: RowSetSource, shared: Preparation) -> tuple[RowFile, LeftOut]:
    """Returns the usable rows, and the numbers of the others, by reason."""
    data, longest, tokenizer = of.data, shared.derived.sequence_length, shared.tokenizer
    key = f"{of.key}.data_args.{'file_name' if data.path is None else 'path'}"

    def tokenize() -> tuple[RowFile, LeftOut]:
        read = read_training_rows(data, of.columns, f"{of.key}.data_args")
        rows = announced(read, f"rows of {data.path or ', '.join(data.files)}")
        if tokenizer is None:
            return RowFile(), LeftOut()
        made = RowTokenizer(tokenizer, data.template, of.loss_on, shared.models.ends, shared.models.known)
        usable, left_out = made.rows(rows, longest, of.domain, folder_of_rows(shared.run_dir))
        count, why = sum(left_out.values()), left_out.told(longest, "sequence_length")
        if not len(usable):
            raise PromptFileError(f"none of {count:,} rows can be used: {why}", "rows that end with an answer, and fit")
        if count:
            line = f"{key}: {count:,} of {count + len(usable):,} rows are left out: {why}"
            (shared.warnings if count > len(usable) else shared.remarks).append(line)
        if left_out.endless and of.loss_on != "all":
            shared.warnings.append(f"{key}: no token ends the answer of {left_out.endless:,} rows: it does not learn to end")
        return usable, left_out

    value = data.file_name if data.path is None else data.path
    return shared.collect(key, value, tokenize, "mend the file, or name another one") or (RowFile(), LeftOut())


def folder_of_rows(run_dir: Path) -> Path | None:
    """Returns the run's folder; None: temporary files, which may lie in memory. But not a folder from which each prompt would be
    fetched from a server, which may be away."""
    return run_dir if os.access(run_dir, os.W_OK) and not of_network(run_dir) else None


def with_rows_first(tasks: TaskSource, shared: Preparation) -> TaskSource:
    """Returns the tasks after the rows of the warm start, if there is one. Raises `ConfigError`."""
    config, warm = shared.config, shared.config.warm_start
    if warm is None or not config.warm_steps:
        return tasks
    rows, _ = read_row_set(RowSetSource("warm_start", warm.data_args, warm, warm.loss_on, ROWS), shared)
    shared.collect.raise_if_any()
    count = config.warm_steps * config.groups_per_step
    shared.remarks.append(f"warm_start: {count / len(rows):.3g} epochs of {len(rows):,} rows, {config.groups_per_step:,} a step")
    return RowsFirst(PromptSource(rows.by_domain(), {}, config.seed), tasks, count)
