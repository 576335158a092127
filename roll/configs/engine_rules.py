"""Rules for engines of other projects (`strategy_name: vllm`) that need no look at what is installed."""

from __future__ import annotations

from collections.abc import Iterator

from roll.configs.engine_arguments import PARALLEL_SIZES, REPLICAS, SLEEP_MODE, EngineArguments
from roll.configs.lora_updates import adapter_updates
from roll.configs.ppo import PPOConfig
from roll.configs.problems import Problem


def engine_problems(config: PPOConfig) -> Iterator[Problem]:
    role = config.actor_infer
    if "actor_infer" not in config.roles():
        return
    name, options = role.strategy_args.strategy_name, role.strategy_args.options
    if not isinstance(options, EngineArguments):
        return
    if config.deterministic:
        message = f"{name} batches requests as they come, and another batch rounds otherwise"
        yield Problem("deterministic", True, message, "actor_infer.strategy_args.strategy_name: hf_infer")
    block = "actor_infer.strategy_args.strategy_config"
    if options.starts_empty and adapter_updates(config)[0]:
        message = "weight updates are adapters alone (lora_update), whose base the engines read from the model folder"
        yield Problem(f"{block}.load_format", "dummy", message, "safetensors, or lora_update: merged")
    sizes = {name: options.given.get(name, 1) for name in (*PARALLEL_SIZES, REPLICAS)}
    wrong = [key for key, size in sizes.items() if type(size) is not int or size < 1]
    for key in wrong:
        yield Problem(f"{block}.{key}", sizes[key], "must be an integer >= 1")
    if wrong:
        return
    try:
        devices, shared = role.world_size, config.engines_share_devices
    except ValueError:  # a device_mapping that cannot be read: reported as such
        return
    for key in SLEEP_MODE[name]:
        if shared and options.given.get(key, True) is not True:
            message = "the engines take turns with other roles on their devices, and have to give the memory back meanwhile"
            yield Problem(f"{block}.{key}", options.given[key], message, "true, or devices that no other role has")
    replicas, per_engine = sizes.pop(REPLICAS), options.devices_per_engine
    if devices % per_engine:
        key = max(sizes, key=lambda size: sizes[size])
        message = f"{devices} devices of actor_infer do not divide into engines of {per_engine}"
        yield Problem(f"{block}.{key}", sizes[key], message, "change device_mapping, or a size that divides it")
    elif devices // per_engine % replicas:
        message = f"{devices} devices of actor_infer are {devices // per_engine} engines of {per_engine}"
        yield Problem(f"{block}.{REPLICAS}", replicas, message, "remove it: engines are counted by device_mapping")
    elif replicas > 1 and options.given.get("enable_expert_parallel"):
        message = "experts are divided among the devices of one engine, and engines share nothing"
        yield Problem(f"{block}.{REPLICAS}", replicas, message, f"remove it, and divide experts by {PARALLEL_SIZES[0]}")


def engine_node_problems(config: PPOConfig, device_count: int) -> Iterator[Problem]:
    """`device_count`: devices of the whole cluster."""
    options = config.actor_infer.strategy_args.options
    if "actor_infer" not in config.roles():
        return
    try:
        devices = config.actor_infer.devices
    except ValueError:  # reported above
        return
    per_node = max(1, device_count // config.num_nodes)
    size = max(1, options.devices_per_engine) if isinstance(options, EngineArguments) else 1
    for engine in (devices[i : i + size] for i in range(0, len(devices), size)):
        if len({device // per_node for device in engine}) > 1:
            message = f"devices {', '.join(map(str, engine))} are one engine, and on several nodes of {per_node} devices"
            fix = f"name the {size} devices of each engine on one node"
            yield Problem("actor_infer.device_mapping", config.actor_infer.device_mapping, message, fix)
            return
