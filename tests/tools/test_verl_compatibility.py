from pathlib import Path

from verl_compatibility import page

PAGE = Path(__file__).parents[2] / "docs_roll" / "verl_compatibility.md"


def test_the_page_in_the_repository_is_current():
    command = "python tools/verl_compatibility.py > docs_roll/verl_compatibility.md"
    assert PAGE.read_text() == page(), f"make it again: {command}"
