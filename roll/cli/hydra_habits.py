"""What users of Hydra type: `hydra.*` overrides, `--cfg job`, `--info`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import yaml

from roll.cli.compose import compose
from roll.cli.origins import files
from roll.configs.redact import redact


def configuration_text(folder: Path, name: str, overrides: Sequence[str]) -> str:
    """`--cfg job`: the composed YAML, secrets hidden. Raises `ConfigError`."""
    return yaml.safe_dump(redact(compose(folder, name, overrides)), sort_keys=False, allow_unicode=True)


def information(folder: Path, name: str, overrides: Sequence[str]) -> str:
    """`--info`: what the configuration is composed of."""
    read = [f"  {folder / file}" for file in files(folder, name.removesuffix(".yaml"))]
    return "\n".join(["files, the first one last:", *read, "overrides:", *(f"  {each}" for each in overrides or ["none"])]) + "\n"
