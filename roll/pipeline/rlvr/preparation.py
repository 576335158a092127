"""Everything about an RLVR run that can be known, and be wrong, before the first worker starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from roll.algorithms.advantages import try_estimator
from roll.algorithms.policy_loss import traits_of, try_policy_loss
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
from roll.pipeline.checkpoint import Checkpoint, CheckpointStore
from roll.pipeline.roles import loss_spec
from roll.rollout.filters import GroupFilter, mean_filter, std_filter
from roll.strategies.infer.interface import SamplingParams
from roll.strategies.train.checkpoint_files import check_model_folder


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

    @property
    def continues(self) -> bool:
        """Whether the run goes on in its own folder; one that starts from another run's checkpoint does not."""
        return self.checkpoint is not None and self.run_dir.resolve() in self.checkpoint.path.resolve().parents


def prepare(config: RLVRConfig, inventory: Inventory, one_process: bool = False) -> Prepared:
    """Raises `ConfigError` with every problem found: keys that contradict each other, devices, model folders, prompt files,
    worker classes, output folder, checkpoint. `one_process`: all roles share this process (`--local`)."""
    problems = check_config(config, inventory.count) or (list(_one_process(config)) if one_process else [])
    if problems:
        raise ConfigError(problems)
    derived = derive(config)
    run_dir = Path(derived.run_dir)
    collect = _Collector()
    collect("output_dir", config.output_dir, partial(_check_writable, run_dir), "name a folder that can be written to")
    for key, path in _worker_classes(config).items():
        collect(key, path, partial(import_object, path), "package.module.Class, importable here (see PYTHONPATH)")
    estimator = config.adv_estimator
    collect("adv_estimator", estimator, partial(try_estimator, estimator), "package.module.function, importable here")
    collect(
        "actor_train.pg_variant",
        config.actor_train.pg_variant,
        partial(_check_policy_loss, config, derived),
        "package.module.function, importable here (see PYTHONPATH); docs_roll/pg_variants shows one",
    )
    resume = config.resume_from_checkpoint
    checkpoint: Checkpoint | None = collect(
        "resume_from_checkpoint",
        resume,
        lambda: _checkpoint(CheckpointStore(run_dir / "checkpoints"), config),
        "name a complete checkpoint, or write auto or false",
    )
    tokenizers = [
        collect(key, folder, partial(load_tokenizer, folder), "a Hugging Face folder: config.json, tokenizer, *.safetensors")
        for folder, key in _model_folders(config).items()
    ]
    train, skipped = _prompts("actor_train", config.actor_train.data_args, tokenizers[0], derived, collect)
    held_out: list[TokenizedRow] = []
    if config.validation is not None:
        held_out, _ = _prompts("validation", config.validation.data_args, tokenizers[0], derived, collect)
    validation = [replace(row.prompt(0), uid=f"validation/{i}") for i, row in enumerate(held_out[: config.val_batch_size])]
    collect.raise_if_any()
    source = collect(
        "actor_train.data_args.file_name",
        config.actor_train.data_args.file_name,
        lambda: PromptSource(by_domain(train), derived.domain_shares, config.seed),
        "every domain needs prompts and a share",
    )
    if source is not None and checkpoint is not None:
        fix = "keep seed, prompts and tokenizer, or start anew with false"
        collect("resume_from_checkpoint", resume, lambda: source.restore(checkpoint.state["cursor"]), fix)
    collect.raise_if_any()
    filters = {domain: group_filter for domain in config.rewards if (group_filter := _filter(config, domain)) is not None}
    prepared = Prepared(derived, tokenizers[0], source, validation, skipped, filters, checkpoint, run_dir, None)
    if checkpoint is None:
        return prepared
    record = dict(checkpoint.state["record"])
    return replace(prepared, resumed_record=record if prepared.continues else record | {"groups": 0, "samples": 0})


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


def decisions(config: RLVRConfig, derived: Derived) -> Iterator[str]:
    """What was chosen for the user, and why."""
    chosen = "recomputed at the start of each step" if derived.recompute_old_logprobs else "the sampler's"
    yield f"old log-probs: {chosen} ({derived.old_logprobs_reason})"
    if config.reference is not None and not config.uses_reference:
        yield "reference: not started (neither use_kl_loss nor add_token_level_kl is set)"


def load_tokenizer(folder: str) -> Any:
    """The tokenizer of a local model folder; an error names what the folder lacks."""
    check_model_folder(Path(folder))
    try:
        return AutoTokenizer.from_pretrained(folder)
    except Exception as error:  # transformers and tokenizers raise whatever a broken file makes them stumble over
        raise ValueError(f"the tokenizer cannot be loaded: {error}") from error


def _one_process(config: RLVRConfig) -> Iterator[Problem]:
    for name, role in (("actor_train", config.actor_train), ("reference", config.reference)):
        if role is not None and role.world_size > 1:
            message = f"{role.world_size} devices, but with --local one process is one training rank"
            yield Problem(f"{name}.device_mapping", role.device_mapping, message, "name one device, or leave --local out")


def _check_policy_loss(config: RLVRConfig, derived: Derived) -> None:
    spec = loss_spec(config, derived)
    needs = traits_of(try_policy_loss(spec.pg_variant, spec.args))
    if needs.needs_proximal and not derived.recompute_old_logprobs:
        raise ValueError("it needs the log-probs of the step's first weights: write old_logprobs: recompute")


def _worker_classes(config: RLVRConfig) -> dict[str, str]:
    """Path of each class that the configuration names, by key."""
    roles = {"actor_train": config.actor_train, "actor_infer": config.actor_infer, "reference": config.reference}
    named = {f"{name}.worker_cls": role.worker_cls for name, role in roles.items() if role is not None and role.worker_cls}
    return named | {f"rewards.{domain}.worker_cls": reward.worker_cls for domain, reward in config.rewards.items()}


def _model_folders(config: RLVRConfig) -> dict[str, str]:
    """The key that names each folder; that of actor_train, whose tokenizer is used, comes first."""
    folders: dict[str, str] = {}
    for name, role in (("actor_train", config.actor_train), ("actor_infer", config.actor_infer), ("reference", config.reference)):
        if role is not None and (name != "reference" or config.uses_reference):
            own = role.model_args.model_name_or_path
            folders.setdefault(own or config.pretrain or "", f"{name}.model_args.model_name_or_path" if own else "pretrain")
    return folders


def _checkpoint(store: CheckpointStore, config: RLVRConfig) -> Checkpoint | None:
    checkpoint = store.resolve(config.resume_from_checkpoint)
    if checkpoint is not None:
        trained = checkpoint.state["admission"]["trained"]
        if trained != checkpoint.step * config.rollout_batch_size:
            was = trained // max(checkpoint.step, 1)
            raise ValueError(f"{checkpoint.path} was made with rollout_batch_size {was}, not {config.rollout_batch_size}")
    return checkpoint


def _prompts(
    role: str, data: DataArguments, tokenizer: Any, derived: Derived, collect: _Collector
) -> tuple[list[TokenizedRow], dict[str, int]]:
    key = f"{role}.data_args.file_name"
    fix = "name JSON Lines files whose rows have the columns of data_args"
    rows = collect(key, data.file_name, lambda: read_rows(data.files, data, key), fix)
    if rows is None or tokenizer is None:
        return [], {}

    def tokenize() -> tuple[list[TokenizedRow], dict[str, int]]:
        usable, skipped = tokenize_prompts(rows, tokenizer, data.template, derived.prompt_length, derived.tag_to_domain)
        if not usable:
            why = ", ".join(f"{count} {reason}" for reason, count in skipped.items())
            raise ValueError(f"not one of {len(rows)} prompts can be used: {why} (prompt_length {derived.prompt_length})")
        return usable, skipped

    fix = "correct the rows, or prompt_length, or rewards.<domain>.tag_included"
    return collect(key, data.file_name, tokenize, fix) or ([], {})


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

    def __call__(self, key: str, value: Any, check: Callable[[], Any], fix: str) -> Any:
        """What the check returns; None if it complains."""
        try:
            return check()
        except (ValueError, OSError) as error:
            message = " ".join(str(error).split())
            if isinstance(error, OSError) and error.strerror:
                message = f"{error.filename}: {error.strerror}"
            self._problems.append(Problem(key, value, message.removeprefix(f"{key}: "), fix))
            return None

    def raise_if_any(self) -> None:
        if self._problems:
            raise ConfigError(self._problems)
