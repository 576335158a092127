"""Checks with the packages of environments themselves: `make test-envs`. Each is in the interpreter that `roll env add` made
beside the checkout; those of a package that is not there are skipped."""

from collections.abc import Callable
from typing import Any

import pytest

from roll.envs.elsewhere import asked
from roll.envs.packages import KNOWN, offered, usual


@pytest.fixture
def python() -> Callable[[str], str]:
    def found(package: str) -> str:
        place = usual(package)
        if place is None:
            pytest.skip(f"{package} is not here: make test-envs, or roll env add {package}")
        return str(place)

    return found


@pytest.fixture
def offers(python: Callable[[str], str]) -> Callable[[str], Any]:
    def told(package: str) -> Any:
        found = asked(python(package), offered)[package]
        assert found["version"] == KNOWN[package].version and found["why"] == ""
        return found["ids"]

    return told
