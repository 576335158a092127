"""The house keeps its measures: what a reader has to know does not grow, and it loads no implementation of its sockets."""

import house
import pytest

SLACK = {"lines": 100, "reaches_out": 0, "any_per_1000_lines": 0.3}
"""By so much a figure may lie below its limit, before the limit has to be lowered in pyproject.toml."""
MEASURES = {
    "lines": lambda: house.lines_of(house.core()),
    "reaches_out": lambda: len(house.reaches_out()),
    "any_per_1000_lines": lambda: house.anys(house.core()),
}


@pytest.mark.parametrize("name", MEASURES)
def test_a_figure_of_the_core_falls_and_never_rises(name):
    limit, found = house.limits()[name], MEASURES[name]()
    assert found <= limit, "the core has grown: take something out of it, or put what is new outside"
    assert found >= limit - SLACK[name], f"write {name} = {found:g} in [tool.house] of pyproject.toml"


def test_an_import_at_load_time_counts_and_one_for_types_or_inside_a_function_does_not(tmp_path, monkeypatch):
    root = tmp_path / "roll"
    (root / "inside").mkdir(parents=True)
    (root / "far.py").touch()
    (root / "inside" / "a.py").write_text(
        "from typing import TYPE_CHECKING\ntry:\n    from roll import far\nexcept ImportError:\n    pass\n"
        "if TYPE_CHECKING:\n    import roll.other\ndef f():\n    import roll.other\n"
    )
    (root / "other.py").touch()
    (tmp_path / "pyproject.toml").write_text('[tool.house.core]\ninside = ["*"]\n')
    monkeypatch.setattr(house, "ROOT", root)
    assert house.reaches_out() == ["roll.inside.a -> roll.far"]
    (tmp_path / "pyproject.toml").write_text('[tool.house.core]\ninside = ["b"]\n')
    with pytest.raises(ValueError, match=r"inside has no b\.py"):
        house.core()
