"""Checks of a run before the first worker starts: those that all pipelines share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from roll.core.algorithms.policy_loss import prepare_of, traits_of
from roll.core.configs.backend_arguments import MegatronConfig
from roll.core.configs.derived import Derived, derive
from roll.core.configs.dotted_path import Code, import_object
from roll.core.configs.engines import ENGINES
from roll.core.configs.ppo import PPOConfig
from roll.core.configs.problems import Collector, ConfigError, Problem
from roll.core.configs.sizes import TORCH_NAMES, compute_dtype
from roll.core.configs.worker import ActorInferConfig
from roll.core.data.sample import Prompt
from roll.core.distributed.devices import Inventory
from roll.core.distributed.machine import this_machine
from roll.core.errors import boundary
from roll.core.groups.filters import GroupFilter
from roll.core.groups.groups import Groups
from roll.core.groups.memory_groups import MemoryGroups
from roll.core.groups.parts import GroupParts
from roll.core.groups.tasks import TaskSource
from roll.core.pipeline.prepared import EvaluatedModel, GroupsDatabase
from roll.core.pipeline.roles import loss_spec
from roll.core.record.checkpoint import Checkpoint
from roll.core.record.run_identity import RunIdentity
from roll.core.record.validation import ValidationSet
from roll.core.weights.folder_files import CONFIG
from roll.core.workers.infer_interface import sampling_params
from roll.plan.contract import contract
from roll.plan.rules.doubts import doubts
from roll.plan.rules.head_rules import head_notes
from roll.plan.rules.teacher_rules import engine_teachers
from roll.plan.rules.validation import check_config
from roll.prepare.beginning import beginning, standing
from roll.prepare.check import listeners, with_sharing_here, with_transport_here
from roll.prepare.observers import RunObservers
from roll.prepare.own_code import own_callbacks, try_policy_loss
from roll.prepare.own_stages import custom_stages
from roll.prompts.chat_template import set_variables
from roll.prompts.image_folder import ImageFolder
from roll.strategies.infer.installed_engine import engine_package, engine_problems
from roll.strategies.installed_backend import backend_problems
from roll.strategies.model_folder import open_classifier, open_model
from roll.strategies.routers import check_replayable
from roll.strategies.run_models import CLASSIFIER, Models, UsedModel, once, used_models
from roll.strategies.train import ulysses
from roll.strategies.train.head_output import check_plain_head
from roll.strategies.train.megatron.supported import ParallelLayout, check_folder
from roll.strategies.train.saved_adapters import check_adapters
from roll.topologies import serving
from roll.topologies.evaluation import evaluated_models
from roll.topologies.replay.replayed_trainer import recorded_groups
from roll.topologies.teaching.endpoint import try_endpoint
from roll.topologies.teaching.lessons import teaching

_FOLDER = "a Hugging Face folder: config.json, tokenizer, *.safetensors that are not quantised"


class Preparation:
    """The checks that all pipelines share. Problems are gathered in `collect`, to which a pipeline adds its own."""

    def __init__(self, config: PPOConfig, inventory: Inventory, one_process: bool, own_classes: Mapping[str, Code]) -> None:
        """`own_classes`: the code that the pipeline's own keys name, by key. Raises `ConfigError` immediately for keys that
        contradict each other."""
        problems = check_config(config, inventory.count) or (list(_one_process(config)) if one_process else [])
        if config.model_update_transport == "nccl" and inventory.kind == "cpu":
            problems += [Problem("model_update_transport", "nccl", "there are no GPUs here", "object_store")]
        if problems:
            raise ConfigError(problems)
        self._devices = inventory.count
        config, divided = with_sharing_here(with_transport_here(config), this_machine(), inventory.kind == "cuda")
        self.config = config
        self.derived = derive(config)
        self.run_dir = Path(self.derived.run_dir)
        self.collect = collect = Collector()
        self.remarks = divided
        self.warnings = [str(doubt) for doubt in (*doubts(config), *head_notes(config, inventory.kind == "cuda"))]
        collect("output_dir", config.output_dir, partial(_check_writable, self.run_dir), "name a folder that can be written to")
        roles = config.configured_roles()
        classes = {f"{name}.worker_cls": role.worker_cls for name, role in roles.items() if role.worker_cls}
        for key, path in {**classes, **own_classes}.items():
            collect(key, path, partial(import_object, path), "package.module.Class, importable here (see PYTHONPATH)")
        self._check_variant_and_engine()
        self._find_beginning()
        self._check_models(inventory.kind)
        self._stages, self._callbacks = custom_stages(config.flow, collect), own_callbacks(config.flow, collect)

    def _check_variant_and_engine(self) -> None:
        config, collect = self.config, self.collect
        for name, role in {"actor_infer": config.actor_infer, **engine_teachers(config)}.items():
            collect.add(engine_problems(f"{name}.strategy_args", role.strategy_args))
        collect.add(backend_problems(config))
        collect(
            "actor_train.pg_variant",
            config.actor_train.pg_variant,
            partial(_check_policy_loss, config, self.derived),
            "package.module.function, importable here (see PYTHONPATH): it takes (inputs, args), returns (loss [B, T], sums)",
        )

    def _find_beginning(self) -> None:
        """Finds the checkpoint and the run that this process resumes from, or the models that it evaluates."""
        config, collect = self.config, self.collect
        resumed = ("resume_from_checkpoint", config.resume_from_checkpoint)
        self.checkpoint: Checkpoint | None = collect(*resumed, partial(beginning, config), "")
        fix = "another checkpoint, or another exp_name"
        if self.checkpoint is not None and not self.checkpoint.is_of(self.run_dir):
            collect(*resumed, partial(self._show, self.checkpoint.path.parents[1]), fix)
        if config.mode == "replay" and config.replay.run is not None:
            collect("replay.run", config.replay.run, partial(self._show, Path(config.replay.run)), "another exp_name")
        self._identity: RunIdentity | None = collect(*resumed, partial(standing, config, self.checkpoint), fix)
        if self.checkpoint is not None and config.trains:
            model, base = config.actor_train.model_args, config.model_folder(config.actor_train)
            collect(*resumed, partial(check_adapters, self.checkpoint.trainer, model, base), fix)
        self._evaluated: tuple[EvaluatedModel, ...] = ()
        if config.only_evaluates:
            fix = "name complete checkpoints, runs that have some, or pretrain"
            found = collect("bench_checkpoints", config.bench_checkpoints, partial(evaluated_models, config), fix)
            self._evaluated = found or ()

    def _show(self, run_dir: Path) -> None:
        """Takes the images that groups of another run name into this run's folder."""
        if self.config.images_dir is not None:
            ImageFolder(Path(self.config.images_dir)).take_in(run_dir / "images")

    def _check_models(self, device_kind: str) -> None:
        config, collect = self.config, self.collect
        models = used_models(config)
        opened = dict[str, Any]()
        for model in once(models):
            opened[model.folder] = self._opened(model) or opened.get(model.folder)
        self.tokenizer = opened[models[0].folder]
        """None if it cannot be loaded."""
        in_turn = replace(models[0], role="", key="bench_checkpoints", sampling={})
        benched = [replace(in_turn, folder=str(each.folder)) for each in self._evaluated]
        self.models = Models([*models, *benched], opened)
        if all(opened.values()) and (fit := collect("pretrain", config.pretrain, self.models.check, _FOLDER)):
            collect.add(fit.problems)
            self.warnings += fit.warnings
            self.remarks += fit.remarks
        if self.derived.replays_routing:
            here = config.roles().get("actor_train", config.actor_infer)
            replayable = partial(check_replayable, Path(config.model_folder(here)))
            collect("actor_train.router_replay.mode", "R3", replayable, "a mixture of experts, or disable")
        for key, folder in _with_fp32_heads(config):
            collect(key, "fp32", partial(check_plain_head, folder), "remove it")
        for key, value, check in _run_by_others(config, device_kind):
            collect(key, value, check, "another model or strategy_name, or sizes that divide the model")
        if self.tokenizer is not None:
            set_variables(self.tokenizer, config.actor_train.data_args.chat_template_kwargs)

    def _opened(self, model: UsedModel) -> Any:
        """Returns the tokenizer of a folder that has all that its role needs."""
        check = open_classifier if model.judges == CLASSIFIER else open_model
        images = self.config.images_dir is not None
        trained = {"trained": not self.config.only_evaluates, "images": images} if model.reads_policy else {}
        return self.collect(model.key, model.folder, partial(check, model.folder, **trained), _FOLDER)

    def count_epochs(self, config: PPOConfig, usable: int, kind: str, batch_key: str) -> None:
        """Puts `max_steps` in place of `total_epochs`, if that is given, by the prompts or rows (`kind`) that can be used. Raises
        `ConfigError` immediately for too few, and for keys that contradict each other. `config`: as it is written."""
        if config.epochs is None:
            return
        in_steps = config.in_steps(usable)
        if config.only_explores:  # its own count holds until it learns the trainer's
            in_steps = replace(in_steps, max_steps=max(in_steps.max_steps, 1))
        if in_steps.max_steps == 0:
            message = f"{config.epochs:g} x {usable:,} usable {kind} are less than a batch of {config.groups_per_step:,}"
            raise ConfigError([Problem("total_epochs", config.epochs, message, f"more epochs, or a smaller {batch_key}")])
        if problems := check_config(in_steps, self._devices):
            raise ConfigError(problems)
        self.config, self.derived = in_steps, derive(in_steps)

    def validation_set(self, name: str, prompts: Sequence[Prompt], n: int) -> ValidationSet:
        """Makes a set of the configuration; called after all other checks. `n`: rollouts of each prompt."""
        assert self.tokenizer is not None
        args = self.config.validation_sampling[name]
        sampling = sampling_params(args, args.max_new_tokens or self.derived.response_length, self.models.ends)
        return ValidationSet(name, tuple(prompts), n, sampling)

    def restore(self, source: TaskSource | None) -> None:
        """Sets the source to the checkpoint's cursor, if there is one."""
        if source is not None and self.checkpoint is not None and self.config.groups_address is None:
            cursor = self.checkpoint.state["cursor"]
            fix = "keep seed, prompts or environments, and tokenizer, or start over with false"
            self.collect("resume_from_checkpoint", self.config.resume_from_checkpoint, lambda: _restore(source, cursor), fix)

    def _groups(self, filters: Mapping[str, GroupFilter]) -> Callable[[GroupParts], Groups]:
        """Returns the maker of groups that are in memory."""
        config = self.config
        if config.mode != "replay":
            return MemoryGroups
        chosen = filters if config.replay.filtered else {}
        first = self.checkpoint.step if self.checkpoint is not None else 0
        fix = "the folder of a run with rollout_log_per_step: all, and steps that it has recorded"
        return self.collect("replay.run", config.replay.run, partial(recorded_groups, config, first, chosen), fix) or MemoryGroups

    def _try_teachers(self) -> None:
        for name, teacher in self.config.teachers.items() if self.config.trains else ():
            if teacher.endpoint is not None and self.tokenizer is not None:
                trial = partial(try_endpoint, f"teachers.{name}", teacher.endpoint, self.config.distillation.top, self.tokenizer)
                fix = "start it, e.g. vllm serve MODEL --max-logprobs 64, of a model with the policy's tokenizer"
                self.collect(f"teachers.{name}.endpoint", teacher.endpoint, trial, fix)

    def common(self, source: TaskSource, filters: dict[str, GroupFilter]) -> dict[str, Any]:
        """Returns the fields of `Prepared`. Raises `ConfigError` with every problem found."""
        config, agreed = self.config, contract(self.config)
        if config.groups_address is not None:
            agreed |= self.models.contract(config.actor_infer.generating_args) if self.tokenizer is not None else {}
            own = self.checkpoint is not None and self.checkpoint.is_of(self.run_dir)
            check = partial(check_database, config, agreed, self._identity, self.checkpoint, own)
            self.collect("groups_database", config.groups_database, check, "pip install sqlalchemy watchfiles")
        groups = self._groups(filters)
        self._try_teachers()
        self.collect("weights_address", config.weights_address, partial(serving.check_serving, config), serving.FIX)
        for listener in listeners(config):
            self.collect(*listener)
        self.collect.raise_if_any()
        observers = RunObservers()
        return {
            "config": config,
            "derived": self.derived,
            "tokenizer": self.tokenizer,
            "ends": self.models.ends,
            "known": self.models.known,
            "contract": agreed,
            "source": source,
            "beginning": source.cursor(),
            "filters": filters,
            "checkpoint": self.checkpoint,
            "run_dir": self.run_dir,
            "stages": self._stages,
            "callbacks": self._callbacks,
            "observers": observers.reports,
            "onlookers": observers.onlookers,
            "evaluated": self._evaluated,
            "remarks": tuple(self.remarks),
            "warnings": tuple(self.warnings),
            "identity": self._identity,
            "groups": groups,
            "teaching": teaching(config),
            "database": _database(config),
        }


def _database(config: PPOConfig) -> GroupsDatabase | None:
    if config.groups_address is None:
        return None
    from roll.topologies.shared_groups import SharedGroups

    return SharedGroups(config, config.groups_address)


def check_database(
    config: PPOConfig, contract: Mapping[str, Any], identity: RunIdentity | None, checkpoint: Checkpoint | None, own: bool
) -> None:
    """Checks that the run's database can be joined, with this contract. `own`: the checkpoint is this run's. Raises `ValueError`,
    `ConfigError`."""
    try:
        from roll.topologies import shared_groups
        from roll.topologies.sql.admittance import Claim
    except ImportError as error:
        raise ValueError(f"groups in a database need {error.name}, which is not installed") from error
    assert config.groups_address is not None
    address, step = config.groups_address, checkpoint.step if checkpoint is not None else 0

    def check(run: RunIdentity | None) -> None:
        claim = Claim(run, config.trains, step, config.member_timeout)
        shared_groups.check_database(config, address, contract, claim, checkpoint if own else None)

    try:
        check(identity)
    except ConfigError:
        begun = standing(config, checkpoint)
        if identity is not None or begun is None:
            raise
        check(begun)  # another process has begun this run since the folder was looked at


def _restore(source: TaskSource, cursor: Mapping[str, Any]) -> None:
    known = source.cursor()["served"].keys()
    with boundary(ValueError, "the cursor in pipeline.json names missing entries", (ValueError,)):
        source.restore(cursor)
    if cursor["served"].keys() != known:
        raise ValueError(f"the cursor in pipeline.json has served {sorted(cursor['served'])}, not {sorted(known)}")


def _one_process(config: PPOConfig) -> Iterator[Problem]:
    for name, role in config.roles().items():
        if not isinstance(role, ActorInferConfig) and role.world_size > 1:
            message = f"{role.world_size} devices, but with --local one process is one training rank"
            yield Problem(f"{name}.device_mapping", role.device_mapping, message, "name one device, or leave --local out")
    if config.model_update_transport == "nccl":
        message = "with --local weights travel by reference"
        yield Problem("model_update_transport", "nccl", message, "object_store, or leave --local out")


def _check_policy_loss(config: PPOConfig, derived: Derived) -> None:
    spec = loss_spec(config, derived)
    loss = try_policy_loss(spec.pg_variant, spec.args)
    if traits_of(loss).needs_proximal and not derived.recompute_old_logprobs:
        raise ValueError("it needs the log-probs of the step's first weights: write old_logprobs: recompute")
    if prepare_of(loss) is not None and config.train_on_arrival:
        raise ValueError("it looks at a whole batch before it is trained: write train_on_arrival: false")


def _with_fp32_heads(config: PPOConfig) -> Iterator[tuple[str, Path]]:
    """Yields key and folder of the models whose logits a training back end computes in float32."""
    for name, role in config.roles().items():
        folder = Path(config.model_folder(role))
        if role.model_args.head_dtype and role.strategy_args.strategy_name not in ENGINES and (folder / CONFIG).is_file():
            yield f"{name}.model_args.head_dtype", folder


def _run_by_others(config: PPOConfig, device_kind: str) -> Iterator[tuple[str, object, Callable[[], None]]]:
    """Yields key, value and check of the roles whose models are not run by transformers' code; missing folders and packages are
    reported as such."""
    for name, role in config.roles().items():
        chosen, options, folder = role.strategy_args, role.strategy_args.options, config.model_folder(role)
        if not (Path(folder) / CONFIG).is_file():
            continue
        if isinstance(options, MegatronConfig) and find_spec("megatron"):
            check = partial(check_folder, folder, ParallelLayout.of(options), options.sequence_parallel, device_kind)
            yield f"{name}.strategy_args.strategy_config", chosen.strategy_config, check
        elif (ranks := role.model_args.ulysses_size) > 1:
            yield f"{name}.model_args.ulysses_size", ranks, partial(ulysses.check_folder, Path(folder), ranks)
        elif package := engine_package(chosen.strategy_name):
            dtype = TORCH_NAMES[compute_dtype(role.model_args.dtype, device_kind == "cuda")]
            check = partial(package.check_folder, folder, chosen.strategy_config, dtype, device_kind)
            yield f"{name}.strategy_args.strategy_name", chosen.strategy_name, check


def _check_writable(run_dir: Path) -> None:
    run_dir.mkdir(parents=True, exist_ok=True)
    if not os.access(run_dir, os.W_OK):
        raise ValueError(f"{run_dir} cannot be written to")
