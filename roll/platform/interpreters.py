"""Other Python interpreters, for engines and environments that cannot share one: their places, their packages, and the starts of
their processes. Nothing of an engine is imported here: that takes ten seconds and changes the process.

The text of this file is also run by those interpreters (`inspect_packages`), so it needs nothing but the standard library.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


def inspect_packages(module: str, distributions: list[str], needs: list[str]) -> dict[str, object]:
    """Returns the packages of this interpreter: the folder of a module and the version of the first of these distributions that
    is installed (each None if there is none), those of `needs` that cannot be imported, and Python's own version."""
    spec = importlib.util.find_spec(module)
    found = None
    for distribution in distributions:
        try:
            found = version(distribution)
            break
        except PackageNotFoundError:
            pass
    return {
        "folder": os.path.dirname(spec.origin) if spec is not None and spec.origin else None,
        "version": found,
        "missing": [name for name in needs if importlib.util.find_spec(name) is None],
        "python": list(sys.version_info[:2]),
    }


def inspect_interpreter(python: str | None, module: str, distributions: list[str], needs: list[str]) -> dict[str, Any]:
    """Does as `inspect_packages` in another interpreter; None is this one. Raises `ValueError` if it cannot be run, is no path,
    or would find the module only by the PYTHONPATH of this one."""
    if python is None:
        return inspect_packages(module, distributions, needs)
    if not isinstance(python, str):
        raise ValueError("must be the path of a Python interpreter")
    question = json.dumps([module, distributions, needs])
    seen, path = _answer(python, question, environment()), os.environ.get("PYTHONPATH")
    lacks = [module] if seen["folder"] is None else seen["missing"]
    if lacks and path:
        there = _answer(python, question, environment() | {"PYTHONPATH": path})
        if there["folder"] is not None and not set(lacks) & set(there["missing"]):
            raise ValueError(
                f"{python} finds {', '.join(lacks)} by PYTHONPATH alone, which its processes do not get: write the folders of "
                f"{path} into a .pth file in its site-packages"
            )
    return seen


def _answer(python: str, question: str, variables: dict[str, str]) -> dict[str, Any]:
    program = [python, "-c", Path(__file__).read_text("utf-8"), question]
    try:
        answer = subprocess.run(program, env=variables, capture_output=True, text=True, timeout=60, check=True).stdout
        seen: dict[str, Any] = json.loads(answer)
    except OSError as error:
        raise ValueError(f"{python}: {error.strerror}") from error
    except (subprocess.SubprocessError, ValueError) as error:
        raise ValueError(f"{python} is not a working Python interpreter") from error
    return seen


def usual(name: str) -> Path | None:
    """Returns the interpreter in `.venv-<name>`, where the run is started or beside this package."""
    beside = (folder / f".venv-{name}" / "bin" / "python" for folder in (Path.cwd(), Path(__file__).parents[2]))
    return next((python for python in beside if python.is_file()), None)


def found(named: str) -> str | None:
    """Returns an interpreter by its path, by the name that `usual` takes, or by one that is on the PATH; None: there is none."""
    python = usual(named) if "/" not in named else None
    return shutil.which(named) if python is None else str(python)


def imports(package: str) -> dict[str, str]:
    """Returns variables with which a process of another interpreter finds this project's package, by the folder that has it
    alone, and a user's own code; it computes on one thread."""
    return {"PYTHONPATH": os.pathsep.join([package, os.getcwd()]), "OMP_NUM_THREADS": "1"}


def environment() -> dict[str, str]:
    """Returns the environment of this process, without the variables that configure its own interpreter."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}


if __name__ == "__main__":
    print(json.dumps(inspect_packages(*json.loads(sys.argv[1]))))
