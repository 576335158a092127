"""From YAML files and `key=value` overrides to a configuration, by Hydra."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from roll.configs.loading import load_config, to_mapping
from roll.configs.problems import ConfigError, Problem
from roll.configs.rlvr import RLVRConfig

__all__ = ["compose", "load_rlvr_config", "to_mapping"]


def compose(config_path: str | Path, config_name: str, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The composed YAML as plain values, with `${...}` resolved and without Hydra's own node.

    An override is `key=value`, `+key=value` or `~key`; a value that is no Hydra value (`0-3,6`, `list(range(0,4))`) is text.
    Raises `ConfigError` with one problem for a missing file, an override that cannot be read, or a reference to nothing."""
    folder = Path(config_path).resolve()
    name = config_name.removesuffix(".yaml")
    if not (folder / f"{name}.yaml").is_file():
        available = sorted(file.stem for file in folder.glob("*.yaml")) if folder.is_dir() else []
        found = f"choose one of {', '.join(available)}" if available else "there are no YAML files in this folder"
        raise ConfigError([Problem("config_name", config_name, f"{folder} has no {name}.yaml", found)])
    prepared = [_prepare(override, folder) for override in overrides]
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(folder), version_base=None):
            composed = hydra_compose(name, prepared)
        plain = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError([Problem("config_name", config_name, f"cannot be composed: {reason}")]) from error
    if not isinstance(plain, dict):
        raise ConfigError([Problem("config_name", config_name, "is not a mapping of keys to values")])
    return {str(key): value for key, value in plain.items() if key != "hydra"}


def load_rlvr_config(config_path: str | Path, config_name: str, overrides: Sequence[str] = ()) -> RLVRConfig:
    """Composes and loads; `check_config` is the caller's next step. Raises `ConfigError`."""
    return load_config(RLVRConfig, compose(config_path, config_name, overrides))


def _prepare(override: str, folder: Path) -> str:
    """An override that Hydra reads as the user meant it.

    Hydra refuses a plain `key=value` unless the YAML has the key; here every field may be set, and unknown ones are found by
    strict loading. Hydra reads `a,b` as a sweep, which a single run cannot mean."""
    if _parse(override) is None:
        key, equals, value = override.partition("=")
        quoted = f"{key}={_quote(value)}" if equals else override
        if not equals or _parse(quoted) is None:
            raise ConfigError([Problem("override", override, "cannot be read", "write key=value, +key=value or ~key")])
        override = quoted
    is_group = (folder / override.partition("=")[0]).is_dir()
    return override if override.startswith(("+", "~")) or is_group else f"++{override}"


def _parse(override: str) -> Override | None:
    try:
        parsed = OverridesParser.create().parse_override(override)
    except HydraException:
        return None
    return parsed if parsed.key_or_group and not parsed.is_sweep_override() else None


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
