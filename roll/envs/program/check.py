"""Problems of a program that are found before any worker starts: its commands, its folder, its reward."""

from __future__ import annotations

import inspect
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from roll.core.configs.dotted_path import import_object
from roll.core.configs.problems import Problem
from roll.core.configs.program import COMMAND, POSTED, ProgramConfig
from roll.graders.sandbox.system_calls import MACHINES
from roll.platform.child import same_imports
from roll.platform.interpreters import inspect_interpreter

TRY_S = 60.0
_TRY = """import os, sys
from roll.graders.sandbox import namespaces
if os.getuid() == 0 and (closed := namespaces.closed_to_others(True)):
    sys.exit(closed)
namespaces.isolate(tmp_bytes=1 << 20)
namespaces.only_listener(1024)
"""


def installed_problems(program: ProgramConfig, key: str) -> Iterator[Problem]:
    """`key`: of the program in the configuration."""
    if program.python is not None and shutil.which(program.python) is None:
        yield Problem(f"{key}.python", program.python, "there is no such interpreter here", "the path of a Python")
    elif program.preload:
        yield from _preload(program, f"{key}.preload")
    if program.isolated and (why := _not_isolated()):
        fix = "isolated: false, and command: [docker, run, ...] or another way to shut the agent in"
        yield Problem(f"{key}.isolated", True, f"programs cannot be shut in here: {why}", fix)
    if program.folder is not None and not Path(program.folder).is_dir():
        yield Problem(f"{key}.folder", program.folder, "is not a folder here", "the folder that each episode gets a copy of")
    for name in ("command", "setup", "scoring"):
        yield from _command(program, getattr(program, name), f"{key}.{name}")
    if program.reward not in (POSTED, COMMAND):
        yield from _function(program.reward, f"{key}.reward")


def _preload(program: ProgramConfig, key: str) -> Iterator[Problem]:
    try:
        seen = inspect_interpreter(program.python, "json", [], program.preload)  # a starter brings this project along
    except ValueError as error:
        yield Problem(f"{key.removesuffix('preload')}python", program.python, str(error), "the path of a Python")
        return
    if seen["python"] < [3, 11]:
        yield Problem(
            key, program.preload, f"needs Python 3.11, and {program.python} is another", "preload: [], or another python"
        )
    for name in seen["missing"]:
        yield Problem(key, name, f"cannot be imported by {program.python or sys.executable}", "install it there, or remove it")


def _not_isolated() -> str:
    """Why; empty if programs can be shut in here."""
    if sys.platform != "linux" or os.uname().machine not in MACHINES:
        return f"it needs Linux on {' or '.join(MACHINES)}"
    tried = subprocess.run([sys.executable, "-P", "-c", _TRY], env=same_imports(), capture_output=True, text=True, timeout=TRY_S)
    return tried.stdout.strip() or (tried.stderr.strip().splitlines() or ["?"])[-1] if tried.returncode else ""


def _command(program: ProgramConfig, words: list[str], key: str) -> Iterator[Problem]:
    """A file of the folder may be named, which the set-up may also make: only names without a folder are looked for."""
    if not words:
        return
    python = words[0] == "python"
    path = program.environment.get("PATH")
    if not python and "/" not in words[0] and shutil.which(words[0], path=path) is None:
        yield Problem(key, words, f"there is no program {words[0]} on the PATH", "its path, or install it")
    if python and len(words) > 1 and words[1].endswith(".py") and not program.setup:
        given = Path(program.folder or ".", words[1]) if program.folder else Path(words[1])
        inside = program.folder is not None or given.is_absolute()
        if not inside or not given.is_file():
            where = program.folder or "its working folder, which is empty: folder says which one is copied"
            yield Problem(key, words, f"there is no {words[1]} in {where}", f"folder: <where {Path(words[1]).name} is>")


def _function(path: str, key: str) -> Iterator[Problem]:
    fix = "a function of the trace and the working folder, importable here (see PYTHONPATH)"
    try:
        function = import_object(path)
    except ValueError as error:
        yield Problem(key, path, str(error), fix)
        return
    try:
        inspect.signature(function).bind({}, Path(sys.prefix))
    except (TypeError, ValueError) as error:
        yield Problem(key, path, f"cannot be called as reward(trace, folder): {error}", fix)
