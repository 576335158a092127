from pathlib import Path

from trinity_compatibility import page

PAGE = Path(__file__).parents[2] / "docs_roll" / "trinity_compatibility.md"


def test_the_page_in_the_repository_is_current():
    command = "python tools/trinity_compatibility.py > docs_roll/trinity_compatibility.md"
    assert PAGE.read_text() == page(), f"make it again: {command}"
