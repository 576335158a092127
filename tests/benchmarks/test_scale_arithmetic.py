"""The arithmetic of large runs: one figure by hand, and a page that is what the script prints."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def scripts(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def test_a_system_by_hand():
    from scale_arithmetic import SYSTEMS

    small, middle, large = SYSTEMS
    assert small.generation_s() == pytest.approx(1024 * 4000 / 40_000)
    assert small.training_s() == pytest.approx(8 * 7.6e9 * 1024 * 4000 / (4 * 989e12 * 0.4))
    assert middle.store_s() == pytest.approx(140e9 / 2e9)
    # An engine of 16 devices has half of the weights on each of its nodes, whose eight adapters take 320 GB/s.
    assert large.shares_s() == pytest.approx(671e9 / 320e9)


def test_the_page_has_what_the_script_prints():
    from scale_arithmetic import table

    assert f"<!-- arithmetic -->\n{table()}\n<!-- end of arithmetic -->" in (ROOT / "docs_roll" / "scale.md").read_text()
