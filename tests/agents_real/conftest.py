"""Programs that people have, each in an interpreter of its own: `make test-agents` makes these and runs the folder, about an
hour on two cores that have other work. Where an interpreter was not made its programs are skipped."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.append(str(HERE))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.agents)
            item.add_marker(pytest.mark.timeout(1800))
            item.add_marker(pytest.mark.xdist_group("agents"))
