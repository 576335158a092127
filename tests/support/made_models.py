"""Models that the scripts of examples/ make."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def script(folder: str, name: str) -> ModuleType:
    path = EXAMPLES / folder / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # the scripts import their neighbours
    spec.loader.exec_module(module)
    return module


def of_all_processes(factory: pytest.TempPathFactory) -> Path:
    """A folder that the processes of pytest-xdist share. A script that makes a model there makes it once, and has others wait."""
    own = factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
