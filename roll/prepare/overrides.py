"""Overrides of single keys, as Hydra writes them: `key=value`, `+key=value`, `++key=value`, `~key`."""

from __future__ import annotations

import re
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from roll.core.configs.problems import ConfigError, Problem


def prepared(override: str, folder: Path) -> str:
    """Returns an override that Hydra reads as the user meant it. Raises `ConfigError`.

    Hydra refuses a plain `key=value` unless the YAML has the key; here every field may be set, and unknown ones are found by
    strict loading. Hydra reads `a,b` as a sweep, which a single run cannot mean."""
    override, _ = _read(override)
    is_group = (folder / override.partition("=")[0]).is_dir()
    return override if override.startswith(("+", "~")) or is_group else f"++{override}"


def applied(config: DictConfig, override: str) -> None:
    """Changes the key that an override names, whatever is there already. Raises `ConfigError`."""
    _, parsed = _read(override)
    if parsed.is_delete():
        OmegaConf.update(config, parsed.key_or_group, None, force_add=True)
    else:
        OmegaConf.update(config, parsed.key_or_group, parsed.value(), merge=False, force_add=True)


def is_hydras(override: str) -> bool:
    """Returns True for `hydra.run.dir=...` and the like: about Hydra's own folders, logs and launchers, none of which a run here
    has."""
    return re.match(r"[+~]*hydra(?=[./=@]|$)", override) is not None


def _read(override: str) -> tuple[str, Override]:
    parsed = _parsed(override)
    if parsed is None:
        key, equals, value = override.partition("=")
        quoted = f"{key}={_quote(value)}" if equals else override
        parsed = _parsed(quoted) if equals else None
        if parsed is None:
            file = Path(override)
            named = file.suffix in (".yaml", ".yml", ".sh")
            name = file.name if file.suffix == ".sh" else file.stem
            fix = f"--config_path {file.parent} --config_name {name}" if named else "write key=value, +key=value or ~key"
            raise ConfigError([Problem("override", override, "cannot be read", fix)])
        override = quoted
    return override, parsed


def _parsed(override: str) -> Override | None:
    try:
        parsed = OverridesParser.create().parse_override(override)
    except HydraException:
        return None
    return parsed if parsed.key_or_group and not parsed.is_sweep_override() else None


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
