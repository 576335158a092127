"""What holds for every test run: properties repeat and have no time limit of their own; Ray tests never run side by side."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# As a deterministic run sets it at its start (roll/distributed/determinism.py): before a test's imports use MKL.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

# The same examples every time, and no limit a busy machine could break: pytest-timeout ends what hangs.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `ray` share one process of pytest-xdist."""
    for item in items:
        if item.get_closest_marker("ray"):
            item.add_marker(pytest.mark.xdist_group("ray"))
