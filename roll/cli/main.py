"""The `roll` command. A subcommand's module is imported only when it is called, so that `roll --help` answers immediately."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper

HELP = """\
usage: roll <command> [options] [key=value ...]

  demo [rlvr|agentic]    make the embedded model where it is missing, and train it: no GPU, no download of a model
  init <name>            a folder to start from: a configuration, a reward of your own, prompts
  check                  what a configuration will do, and everything that is wrong with it; --flow: the graph of its
                         stages; --data: what its prompts are, and what their reference answers earn
  simulate               what it would do, in virtual time: step time, idle devices, staleness; other splits and ratios
  train KIND             run it: rlvr, agentic, sft, dpo
  eval                   evaluate the checkpoints of a run: avg@n, pass@k
  doctor                 what is installed here, and what can start
  env check|play|audit   try an environment: contract, seeds, rewards, speed; watch a model play it; audit: what an
                         environment or a reward pays players that cannot do the task
  env add|list|prompts   packages of environments in interpreters of their own; their tasks as prompts
  top [WHERE]            all runs of a folder on one screen: step, verdict, staleness, idle, best, warnings
  show RUN               how a run is doing; show RUN samples: what the model said; show RUN groups: its database
  ui                     a page in the browser over runs: curves, time, groups, tokens; --report: as one HTML file
  replay RUN             train its recorded steps again, bit for bit; or otherwise: --change key=value
  explain RUN --step N   what moved a step: samples, tokens; where a NaN came from
  diff                   two runs: where their configurations differ, what they reached
  verify                 check a run's files against the invariants of every run
  data RUN               the responses of a run that were kept, as rows for roll train sft
  export                 the model of a checkpoint as a Hugging Face folder
  completion SHELL       completion of commands, options and keys for bash, zsh or fish

roll <command> --help says more; roll --version.
"""

COMMANDS = {
    "demo": "train:demo", "init": "init:main", "check": "check:main", "simulate": "simulate:main", "train": "train:main",
    "eval": "train:evaluate", "doctor": "doctor:main", "env": "env:main", "top": "top:main", "show": "show:main",
    "ui": "ui:main", "replay": "replay:main", "explain": "explain:main", "diff": "show:diff", "verify": "verify:main",
    "data": "kept:main", "export": "export:main", "completion": "completion:main",
}  # fmt: skip
"""The module beside this one, and its function."""
RUNS = ("demo", "train", "eval")
"""Commands whose end is that of a run."""
PIPELINES = ("rlvr", "agentic", "sft", "dpo")
USAGE_ERROR = 2


def command_named(name: str) -> Callable[[Sequence[str]], int]:
    module, _, function = COMMANDS[name].partition(":")
    command: Callable[[Sequence[str]], int] = getattr(import_module(f"roll.cli.{module}"), function)
    return command


def run_command(arguments: Sequence[str] | None = None) -> int:
    """`roll <arguments>` in this process. Returns the exit code; 2 if there is no such command."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if not given or given[0] in ("--help", "-h", "help"):
        print(HELP, end="")
        return 0 if given else USAGE_ERROR
    if given[0] == "--version":
        from importlib.metadata import version

        print(version("roll"))
        return 0
    command, rest = given[0], given[1:]
    if command not in COMMANDS:
        from roll.core.configs.problems import did_you_mean

        advice = did_you_mean(command, COMMANDS, f"one of {', '.join(COMMANDS)}")
        print(f"error: roll {command}: no such command; {advice}", file=sys.stderr)
        return USAGE_ERROR
    if command == "train" and (not rest or rest[0] not in (*PIPELINES, "-h", "--help")):
        print(f"error: roll train: name the pipeline: roll train {', '.join(PIPELINES)}", file=sys.stderr)
        return USAGE_ERROR
    if isinstance(sys.stdout, TextIOWrapper):
        with suppress(OSError):  # a full disk
            sys.stdout.reconfigure(errors="replace")  # a terminal, or a pipe of a service, that knows no block or arrow
    try:
        code = command_named(command)(rest)
        sys.stdout.flush()
    except BrokenPipeError:
        if command in RUNS:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader (`| head`) has seen enough
        return 0
    return code


main = run_command
"""The entry point."""


if __name__ == "__main__":
    sys.exit(main())
