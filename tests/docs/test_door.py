"""Users import from `roll` alone: the examples, what `roll init` writes, and all that README and the documentation print; and the
page of the Python interface has the whole door."""

import ast
import re
from textwrap import dedent

import pytest
from printed import BLOCK, PAGES, ROOT

import roll

PRINTED = [
    (page, dedent(text)) for page in PAGES for _, language, _, text in BLOCK.findall(page.read_text()) if language == "python"
]
ALGORITHM = ROOT / "examples/one_file.py"
"""It shows the inside, and says so."""
FILES = [
    path for folder in ("examples", "roll/cli/starter") for path in sorted((ROOT / folder).rglob("*.py")) if path != ALGORITHM
]
SOURCES = [*PRINTED, *((path, path.read_text()) for path in FILES)]
PRIVATE = re.compile(r"\b(?:from|import) +roll\.\w+")


def taken(text: str) -> set[str]:
    """Names that a piece of Python takes from this package, each with its module: `roll.core.data.sample.Sample`."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{name.name}" for name in node.names}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "roll":
            found.add(f"roll.{node.attr}")
    return {name for name in found if name.startswith("roll.")}


@pytest.mark.parametrize(("path", "text"), SOURCES, ids=lambda part: str(part.relative_to(ROOT)) if part in PAGES else "")
def test_python_takes_only_what_is_at_the_door(path, text):
    assert not taken(text) - {f"roll.{name}" for name in roll.__all__}, path


def test_what_is_looked_at_is_there():
    assert len(PRINTED) > 10 and len(FILES) > 15
    assert sum(bool(taken(text)) for _, text in SOURCES) > 15
    assert taken("import roll.core.data.sample") == {"roll.core.data.sample"} and taken("from roll.data import x") == {
        "roll.data.x"
    }


def test_no_sentence_tells_of_another_door():
    assert not [(page, found) for page in PAGES if (found := PRIVATE.findall(page.read_text()))]


def test_the_page_of_the_interface_has_every_name_of_the_door_once():
    page = (ROOT / "docs_roll/api.md").read_text()
    shown = re.findall(r"^::: (.*)$", page, re.MULTILINE)
    listed = re.findall(r"`([A-Z]\w+)`", page[page.index("Their blocks") : page.index("## Samples")])
    assert sorted([*(f"roll.{name}" for name in listed), *shown]) == [f"roll.{name}" for name in roll.__all__]
