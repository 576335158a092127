"""Simulated runs of which there are thousands."""

import sys
from pathlib import Path

import pytest
import yaml

HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)


@pytest.fixture(autouse=True)
def quick(no_pictures, monkeypatch):
    """Without pictures, and with the YAML library's C code: half of a short run's time."""
    monkeypatch.setattr(yaml, "SafeLoader", yaml.CSafeLoader)
    monkeypatch.setattr(yaml, "SafeDumper", yaml.CSafeDumper)


@pytest.fixture
def memory_folder(tmp_path):
    """In memory, where there is such a place: a simulated run waits for no disk."""
    memory = Path("/dev/shm")
    if not memory.is_dir():
        yield tmp_path
        return
    import shutil
    import tempfile

    folder = Path(tempfile.mkdtemp(dir=memory))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
