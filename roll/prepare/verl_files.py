"""verl's settings before they are translated: a start script, or a YAML file. What verl's own files bring
stands in compat/verl/defaults.py."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from roll.compat.shell.expansion import unknown_in
from roll.compat.shell.script import Argument, Command, commands_of
from roll.compat.shell.words import unread
from roll.compat.verl.translation import is_verl
from roll.core.configs.problems import ConfigError, Problem
from roll.core.data.untrusted import read_regular
from roll.core.errors import Fixable
from roll.prepare.overrides import applied, is_hydras
from roll.prepare.yaml_files import COMMAND_LINE, LARGEST_FILE, LOADER, check_files, origins

SCRIPT = ".sh"
_MODULE = re.compile(r"([\w./-]*[./])?(?P<name>main_ppo|main_ppo_sync|main_dapo|fully_async_main|async_main_ppo)(\.py)?")
_OTHER = re.compile(r"(verl|recipe)\.[\w.]*|[\w./-]*/main_\w+\.py")
_OWN_NAMES = re.compile(r"(\w*_)?(ppo|dapo)\w*trainer(\.yaml)?")
"""Names of verl's own files."""
_SIGNS = ("actor_rollout_ref", "train_files")
_KINDS: Mapping[str, Mapping[str, Any]] = {
    "fully_async": {"async_training": {"partial_rollout": True}, "rollout": {"nnodes": 1, "n_gpus_per_node": 8}},
    "one_step_off": {"rollout": {"nnodes": 1, "n_gpus_per_node": 8}},
}
"""The entry point's part that names a mode -> what its own file brings."""


@dataclass(slots=True)
class Composed:
    config: DictConfig
    places: dict[str, str] = field(default_factory=dict)
    """`file:line` of each key."""


def script_in(folder: Path, name: str) -> Path | None:
    """Returns the script that a name means; None if it is none."""
    file = folder / (name if name.endswith(SCRIPT) else f"{name}{SCRIPT}")
    return file if file.is_file() and not (folder / f"{name}.yaml").is_file() else None


def composed(folder: Path, name: str, overrides: Sequence[str]) -> Composed | None:
    """Returns the settings, with `${...}` as it is written; None for a file that is not verl's. Raises `ConfigError`."""
    script = script_in(folder, name)
    if script is not None:
        found = _of_script(script, {_key(override) for override in overrides})
    elif (content := _content(folder, name)) is not None and is_verl(content):
        found = Composed(OmegaConf.create(content), origins(folder, name))
    else:
        return None
    for override in overrides:
        if not is_hydras(override):
            applied(found.config, override)
            found.places[_key(override)] = COMMAND_LINE
    return found


def _content(folder: Path, name: str) -> dict[str, Any] | None:
    """Returns what a YAML file writes itself, over those of its defaults list that lie beside it."""
    try:
        text = read_regular(folder / f"{name}.yaml", LARGEST_FILE).decode("utf-8-sig")
        if not any(sign in text for sign in _SIGNS):
            return None
        check_files(folder, name)
        read = yaml.load(text, Loader=LOADER)
    except (OSError, ValueError, yaml.YAMLError):
        return None  # told by Hydra
    if not isinstance(read, dict):
        return None
    listed = read.pop("defaults", None) or []
    read.pop("hydra", None)
    bases = [each for each in listed if isinstance(each, str) and each != "_self_" and (folder / f"{each}.yaml").is_file()]
    if not bases or not is_verl(read):
        return _known(read)
    under = [OmegaConf.create(_content(folder, each.removesuffix(".yaml")) or {}) for each in bases]
    merged: Any = OmegaConf.to_container(OmegaConf.merge(*under, OmegaConf.create(read)), resolve=False)
    return _known(merged)


def _known(block: dict[str, Any]) -> dict[str, Any]:
    """Returns the block without keys whose value is `???`, which has to be given elsewhere."""
    return {str(key): _known(value) if isinstance(value, dict) else value for key, value in block.items() if value != "???"}


def _key(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]


def _of_script(path: Path, replaced: Collection[str]) -> Composed:
    """`replaced`: keys that others give a value. Raises `ConfigError`."""
    try:
        text = read_regular(path, LARGEST_FILE).decode("utf-8-sig")
        commands = commands_of(text, str(path), os.environ, _is_verls)
        return _of_command(path, commands, replaced)
    except ConfigError:
        raise
    except Fixable as error:
        raise ConfigError([Problem("config_name", path.name, str(error), error.fix)]) from None
    except (OSError, ValueError) as error:
        problem = Problem("config_name", path.name, f"cannot be read: {error}", "a regular file of UTF-8")
        raise ConfigError([problem]) from None


def _is_verls(command: Command) -> bool:
    return any(_MODULE.fullmatch(each.text) for each in command)


def _of_command(path: Path, commands: Sequence[Command], replaced: Collection[str]) -> Composed:
    if len(commands) != 1:
        lines = ", ".join(str(command[0].line) for command in commands)
        message = f"starts verl {len(commands)} times, in the lines {lines}" if commands else "does not start a trainer of verl's"
        fix = "one script for each" if commands else "a command with python3 -m verl.trainer.main_ppo, of PPO and its kin"
        raise unread(message, commands[1][0].line if commands else 1, fix)
    (command,) = commands
    entry = next(index for index, each in enumerate(command) if _MODULE.fullmatch(each.text))
    config_path, config_name, overrides = _arguments(command[entry + 1 :])
    found = Composed(OmegaConf.create(_base(path, config_path, config_name)))
    for kind, brought in _KINDS.items():
        if kind in command[entry].text or kind in config_name:
            found.config = OmegaConf.merge(OmegaConf.create(dict(brought)), found.config)  # type: ignore[assignment]
    if "megatron" in config_name:
        found.config = OmegaConf.merge({"model_engine": "megatron"}, found.config)  # type: ignore[assignment]
    for key, each in overrides.items():
        if key in replaced:
            continue
        if why := unknown_in(each.text):
            fix = f"give it a value: export it, write it into the script, or {key}=VALUE behind the command"
            raise ConfigError([Problem(key, "unknown", why, fix, f"{path.name}:{each.line}")])
        applied(found.config, _chosen(each.text))
        found.places[key] = f"{path.name}:{each.line}"
    return found


def _chosen(override: str) -> str:
    """Returns an override that chooses a file of verl's for a role as the back end that it stands for."""
    found = re.fullmatch(r"(actor|ref|critic)@[\w.]+=([a-z]+)_\w+", override)
    return override if found is None else f"model_engine={found[2]}"


def _arguments(arguments: Sequence[Argument]) -> tuple[str, str, dict[str, Argument]]:
    """Returns folder and name of the file that a command names, and its overrides by key, the last of each."""
    options, overrides = {"--config-path": "", "--config-name": "ppo_trainer"}, dict[str, Argument]()
    rest = iter(arguments)
    for each in rest:
        option, equals, value = each.text.partition("=")
        option = {"-cp": "--config-path", "-cn": "--config-name", "--config-dir": "--config-path"}.get(option, option)
        if option in options:
            options[option] = value if equals else next(rest, each).text
        elif equals and not option.startswith("-"):
            if not is_hydras(each.text):
                overrides.pop(_key(option), None)
                overrides[_key(option)] = each
        elif each.text.startswith("~"):
            overrides[_key(option)] = each
        elif why := unknown_in(each.text):
            raise unread(why, each.line, "give it a value: export it, or write it into the script")
        elif each.text:
            raise unread(f"{each.text!r} behind the command is no key=value", each.line, "take it out, or write key=value")
    return options["--config-path"], options["--config-name"], overrides


def _base(path: Path, config_path: str, config_name: str) -> dict[str, Any]:
    """Returns what the file that the command names writes; nothing of verl's own files."""
    name = config_name.removesuffix(".yaml")
    folders = [Path(config_path)] if Path(config_path).is_absolute() else [Path.cwd() / config_path, path.parent / config_path]
    for folder in folders if config_path and not unknown_in(config_path) else []:
        if (folder / f"{name}.yaml").is_file():
            return _content(folder, name) or {}
    if _OWN_NAMES.fullmatch(name):
        return {}
    message = f"names the file {config_path or '.'}/{name}.yaml, which is not there"
    raise unread(unknown_in(config_path) or message, 1, "start where the script is started, or --config_name of that file itself")
