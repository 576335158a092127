"""Checks that the configured engine is installed, in a version that this project knows, and has the configured arguments. Reads
files, imports nothing of the engine and no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from roll.core.configs.arguments import StrategyArguments
from roll.core.configs.engines import engine_of
from roll.core.configs.problems import MISSING_VALUE, Problem


class EnginePackage(Protocol):
    """The module of an engine that is another project's (`EngineTraits.package`). `python`: an interpreter; None: this one."""

    SERIES: str
    """The release that this project works with."""
    INSTALL: str
    VARIABLE: str
    """The environment variable that names the interpreter of all engines; empty: it may be installed in the present one."""

    def interpreter(self, named: str | None) -> str | None: ...

    def check_installed(self, python: str | None) -> Path:
        """The package's folder. Raises `ValueError`."""

    def environment_problems(self) -> Iterable[Problem]: ...

    def check_argument(self, python: str | None, name: str, value: object) -> None:
        """Raises `ValueError`, with the reason, if a user may not give it."""

    def check_folder(self, folder: str, given: Mapping[str, Any], dtype: str, device_kind: str) -> None:
        """Raises `ValueError` if the engine cannot run that model there, with these arguments and this type."""

    def remarks(self, key: str, given: Mapping[str, Any], accelerators: bool) -> Iterable[str]:
        """Yields remarks on values taken in place of the `strategy_args` of that key, or of those left open."""


def engine_package(strategy_name: str) -> EnginePackage | None:
    """Returns None for a training back end, or an engine of this project."""
    path = engine_of(strategy_name).package
    return import_module(path) if path else None


def engine_problems(key: str, chosen: StrategyArguments) -> list[Problem]:
    """`chosen`: the `strategy_args` of that key. Nothing is said of arguments whose engine is not found."""
    given, package = chosen.strategy_config, engine_package(chosen.strategy_name)
    if package is None:
        return []
    where, what = f"{key}.strategy_config.python", given.get("python", MISSING_VALUE)
    if "python" not in given and not package.VARIABLE:
        where, what = f"{key}.strategy_name", chosen.strategy_name
    python = package.interpreter(given.get("python"))
    missing = _complaint(where, what, lambda: package.check_installed(python), package.INSTALL)
    missing += package.environment_problems()
    check = partial(package.check_argument, python)
    return missing or [
        problem
        for name, value in given.items()
        for problem in _complaint(f"{key}.strategy_config.{name}", value, partial(check, name, value), "correct or remove it")
    ]


def engine_remarks(key: str, chosen: StrategyArguments, accelerators: bool) -> Iterable[str]:
    package = engine_package(chosen.strategy_name)
    return () if package is None else package.remarks(key, chosen.strategy_config, accelerators)


def _complaint(key: str, value: object, check: Callable[[], object], fix: str) -> list[Problem]:
    try:
        check()
    except ValueError as error:
        return [Problem(key, value, str(error), fix)]
    return []
