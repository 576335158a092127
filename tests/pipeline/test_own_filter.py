"""Filters of the user's own."""

import sys

import pytest

from roll.prepare.own_code import own_filter


def test_a_verdict_that_is_no_text_ends_the_run_by_name_and_does_not_become_a_reason(tmp_path, monkeypatch):
    """What it says of the rewards that it is tried with may be right."""
    (tmp_path / "own_filters.py").write_text("def three(rewards):\n    return 3 if len(rewards) > 2 else None\n")
    monkeypatch.syspath_prepend(tmp_path)
    chosen = own_filter("own_filters.three")
    assert chosen([0.0, 1.0]) is None
    with pytest.raises(ValueError, match=r"own_filters\.three must return the reason to drop a group \(text\) or None, not 3"):
        chosen([0.0, 1.0, 1.0])
    del sys.modules["own_filters"]
