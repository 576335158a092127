"""Rules of roles: their devices, back ends, adapters and engines, as far as installed packages do not matter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from roll.core.configs.arguments import (
    FROZEN_STRATEGIES,
    PARALLEL_SIZES,
    REPLICAS,
    TRAINING_STRATEGIES,
    EngineArguments,
    FSDP2Config,
)
from roll.core.configs.backend_arguments import DeepSpeedConfig, MegatronConfig
from roll.core.configs.derived import adapter_obstacle, adapter_updates, needed_arguments
from roll.core.configs.device_mapping import MAX_DEVICES
from roll.core.configs.dotted_path import DOTTED_PATH
from roll.core.configs.engines import ENGINES, engines_that
from roll.core.configs.ppo import PPOConfig
from roll.core.configs.problems import MISSING_VALUE, Problem
from roll.core.configs.worker import (
    JudgingModelConfig,
    RoleConfig,
    ScoringConfig,
    TeacherConfig,
    TrainedConfig,
    WorkerConfig,
)
from roll.plan.rules.backend_rules import deepspeed_problems, megatron_problems

_STRATEGIES_OF_ROLE: dict[str, tuple[str, ...]] = {
    "actor_train": TRAINING_STRATEGIES,
    "actor_infer": tuple(ENGINES),
    "critic": TRAINING_STRATEGIES,
}
"""The others score for the trainer: `FROZEN_STRATEGIES`, and of teachers the engines that can."""
LORA_STRATEGIES = ("fsdp2_train", "deepspeed_train")


def unreadable_devices(config: PPOConfig) -> Iterator[Problem]:
    """The other rules expect that every `device_mapping` can be read."""
    for name, role in _placed(config, config.configured_roles()).items():
        try:
            role.devices  # noqa: B018
        except ValueError as error:
            yield Problem(f"{name}.device_mapping", role.device_mapping, str(error))


def _placed(config: PPOConfig, roles: Mapping[str, RoleConfig]) -> dict[str, WorkerConfig | JudgingModelConfig]:
    """These roles and the models that judge, by key."""
    rewards = config.reward_configs
    judging = {f"rewards.{domain}.{name}": model for domain, r in rewards.items() for name, model in r.models.items()}
    return {**roles, **judging}


def free_device(config: PPOConfig) -> int:
    """The first one that neither trains the policy nor samples from it."""
    taken = {*config.actor_train.devices, *config.actor_infer.devices}
    return next(device for device in range(len(taken) + 1) if device not in taken)


def device_problems(config: PPOConfig, device_count: int) -> Iterator[Problem]:
    """`device_count`: devices of the whole cluster."""
    if device_count > MAX_DEVICES:
        yield Problem("num_nodes", config.num_nodes, f"{device_count:,} devices in all, at most {MAX_DEVICES:,}")
    for name, role in _placed(config, config.roles()).items():
        key = f"{name}.device_mapping"
        if role.device_mapping is None:
            alone = "; rollouts without training are not there, but roll env play shows episodes" if name == "actor_train" else ""
            device = free_device(config) if name == "actor_log_prob" else 0
            yield Problem(key, MISSING_VALUE, f"{name} needs devices", f'e.g. "{device}"{alone}')
            continue
        if missing := [device for device in role.devices if device >= device_count]:
            shown = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
            message = f"no device {shown}: there are {device_count}, numbered from 0"
            nodes = max(role.devices) * config.num_nodes // device_count + 1
            larger = f"num_nodes: {nodes}"
            if config.num_nodes == 1 and config.num_gpus_per_node is None:
                larger = f"num_gpus_per_node: {max(role.devices) + 1} if this machine is to have so many (on CPUs: slots)"
            yield Problem(key, role.device_mapping, message, f"name devices below {device_count}, or {larger}")
    yield from _engine_nodes(config, device_count)


def role_problems(config: PPOConfig) -> Iterator[Problem]:
    for name, role in config.configured_roles().items():
        wanted, strategy = _STRATEGIES_OF_ROLE.get(name, FROZEN_STRATEGIES), role.strategy_args.strategy_name
        wanted += engines_that("teacher") if isinstance(role, TeacherConfig) else ()
        if strategy not in wanted:
            yield Problem(f"{name}.strategy_args.strategy_name", strategy, f"does not fit {name}", " or ".join(wanted))
        elif isinstance(role.strategy_args.options, DeepSpeedConfig):
            yield from deepspeed_problems(
                name, role.strategy_args.options, role.model_args.dtype, isinstance(role, TrainedConfig)
            )
        elif isinstance(role.strategy_args.options, MegatronConfig):
            yield from megatron_problems(name, role.strategy_args.options, role.devices, role.model_args.attn_implementation)
        elif isinstance(role.strategy_args.options, FSDP2Config):
            yield from _fsdp2(name, role.strategy_args.options.fsdp_size, role.world_size)
        yield from _ulysses(name, role)
        yield from _lora(name, role)
        if isinstance(role, TrainedConfig) and role.model_args.dtype == "fp16":
            yield Problem(f"{name}.model_args.dtype", "fp16", "fp16 gradients underflow", "bf16 or fp32")
        if not config.model_folder(role):
            yield Problem(
                f"{name}.model_args.model_name_or_path",
                MISSING_VALUE,
                "names no model",
                "pretrain: a folder, or owner/name of the hub",
            )
        if role.worker_cls is not None and not DOTTED_PATH.fullmatch(role.worker_cls):
            yield Problem(f"{name}.worker_cls", role.worker_cls, "is not a dotted path", "my_package.my_module.MyWorker")
    for name, role in config.roles().items():
        yield from _engine(config, name, role)
    yield from _adapter_updates(config)


def _fsdp2(name: str, size: int, devices: int) -> Iterator[Problem]:
    if size == 0 or (0 < size < devices and devices % size):
        message = f"the {devices} devices of {name} do not divide into groups of so many"
        yield Problem(f"{name}.strategy_args.strategy_config.fsdp_size", size, message, f"a divisor of {devices}, or -1")


def _ulysses(name: str, role: WorkerConfig) -> Iterator[Problem]:
    model, key, devices = role.model_args, f"{name}.model_args.ulysses_size", role.world_size
    size, strategy = model.ulysses_size, role.strategy_args.strategy_name
    if size == 1:
        return
    if not isinstance(role.strategy_args.options, FSDP2Config | DeepSpeedConfig):
        megatron = isinstance(role.strategy_args.options, MegatronConfig)
        fix = "1, and strategy_config.context_parallel_size, which divides sequences there" if megatron else "remove it"
        yield Problem(key, size, f"{strategy} divides no tokens by it", fix)
    elif devices % size:
        message = f"the {devices} devices of {name} do not divide into groups of so many"
        yield Problem(key, size, message, f"a divisor of {devices}")
    elif model.attn_implementation != "sdpa":
        message = f"tokens are exchanged for heads around sdpa, not around {model.attn_implementation}"
        yield Problem(key, size, message, f"{name}.model_args.attn_implementation: sdpa")


def _lora(name: str, role: WorkerConfig) -> Iterator[Problem]:
    model, key = role.model_args, f"{name}.model_args"
    if model.lora_target is None:
        for option, default in (("lora_rank", None), ("lora_alpha", None), ("lora_update", "auto")):
            if (value := getattr(model, option)) != default:
                yield Problem(f"{key}.{option}", value, "has no effect without lora_target", "lora_target: all-linear")
        return
    if name == "actor_log_prob":
        message = "it takes what actor_train publishes, adapters too"
        yield Problem(f"{key}.lora_target", model.lora_target, message, "remove it")
    elif isinstance(role, ScoringConfig):
        yield Problem(f"{key}.lora_target", model.lora_target, f"{name} is the model without adapters", "remove it")
    elif name == "critic":
        yield Problem(f"{key}.lora_target", model.lora_target, "all weights of the critic are trained", "remove it")
    elif name == "actor_train" and role.strategy_args.strategy_name not in LORA_STRATEGIES:
        fix = f"remove it, or {name}.strategy_args.strategy_name: {' or '.join(LORA_STRATEGIES)}"
        yield Problem(f"{key}.lora_target", model.lora_target, f"{role.strategy_args.strategy_name} trains no adapters", fix)
    if model.lora_dropout:
        message = "dropout makes the ratio of two log-probs depend on chance instead of on the weights alone"
        yield Problem(f"{key}.lora_dropout", model.lora_dropout, message, "0")


def _adapter_updates(config: PPOConfig) -> Iterator[Problem]:
    trained = config.actor_train.model_args
    if trained.lora_target is not None and trained.lora_update == "adapter" and (reason := adapter_obstacle(config)):
        yield Problem("actor_train.model_args.lora_update", "adapter", reason, "auto or merged")


def _engine(config: PPOConfig, name: str, role: WorkerConfig) -> Iterator[Problem]:
    options = role.strategy_args.options
    if not isinstance(options, EngineArguments):
        return
    block, samples = f"{name}.strategy_args.strategy_config", name == "actor_infer"
    if options.starts_empty and not samples:
        yield Problem(f"{block}.load_format", "dummy", "its weights would be random for ever", "remove it")
    elif options.starts_empty and adapter_updates(config)[0]:
        message = "weight updates are adapters alone (lora_update), whose base the engines read from the model folder"
        yield Problem(f"{block}.load_format", "dummy", message, "auto, or actor_train.model_args.lora_update: merged")
    sizes = {name: options.given.get(name, 1) for name in (*PARALLEL_SIZES, REPLICAS)}
    wrong = [key for key, size in sizes.items() if type(size) is not int or size < 1]
    for key in wrong:
        yield Problem(f"{block}.{key}", sizes[key], "must be an integer >= 1")
    if wrong:
        return
    devices = role.world_size
    for key, (message, otherwise) in needed_arguments(config, accelerators=True).items() if samples else ():
        if options.given.get(key, True) is not True:
            yield Problem(f"{block}.{key}", options.given[key], message, f"true, or {otherwise}")
    replicas, per_engine = sizes.pop(REPLICAS), options.devices_per_engine
    if devices % per_engine:
        key = max(sizes, key=lambda size: sizes[size])
        message = f"{devices} devices of {name} do not divide into engines of {per_engine}"
        yield Problem(f"{block}.{key}", sizes[key], message, _divisor(sizes[key], devices, per_engine))
    elif devices // per_engine % replicas:
        message = f"{devices} devices of {name} are {devices // per_engine} engines of {per_engine}"
        yield Problem(f"{block}.{REPLICAS}", replicas, message, "remove it: engines are counted by device_mapping")
    elif replicas > 1 and options.given.get("enable_expert_parallel"):
        message = "experts are divided among the devices of one engine, and engines share nothing"
        yield Problem(f"{block}.{REPLICAS}", replicas, message, f"remove it, and divide experts by {PARALLEL_SIZES[0]}")


def _divisor(size: int, devices: int, per_engine: int) -> str:
    """The sizes nearest to one that does not divide the devices, the other one kept."""
    others = per_engine // size
    fitting = [each for each in range(1, devices + 1) if devices % (each * others) == 0]
    smaller = f"{max(each for each in fitting if each < size)}, or " if fitting and fitting[0] < size else ""
    return f"{smaller}a device_mapping of {-(-devices // per_engine) * per_engine} devices"


def _engine_nodes(config: PPOConfig, device_count: int) -> Iterator[Problem]:
    per_node = max(1, device_count // config.num_nodes)
    for name, role in config.roles().items():
        devices, size = role.devices, max(1, role.strategy_args.engine.devices_per_engine)
        engines = (devices[i : i + size] for i in range(0, len(devices), size))
        if torn := next((engine for engine in engines if len({device // per_node for device in engine}) > 1), None):
            message = f"devices {', '.join(map(str, torn))} are one engine, and on several nodes of {per_node} devices"
            fix = f"name the {size} devices of each engine on one node"
            yield Problem(f"{name}.device_mapping", role.device_mapping, message, fix)
