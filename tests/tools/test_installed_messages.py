"""No message names a file that an installed package has not got."""

import ast
from pathlib import Path

import pytest

ROLL = Path(__file__).parents[2] / "roll"
ABSENT = ("docs_roll", "examples/", "requirements/", "make demo", "make env", "README", "tools/")
ALLOWED = {("cli/options.py", "examples/config")}
"""The default folder, which the package carries."""


def texts(path: Path) -> list[str]:
    """All string constants but docstrings: those of modules, classes and functions, and those below an attribute."""
    tree = ast.parse(path.read_text())
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare
    ]


@pytest.mark.parametrize("path", sorted(ROLL.rglob("*.py")), ids=lambda path: str(path.relative_to(ROLL)))
def test_no_message_names_a_file_of_the_checkout(path):
    name = path.relative_to(ROLL).as_posix()
    found = [text for text in texts(path) if any(part in text for part in ABSENT) and (name, text) not in ALLOWED]
    assert found == []
