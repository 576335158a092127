"""What holds for every test run: properties repeat and have no time limit of their own; Ray tests never run side by side; what a
file makes for all of its tests is made once."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

# As a deterministic run sets it at its start (roll/platform/process_setup.py): before a test's imports use MKL.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

# Programs that tests start end by Ctrl-C, also where the shell that started the tests has them ignore it (`make test &`).
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Collecting the tests imports everything there is, and all of it stays: looking for garbage meanwhile takes a sixth of the time.
gc.disable()

# The same examples every time, and no limit a busy machine could break: pytest-timeout ends what hangs.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")

pytest_plugins = ["processor_time"]


STARTERS = {"embedded_task", "forked_engines", "forks", "in_process", "vllm_forks"}
"""Fixtures of tests that start runs, ranks or engines, or that teach a model."""

SLOW_ROOMS = {"benchmarks", "hostile", "integration", "packaging"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Which tests are `slow` by what they need or where they stand. Which tests share one process of pytest-xdist: those marked
    `ray`, and those of a file that need a fixture of its own. The groups come first, before all of them Ray's, the longest: no
    core is left over with it at the end."""
    for item in items:
        if _starts_something(item):
            item.add_marker("slow")
        if item.get_closest_marker("ray"):
            item.add_marker(pytest.mark.xdist_group("ray"))
        elif not item.get_closest_marker("xdist_group") and "module" in _scopes(item):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
    items.sort(key=_place)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def _starts_something(item: pytest.Item) -> bool:
    """Tests that name their process of pytest-xdist share an engine or ranks there. PostgreSQL's have a twin with SQLite."""
    if STARTERS & {*getattr(item, "fixturenames", ())} or item.get_closest_marker("xdist_group"):
        return True
    rooms = item.path.relative_to(item.config.rootpath).parts
    return bool(SLOW_ROOMS & {*rooms}) or "postgresql" in item.nodeid.partition("[")[2]


def _scopes(item: pytest.Item) -> set[str]:
    """Of the fixtures that the test needs."""
    definitions = item._fixtureinfo.name2fixturedefs.values() if isinstance(item, pytest.Function) else []
    return {of_name[-1].scope for of_name in definitions}


def _place(item: pytest.Item) -> int:
    if item.get_closest_marker("ray"):
        return 0 if "shared_ray" in getattr(item, "fixturenames", ()) else 1
    return 2 if item.get_closest_marker("xdist_group") else 3


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A program that does not end says what it said until then, and a run that hangs where it hangs: nobody sees it twice."""
    report = yield
    if call.excinfo is not None and isinstance(ended := call.excinfo.value, subprocess.TimeoutExpired):
        for name, said in (("stdout", ended.stdout), ("stderr", ended.stderr)):
            text = said.decode(errors="replace") if isinstance(said, bytes) else said or ""
            report.sections.append((f"{name} of the program until then", text[-20_000:]))
        if isinstance(folder := getattr(item, "funcargs", {}).get("tmp_path"), Path):
            for file in sorted(folder.rglob("stacks/*.txt"))[:3]:
                report.sections.append((str(file.relative_to(folder)), file.read_text(errors="replace")[-20_000:]))
    return report
