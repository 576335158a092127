"""Rules of agents that are programs."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import fields

from roll.core.configs.agentic import EnvConfig
from roll.core.configs.dotted_path import DOTTED_PATH
from roll.core.configs.fields import default_of
from roll.core.configs.problems import MISSING_VALUE, Problem
from roll.core.configs.program import COMMAND, POSTED, PROGRAM, ProgramConfig

OF_ENVIRONMENTS = (
    "env_config",
    "python",
    "env_manager_cls",
    "agent_system_template",
    "agent_template",
    "history_length",
    "tool_wrapper",
    "execution",
    "step_timeout_s",
    "reset_timeout_s",
    "memory_mb",
)
"""Keys that say how an environment is played turn by turn."""
OWN_VARIABLES = ("OPENAI_", "ANTHROPIC_", "ROLL_")


def program_problems(tag: str, env: EnvConfig) -> Iterator[Problem]:
    key = f"custom_envs.{tag}"
    if env.program is None:
        if env.env_type == PROGRAM:
            yield Problem(
                f"{key}.program",
                MISSING_VALUE,
                "env_type: program needs it",
                "program: {command: [python, agent.py], reward: posted}",
            )
        return
    if env.env_type != PROGRAM:
        yield Problem(f"{key}.program", "given", f"has no effect: env_type is {env.env_type}", "env_type: program, or remove it")
        return
    for item in fields(env):
        if item.name in OF_ENVIRONMENTS and (value := getattr(env, item.name)) != default_of(item):
            yield Problem(f"{key}.{item.name}", value, "is for environments, and this is a program", "remove it")
    yield from _commands(f"{key}.program", env.program)
    yield from _reward(f"{key}.program", env.program)


def _commands(key: str, program: ProgramConfig) -> Iterator[Problem]:
    if not program.command:
        yield Problem(f"{key}.command", [], "is empty", "command: [python, agent.py]")
    for name in ("command", "setup", "scoring"):
        words: list[str] = getattr(program, name)
        if words and (not words[0].strip() or any("\0" in word for word in words)):
            yield Problem(f"{key}.{name}", words, "does not begin with the name of a program", "[python, agent.py]")
        elif len(words) == 1 and len(apart := words[0].split()) > 1:
            yield Problem(f"{key}.{name}", words, "is one word, and no shell divides it", f"[{', '.join(apart)}]")
    if program.preload and not _is_script(program.command):
        fix = "command: [python, agent.py] or [python, -m, module]"
        yield Problem(f"{key}.preload", program.preload, f"is for scripts of Python, and command is {program.command}", fix)
    if program.readable and not program.isolated:
        yield Problem(f"{key}.readable", program.readable, "has no effect: isolated is false", "isolated: true, or remove it")
    for name in program.environment:
        if not name or "=" in name or "\0" in name + program.environment[name]:
            yield Problem(f"{key}.environment", name, "is no name of an environment variable", "NAME: value")
        elif name.startswith(OWN_VARIABLES):
            yield Problem(f"{key}.environment.{name}", program.environment[name], "is set for each episode", "remove it")


def _is_script(words: list[str]) -> bool:
    return words[:1] == ["python"] and ((words[1:2] == ["-m"] and len(words) > 2) or "".join(words[1:2]).endswith(".py"))


def _reward(key: str, program: ProgramConfig) -> Iterator[Problem]:
    reward = program.reward
    if reward == COMMAND and not program.scoring:
        yield Problem(f"{key}.scoring", MISSING_VALUE, "reward: command needs it", "scoring: [python, score.py]")
    if reward != COMMAND and program.scoring:
        yield Problem(f"{key}.scoring", program.scoring, f"has no effect: reward is {reward}", "reward: command, or remove it")
    if reward not in (POSTED, COMMAND) and not DOTTED_PATH.fullmatch(reward):
        fix = f"{POSTED}, {COMMAND} or my_package.my_module.my_function"
        yield Problem(f"{key}.reward", reward, "says nowhere that a reward comes from", fix)


def host_problems(host: str) -> Iterator[Problem]:
    try:
        address = ipaddress.ip_network(host, strict=False).network_address
    except ValueError:
        fix = "127.0.0.1, the address of a network interface, or a network such as 10.0.0.0/24"
        yield Problem("gateway_host", host, "is neither an IP address nor a network", fix)
        return
    if address.is_unspecified or address.is_multicast:
        message = "programs are told this address, and it is none that they could reach"
        yield Problem("gateway_host", host, message, "127.0.0.1, or the address of one network interface")
