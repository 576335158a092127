"""Check of a configuration on this machine: its contradictions, its plan, and doubts about the machine. Nothing starts, and
nothing heavy is imported."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from roll.core.configs.arguments import CACHE_BYTES, StrategyArguments
from roll.core.configs.backend_arguments import MegatronConfig
from roll.core.configs.engines import ENGINES, engine_of
from roll.core.configs.ppo import PPOConfig
from roll.core.configs.problems import Problem
from roll.core.configs.sizes import BYTES, GIB
from roll.core.distributed.machine import Machine, given_threads
from roll.core.errors import PromptFileError
from roll.plan.memory import Model, element_bytes
from roll.plan.model_shape import shape_of
from roll.plan.plan import Plan, make_plan, model_folders
from roll.plan.rules.addresses import FREE, listening_at
from roll.plan.rules.head_rules import head_notes
from roll.plan.rules.validation import check_config
from roll.plan.sharing import C, with_sharing
from roll.plan.vision_shape import vision_of
from roll.platform.ports import check_listening
from roll.prepare.fitting import read_model_folder
from roll.prepare.packaged import missing_model
from roll.prompts.hub import cached, is_hub_name, where_from
from roll.prompts.prompt_file import read_rows
from roll.reports.receivers import receivers_of
from roll.reports.spans import INSTALL, check_installed
from roll.strategies.infer.installed_engine import engine_remarks
from roll.strategies.run_models import models_here


@dataclass(frozen=True, slots=True)
class Checked:
    """A configuration without problems, with the findings on this machine."""

    plan: Plan
    machine: Machine
    misfits: tuple[Problem, ...]
    """Reasons why the model folders on this machine cannot be those of one run."""
    remarks: tuple[str, ...]
    """Possible faults of this machine for a right configuration: missing files and devices, memory."""


def planned_devices(config: PPOConfig, machine: Machine) -> int:
    """Returns the devices that the configuration names, else the devices of this machine
    (`roll.core.distributed.devices.detect`)."""
    return config.num_nodes * (config.num_gpus_per_node or len(machine.accelerators) or max(2, machine.cpus))


def contradictions(config: PPOConfig, machine: Machine) -> list[Problem]:
    """Returns the problems of a configuration that do not depend on whether torch uses the accelerators of this machine: torch
    may be a build for CPUs, which is known only after its import (`roll.core.distributed.devices.detect`)."""
    problems = check_config(config, planned_devices(config, machine))
    if problems and machine.accelerators and not check_config(config, planned_devices(config, replace(machine, accelerators=()))):
        return []
    return problems


def check(config: PPOConfig, machine: Machine, device_memory: int | None = None) -> Checked:
    """Plans a configuration without problems. `device_memory`: bytes of the planned accelerators, if not this machine's."""
    devices = planned_devices(config, machine)
    # Roles on more devices than this machine has cores cannot be on its CPU slots.
    used = {device for role in config.roles().values() for device in role.devices}
    accelerators = bool(machine.accelerators) or device_memory is not None or len(used) > config.num_nodes * max(2, machine.cpus)
    config, remarks = _in_steps(with_transport_here(config))
    config = config if accelerators else _with_cache_of_environment(config)
    models: dict[str, Model | str] = {}
    for folder in model_folders(config):
        models[folder], found = _model(folder)
        remarks += found
    fit = models_here(config)
    remarks += [*fit.warnings, *fit.remarks]
    there = device_memory or min(machine.accelerators, default=None)
    config, divided = with_sharing(config, models, accelerators, there)
    remarks += divided
    plan = make_plan(config, devices, models, accelerators, there)
    remarks += _devices_here(plan, machine, devices // config.num_nodes)
    remarks += _memory_here(plan, machine, there)
    remarks += [] if accelerators else [*_precision_here(config, machine), *_cores_here(config, machine, used)]
    remarks += map(str, head_notes(config, accelerators))
    remarks += [line for key, chosen in engines(config) for line in engine_remarks(key, chosen, bool(machine.accelerators))]
    return Checked(plan, machine, tuple(fit.problems), tuple(remarks))


def with_sharing_here(config: C, machine: Machine, accelerators: bool) -> tuple[C, list[str]]:
    """Does as `with_sharing` for the models and the accelerators of this machine."""
    if config.sharing == "turns":
        return config, []
    models = {folder: _model(folder)[0] for folder in model_folders(config)}
    return with_sharing(config, models, accelerators, min(machine.accelerators, default=None))


def with_transport_here(config: C) -> C:
    """Decides `model_update_transport: auto`. A run that joins no Ray cluster has all its workers on this machine."""
    if config.model_update_transport != "auto":
        return config
    here = config.has_both_sides and config.num_nodes == 1 and os.environ.get("RAY_ADDRESS", "local") == "local"
    return replace(config, model_update_transport="ipc" if here else "object_store")


def _with_cache_of_environment(config: PPOConfig) -> PPOConfig:
    """Returns the configuration as the engine reads it on a CPU: its variable for the KV cache, in GiB, overrides the
    argument."""
    chosen = config.actor_infer.strategy_args
    space = os.environ.get(engine_of(chosen.strategy_name).cpu_cache_variable, "")
    if not space.isdecimal():
        return config
    given = chosen.strategy_config | {CACHE_BYTES: int(space) * GIB}
    return replace(config, actor_infer=replace(config.actor_infer, strategy_args=replace(chosen, strategy_config=given)))


def _in_steps(config: PPOConfig) -> tuple[PPOConfig, list[str]]:
    """Returns the configuration with the steps of its epochs, if its prompts are here."""
    if config.epochs is None or config.from_rows or config.only_evaluates:
        return config, []
    data = config.actor_train.data_args
    try:
        prompts = sum(1 for _ in read_rows(data, only_tag=""))
    except PromptFileError as error:
        return config, [f"{error}: the number of steps is not known"]
    counted = f"{prompts:,} rows, those that prompt_length leaves out included"
    return config.in_steps(prompts), [f"total_epochs {config.epochs:g}: the steps are those of {counted}"]


def _model(folder: str) -> tuple[Model | str, list[str]]:
    if is_hub_name(folder):
        in_cache = cached(folder)
        if in_cache is None:
            return f"unknown: {where_from(folder)}", [f"{where_from(folder)}: no memory figures"]
        folder = str(in_cache)
    files = read_model_folder(folder)
    if unmade := missing_model(folder):
        return f"unknown: {files.note}", [f"{files.note}: {unmade[0].fix}"]
    if files.config is None:
        return f"unknown: {files.note}", [f"{files.note}: no memory figures"]
    try:
        shape, sees = shape_of(files.config), vision_of(files.config)
    except ValueError as error:
        return f"unknown: {error}", [f"{folder}: {error}: no memory figures"]
    counted = shape.parameters + (sees.parameters if sees else 0)
    return Model(shape, files.stored_parameters or counted, sees=sees), [files.note] if files.note else []


def _devices_here(plan: Plan, machine: Machine, per_node: int) -> Iterator[str]:
    if plan.accelerators and len(machine.accelerators) < per_node:
        found = f"{len(machine.accelerators)} accelerators" if machine.accelerators else "no accelerator"
        yield f"the plan is for {per_node} accelerators a node; this machine has {found}, {machine.cpus} CPU cores"
    if not plan.accelerators and plan.nodes == 1 and plan.device_count > machine.cpus:
        yield f"{plan.device_count} CPU slots share {machine.cpus} cores"


def _precision_here(config: PPOConfig, machine: Machine) -> Iterator[str]:
    slow = [f"{name}.model_args.dtype" for name, role in config.roles().items() if element_bytes(role, False) == BYTES["bf16"]]
    if slow and machine.bf16 == "":
        yield f"{' and '.join(slow)} = bf16: these processors have no instructions for it (AMX, AVX512-BF16): fp32 may be faster"


def _cores_here(config: PPOConfig, machine: Machine, used: set[int]) -> Iterator[str]:
    """Tells of roles on few of many slots that use no core beyond their own: of another's engine, Megatron, reproducible."""
    slots = max(used, default=0) + 1
    if config.num_gpus_per_node is not None or given_threads() is not None or slots >= machine.cpus:
        return
    for name, role in config.roles().items():
        named, options = role.strategy_args.strategy_name, role.strategy_args.options
        if role.devices and (config.deterministic or engine_of(named).package or isinstance(options, MegatronConfig)):
            what = f"{name} ({named}) has {len(set(role.devices))} of {machine.cpus} cores, and uses no others"
            yield f"{what}: num_gpus_per_node={slots} divides all cores among the slots that are named"


def is_watched(config: PPOConfig) -> bool:
    """True if others are told of the run. An evaluation or a replay has the configuration of the run that it looks at, which may
    be running, and whose address and notices these are."""
    return config.mode in ("both", "train", "explore")


def listeners(config: PPOConfig) -> Iterator[tuple[str, object, Callable[[], None], str]]:
    """Those outside that are told of the run: key, value, check and fix of each, as a `Collector` takes them."""
    if not is_watched(config):
        return
    if (address := config.metrics_address) is not None:
        yield "metrics_address", address, lambda: check_listening(*listening_at(address)), FREE
    if config.otlp_endpoint is not None:
        yield "otlp_endpoint", config.otlp_endpoint, check_installed, INSTALL
    for receiver in () if config.only_explores else receivers_of(config.on_event):
        yield f"on_event.{receiver.event}", receiver.to, receiver.check, "export it, or name another"


def engines(config: PPOConfig) -> Iterator[tuple[str, StrategyArguments]]:
    """Yields key and value of the `strategy_args` of each engine."""
    for name, role in config.roles().items():
        if role.strategy_args.strategy_name in ENGINES:
            yield f"{name}.strategy_args", role.strategy_args
    for domain, reward in config.reward_configs.items():
        for name, model in reward.models.items():
            yield f"rewards.{domain}.{name}.strategy_args", model.strategy_args


def _memory_here(plan: Plan, machine: Machine, there: int | None) -> Iterator[str]:
    if plan.accelerators:
        for group in plan.devices:
            if there is not None and group.bytes > there:
                names = " and ".join(group.roles)
                yield f"{names}: about {group.bytes / GIB:.1f} GiB a device, but a device has {there / GIB:.1f} GiB"
        return
    yield from (f"{role.role} would not start: {role.fault}" for role in plan.memory if role.fault)
    needed = sum(group.bytes * len(group.devices) for group in plan.devices) + sum(part.bytes for part in plan.host)
    if needed > machine.memory:
        parts = [(part.bytes, role.role, part.name) for role in plan.memory for part in role.resident]
        size, role, name = max(parts, default=(0, "", ""))
        most = f"; the largest part: {name} of {role}, {size / GIB:.1f} GiB"
        fix = " (max_running_requests or sequence_length)" if name == "KV cache" else ""
        yield f"all roles together: about {needed / GIB:.1f} GiB, but this machine has {machine.memory / GIB:.1f} GiB{most}{fix}"
