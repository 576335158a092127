"""What the commands that read a configuration have in common on the command line."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from roll.cli.packaged import EXAMPLES
from roll.configs.problems import MISSING_VALUE, ConfigError, Problem

DEFAULT_FOLDER = "examples/config"
OVERRIDES = "Any further key=value (or +key=value, ~key) overrides the YAML."


class Parser(argparse.ArgumentParser):
    """Complains in the form of every other bad input: one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError([Problem("command line", MISSING_VALUE, message, "see --help")])

    def add_config_options(self, name: str) -> None:
        self.add_argument("--config_path", default=DEFAULT_FOLDER, help=f"folder of the YAML files (default: {DEFAULT_FOLDER})")
        self.add_argument("--config_name", default=name, help=f"name of the YAML file (default: {name})")

    def parse_with_overrides(self, arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """Options, and the overrides among the arguments. Raises `ConfigError` for an unknown option."""
        known, overrides = self.parse_known_args(arguments)
        for option in overrides:
            if option.startswith("-"):
                nearest = difflib.get_close_matches(option, self._option_string_actions, n=1)
                advice = f"did you mean {nearest[0]}?" if nearest else "overrides are written key=value"
                raise ConfigError([Problem("command line", option, "unknown option", advice)])
        return known, overrides


def config_folder(path: str) -> Path:
    """The folder that `--config_path` means: relative to the current folder, else (as in ROLL) to that of the start script, else
    to the default configurations, so that `qwen2.5-7B-rlvr_megatron` and `../qwen2.5-7B-rlvr_megatron` are found from anywhere.

    Raises `ConfigError` if there is none."""
    scripts = dict.fromkeys((Path(sys.argv[0]).resolve().parent, EXAMPLES))
    tried = [Path.cwd(), *(folder for script in scripts for folder in (script, script / "config")), EXAMPLES.parent]
    for folder in tried:
        if (folder / path).is_dir():
            return (folder / path).resolve()
    places = ", ".join(map(str, dict.fromkeys([Path.cwd(), *scripts])))
    raise ConfigError([Problem("--config_path", path, f"there is no such folder in {places}", "name a folder with YAML files")])


def complain(problems: Sequence[Problem]) -> None:
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
