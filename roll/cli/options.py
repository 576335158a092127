"""Common parts of the commands: options, answers to bad input, and text on a terminal: tables, and lines that are too long, which
go on below their own text, not below their labels."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn, ParamSpec, get_args

import yaml

from roll.compat.roll.pipelines import AnyConfig, Pipeline
from roll.core.configs.agentic import AgenticConfig
from roll.core.configs.problems import MISSING_VALUE, ConfigError, Problem, did_you_mean
from roll.core.configs.redact import visible
from roll.core.configs.rlvr import RLVRConfig
from roll.prepare.packaged import EXAMPLES

P = ParamSpec("P")
BAD_INPUT, INTERRUPTED = 2, 130
"""Exit codes."""
DEFAULT_FOLDER = "examples/config"
PACKAGE = "pkg://"
"""Begins the name of an example that the package carries, as Hydra writes it."""
OVERRIDES = "Any further key=value (or +key=value, ~key) overrides the YAML."


class Parser(argparse.ArgumentParser):
    """Complains in the form of every other bad input: one line."""

    def error(self, message: str) -> NoReturn:
        usage = " ".join(self.format_usage().split()).removeprefix("usage: ")
        raise ConfigError([Problem("command line", MISSING_VALUE, message, usage)])

    def add_config_options(self, name: str) -> None:
        self.add_argument("--config_path", help=f"folder of the YAML files, or {PACKAGE}EXAMPLE (default: {DEFAULT_FOLDER})")
        self.add_argument("--config_name", default=name, help=f"name of the YAML file (default: {name})")

    def parse_with_overrides(self, arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """Returns options, and the overrides among the arguments. Raises `ConfigError` for an unknown option."""
        dashed = [each for each in arguments if re.match(r"-\w[\w.]+=", each)]  # of -max_steps=3 argparse reads -m
        known, overrides = (argparse.Namespace(), dashed) if dashed else self.parse_known_args(arguments)
        for option in overrides:
            if option.startswith("-"):
                advice = did_you_mean(option, self._option_string_actions, "overrides are written key=value")
                if option.startswith("--config"):
                    advice = "--config_path FOLDER --config_name NAME"
                raise ConfigError([Problem("command line", option, "unknown option", advice)])
        return known, overrides


def config_folder(path: str | None) -> Path:
    """Returns the folder that `--config_path` means: relative to the current folder; to a start script's (as in ROLL), where it
    is there and not here; `pkg://NAME`: an example of the package. None: the default configurations.

    Raises `ConfigError` if there is none: a folder that was named is never taken from elsewhere."""
    if path is None:
        here = Path(DEFAULT_FOLDER)
        return (here if here.is_dir() else EXAMPLES / "config").resolve()
    script = Path(sys.argv[0])
    folders = [EXAMPLES] if path.startswith(PACKAGE) else [Path.cwd()]
    folders += [script.resolve().parent] if is_start_script(script) else []
    for folder in folders:
        if (folder / path.removeprefix(PACKAGE)).is_dir():
            return (folder / path.removeprefix(PACKAGE)).resolve()
    if (file := Path(path)).is_file():
        fix = f"--config_path {file.parent} --config_name {file.stem}"
        raise ConfigError([Problem("--config_path", path, "is a file", fix)])
    places = " or ".join(map(str, folders))
    example = Path(path).name
    fix = f"{PACKAGE}{example} is the package's" if (EXAMPLES / example).is_dir() and example else "name a folder with YAML files"
    raise ConfigError([Problem("--config_path", path, f"there is no such folder in {places}", fix)])


def is_start_script(program: str | Path) -> bool:
    return re.fullmatch(r"start_\w+\.py", Path(program).name) is not None


def pipeline_named(arguments: list[str]) -> Pipeline | None:
    """Removes and returns the pipeline that the first argument names; None if it names none."""
    named = next((each for each in get_args(Pipeline) if arguments[:1] == [each]), None)
    if named is not None:
        arguments.pop(0)
    return named


def that_generates(config: AnyConfig, name: str) -> RLVRConfig | AgenticConfig:
    """Raises `ConfigError` for a run on rows. `name`: of the configuration."""
    if not isinstance(config, RLVRConfig | AgenticConfig):
        message = f"is the configuration of a run on rows ({config.kind}), which generates nothing"
        raise ConfigError([Problem("--config_name", name, message, "one of an RLVR or agentic run")])
    return config


def answering(main: Callable[P, int]) -> Callable[P, int]:
    """Decorates a command: it answers bad input with one line per problem and exit code 2, and an interruption with 130."""

    @wraps(main)
    def answered(*arguments: P.args, **keywords: P.kwargs) -> int:
        try:
            return main(*arguments, **keywords)
        except ConfigError as error:
            complain(error.problems)
            return BAD_INPUT
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            return INTERRUPTED

    return answered


UNREADABLE = (OSError, ValueError, LookupError, TypeError, ModuleNotFoundError)


def unreadable(error: Exception, run: object, output: object) -> int:
    """Prints why the files of a run cannot be read, or `output` cannot be written. Returns the exit code."""
    why = f"{run}: {error}"
    if isinstance(error, ModuleNotFoundError):
        why = f"{output} needs {error.name}: pip install 'roll[data]'"
    print(f"error: {visible(why)}", file=sys.stderr)
    return BAD_INPUT


def complain(problems: Sequence[Problem]) -> None:
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)


_COLUMN = re.compile(r"\S {2,}(?=\S)|^ *! |^ +(?=\S)")
"""Text before a column: a gap, the mark of a remark, the indentation of a line."""


def fitted(lines: Iterable[str]) -> Iterator[str]:
    """Fits the lines to standard output: unchanged, unless it is a terminal, which has a width."""
    return folded(lines, shutil.get_terminal_size().columns) if sys.stdout.isatty() else iter(lines)


def _narrowest(text: str) -> int:
    """Returns the columns that a text needs: its longest word, and room for two short ones. With less it goes on further left."""
    return max(10, *map(len, text.split()))


def folded(lines: Iterable[str], width: int) -> Iterator[str]:
    for line in lines:
        if len(line) <= width:
            yield line
            continue
        columns = [match.end() for match in _COLUMN.finditer(line) if match.end() + _narrowest(line[match.end() :]) <= width]
        indent = " " * max(columns, default=0)
        yield from textwrap.wrap(
            line, width, subsequent_indent=indent, drop_whitespace=True, break_on_hyphens=False, break_long_words=False
        ) or [line]


def keys_and_values(pairs: Sequence[str]) -> dict[str, Any]:
    """Reads `--config key=value ...`; values are YAML. Raises `ConfigError`."""
    config = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError([Problem("--config", pair, "must be key=value")])
        try:
            config[key] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ConfigError([Problem(f"--config {key}", value, f"is not valid YAML: {' '.join(str(error).split())}")]) from None
    return config


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    if not rows:
        return
    widths = [min(60, max(map(len, column))) for column in zip(*rows, strict=True)]
    for row in rows:
        yield ("  " + "  ".join(cell[:60].ljust(width) for cell, width in zip(row, widths, strict=True))).rstrip()
