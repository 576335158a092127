"""Everything about an RLVR run that can be known, and be wrong, before the first worker starts."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from roll.configs.arguments import DataArguments, GeneratingArguments
from roll.configs.derived import Derived, derive
from roll.configs.problems import ConfigError, Problem
from roll.configs.rlvr import RLVRConfig
from roll.configs.validation import check_config
from roll.data.prompt_file import read_rows
from roll.data.prompt_source import PromptSource, TokenizedRow, by_domain, tokenize_prompts
from roll.data.sample import Prompt
from roll.distributed.backend import import_object
from roll.distributed.devices import Inventory
from roll.pipeline.checkpoint import Checkpoint, CheckpointError, CheckpointStore
from roll.rollout.filters import GroupFilter, mean_filter, std_filter
from roll.strategies.infer.interface import SamplingParams


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run that is ready to start."""

    derived: Derived
    tokenizer: Any
    prompts: PromptSource
    validation: list[Prompt]
    skipped: dict[str, int]
    """Prompts left out, by reason."""
    filters: dict[str, GroupFilter]
    checkpoint: Checkpoint | None
    run_dir: Path
    resumed_record: dict[str, Any] | None
    """The run record's state in the checkpoint; journal positions are 0 if the checkpoint is another run's."""

    @property
    def checkpoints(self) -> Path:
        return self.run_dir / "checkpoints"


def prepare(config: RLVRConfig, inventory: Inventory) -> Prepared:
    """Raises `ConfigError` with every problem found: keys that contradict each other, devices, model folder, prompt files,
    worker classes, output folder, checkpoint."""
    problems = check_config(config, inventory.count)
    if problems:
        raise ConfigError(problems)
    derived = derive(config)
    run_dir = Path(derived.run_dir)
    collect = _Collector()
    collect("output_dir", config.output_dir, lambda: _check_writable(run_dir))
    for domain, reward in config.rewards.items():
        collect(f"rewards.{domain}.worker_cls", reward.worker_cls, lambda path=reward.worker_cls: import_object(path))
    tokenizer = collect("pretrain", config.pretrain, lambda: load_tokenizer(config.pretrain or ""))
    checkpoint = collect(
        "resume_from_checkpoint",
        config.resume_from_checkpoint,
        lambda: CheckpointStore(run_dir / "checkpoints").resolve(config.resume_from_checkpoint),
    )
    train_files = config.actor_train.data_args.files
    rows: list[TokenizedRow] = []
    skipped: dict[str, int] = {}
    validation: list[Prompt] = []
    if tokenizer is not None:
        train = config.actor_train.data_args
        loaded = collect("actor_train.data_args", train.files, lambda: _load(train, tokenizer, derived, "actor_train"))
        rows, skipped = loaded or ([], {})
        if config.validation is not None:
            data = config.validation.data_args
            loaded = collect("validation.data_args", data.files, lambda: _load(data, tokenizer, derived, "validation"))
            chosen = (loaded or ([], {}))[0][: config.val_batch_size]
            validation = [replace(row.prompt(0), uid=f"validation/{i}") for i, row in enumerate(chosen)]
    collect.raise_if_any()
    source = collect(
        "actor_train.data_args", train_files, lambda: PromptSource(by_domain(rows), derived.domain_shares, config.seed)
    )
    if source is not None and checkpoint is not None:
        collect("resume_from_checkpoint", str(checkpoint.path), lambda: source.restore(checkpoint.state["cursor"]))
    collect.raise_if_any()
    filters = {domain: group_filter for domain in config.rewards if (group_filter := _filter(config, domain)) is not None}
    record = None
    if checkpoint is not None:
        record = dict(checkpoint.state["record"])
        if run_dir.resolve() not in checkpoint.path.resolve().parents:
            record |= {"groups": 0, "samples": 0}
    return Prepared(derived, tokenizer, source, validation, skipped, filters, checkpoint, run_dir, record)


def sampling_params(args: GeneratingArguments, max_new_tokens: int, tokenizer: Any) -> SamplingParams:
    return SamplingParams(
        temperature=args.temperature,
        top_p=args.top_p,
        top_k=args.top_k,
        max_new_tokens=max_new_tokens,
        stop_token_ids=() if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,),
        stop_strings=tuple(args.stop_strings),
        include_stop_str_in_output=args.include_stop_str_in_output,
    )


def load_tokenizer(folder: str) -> Any:
    """The tokenizer of a local model folder; an error names what the folder lacks."""
    path = Path(folder)
    if not path.is_dir():
        raise ValueError("there is no such folder")
    missing = [name for name in ("config.json", "tokenizer_config.json") if not (path / name).is_file()]
    if missing:
        raise ValueError(f"the model folder has no {' and no '.join(missing)}")
    if not list(path.glob("*.safetensors")):
        raise ValueError("the model folder has no *.safetensors weights")
    return AutoTokenizer.from_pretrained(folder)


def _load(data: DataArguments, tokenizer: Any, derived: Derived, role: str) -> tuple[list[TokenizedRow], dict[str, int]]:
    rows = read_rows(data.files, data, f"{role}.data_args.file_name")
    return tokenize_prompts(rows, tokenizer, data.template, derived.prompt_length, derived.tag_to_domain)


def _filter(config: RLVRConfig, domain: str) -> GroupFilter | None:
    wish = config.rewards[domain].query_filter_config
    args = wish.filter_args
    if wish.type == "mean_filter":
        return mean_filter(args.threshold_down, args.threshold_up)
    if wish.type == "std_filter":
        return std_filter(args.std_threshold or 0.0)
    return None


def _check_writable(run_dir: Path) -> None:
    run_dir.mkdir(parents=True, exist_ok=True)
    if not os.access(run_dir, os.W_OK):
        raise ValueError(f"{run_dir} cannot be written to")


class _Collector:
    """Runs checks, and gathers what they complain about under the key that is to blame."""

    def __init__(self) -> None:
        self._problems: list[Problem] = []

    def __call__(self, key: str, value: Any, check: Callable[[], Any]) -> Any:
        try:
            return check()
        except (ValueError, OSError, CheckpointError) as error:
            self._problems.append(Problem(key, value, str(error)))
            return None

    def raise_if_any(self) -> None:
        if self._problems:
            raise ConfigError(self._problems)


