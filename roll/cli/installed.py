"""Which of the packages that this project asks for are installed, in a version that it knows. Nothing is imported: the metadata
of the installed packages has the versions."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement

from roll.cli.findings import Finding

_SERVES = {
    "deepspeed": "strategy_name deepspeed_train",
    "megatron": "strategy_name megatron_train",
    "lora": "model_args.lora_target",
}
"""Extras of the package that one environment can hold together; engines are looked at by themselves."""


def packages() -> Iterator[Finding]:
    yield Finding("ok", "python", f"{platform.python_version()}")
    try:
        wanted = [Requirement(line) for line in requires("roll") or []]
    except PackageNotFoundError:
        yield Finding("warn", "roll", "is not installed: versions cannot be compared", "pip install . in the checkout")
        return
    yield Finding("ok", "roll", version("roll"))
    base = [each for each in wanted if each.marker is None or each.marker.evaluate({"extra": ""})]
    here, lacking = _compared(base)
    if lacking:
        yield Finding("missing", "packages", ", ".join(lacking), f"pip install {_quoted(base, lacking)}")
    else:
        yield Finding("ok", "packages", ", ".join(here))
    for extra, serves in _SERVES.items():
        # An older installation may not know the extra.
        named = [each for each in wanted if each not in base and each.marker and each.marker.evaluate({"extra": extra})]
        here, lacking = _compared(named)
        if lacking:
            yield Finding("warn", extra, f"{', '.join(lacking)}: no {serves}", f"pip install {_quoted(named, lacking)}")
        elif named:
            yield Finding("ok", extra, f"{', '.join(here)}: {serves}")


def _compared(wanted: list[Requirement]) -> tuple[list[str], list[str]]:
    """What is there, and what is not or has another version."""
    here, lacking = [], []
    for each in wanted:
        try:
            found = version(each.name)
        except PackageNotFoundError:
            lacking.append(f"{each.name} is not installed")
            continue
        if each.specifier.contains(found, prereleases=True):
            here.append(f"{each.name} {found}")
        else:
            lacking.append(f"{each.name} {found} is not {each.specifier}")
    return here, lacking


def _quoted(wanted: list[Requirement], lacking: list[str]) -> str:
    names = {line.split()[0] for line in lacking}
    return " ".join(f"'{each.name}{each.specifier}'" for each in wanted if each.name in names)
