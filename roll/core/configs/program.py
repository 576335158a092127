"""An agent that is a separate program: a command that calls a model over HTTP, and its judgement."""

from __future__ import annotations

from dataclasses import dataclass

from roll.core.configs.fields import Bounds, option, required

PROGRAM = "program"
"""The `env_type` of an agent that is a program."""
POSTED, COMMAND = "posted", "command"
LIMIT = Bounds(gt=0)


@dataclass(frozen=True, kw_only=True)
class ProgramConfig:
    command: list[str] = required("The agent, word by word: no shell reads it. The first word python is the interpreter.")
    python: str | None = option(
        None, "Interpreter that the first word python of a command stands for; null means that of the run.", path="interpreter"
    )
    preload: list[str] = option(
        [],
        "Modules that the interpreter imports once: each agent is a fork of it, which runs the script of command. Empty: each "
        "agent is an interpreter of its own.",
    )
    isolated: bool = option(
        False,
        "Whether the commands are shut in: the agent reaches the gateway alone, they see no process but their own, and "
        "write in their folder alone. false: they do what the user of the run may do.",
    )
    readable: list[str] = option(
        [], "With isolated: what the commands may read besides their folder, Python and the system's programs.", path="file"
    )
    folder: str | None = option(
        None, "Each episode works in a copy of this folder, which is deleted at its end; null means an empty one.", path="file"
    )
    environment: dict[str, str] = option(
        {},
        "Environment variables of its commands, besides those of the episode and a few of the system; no others are inherited.",
    )
    setup: list[str] = option([], "Command that is run where the agent works, before it; empty means none.")
    reward: str = required(
        "Where an episode's reward comes from.\n"
        "posted: the program posts it.\n"
        "command: scoring prints it.\n"
        "Else the dotted path of a function of the trace and of where the agent worked."
    )
    scoring: list[str] = option(
        [], "With reward: command, the command that is run where the agent worked; its last line is the reward."
    )
    setup_timeout_s: float = option(60.0, "A set-up that takes longer has failed.", bounds=LIMIT)
    agent_timeout_s: float = option(600.0, "An agent that takes longer is ended; see score_timeouts.", bounds=LIMIT)
    scoring_timeout_s: float = option(60.0, "A scoring that takes longer has failed.", bounds=LIMIT)
    score_exits: bool = option(
        False,
        "Whether an agent that ends with another exit code than 0 is scored on what it did, as its mistakes may be the policy's; "
        "false: on_env_failure says what it costs.",
    )
    score_timeouts: bool = option(
        False, "Whether an agent that was ended at its limit is scored on what it did; false: on_env_failure says what it costs."
    )
