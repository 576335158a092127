"""docs_roll/reading.md names files, classes and methods; they are there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs_roll" / "reading.md").read_text()
QUESTIONS = [line for line in PAGE.partition("## Twelve questions")[2].partition("##")[0].splitlines() if "`" in line]


def names(path):
    """Classes, functions and values of a module, and methods as Class.method."""
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        if isinstance(node, ast.ClassDef):
            yield from (
                f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
            )
        if isinstance(node, ast.Assign | ast.AnnAssign):
            yield from (each.id for each in ast.walk(node) if isinstance(each, ast.Name))


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`(roll/[\w/]+(?:\.py|/))`", PAGE))))
def test_every_file_and_folder_is_there(path):
    assert (ROOT / path).exists()


def test_the_lives_of_a_group_and_of_a_version_name_methods_that_are_there():
    told = re.findall(r"`([A-Z]\w+\.\w+)`", PAGE.partition("## The life of a group")[2].partition("## Twelve questions")[0])
    there = {name for path in (ROOT / "roll").rglob("*.py") for name in names(path.relative_to(ROOT))}
    assert len(told) > 12 and set(told) <= there, set(told) - there


def test_there_are_twelve_questions():
    assert len(QUESTIONS) == 12


@pytest.mark.parametrize("line", QUESTIONS)
def test_every_question_has_its_place(line):
    found = 0
    for path, place in re.findall(r"`(roll/[\w/]+\.py)`((?:[:,] `[A-Za-z_.]+`)*)", line.split("|")[2]):
        for name in re.findall(r"`([A-Za-z_.]+)`", place):
            assert name in set(names(path)), f"{name} is not in {path}"
            found += 1
    assert found or ".py`" in line


def test_the_rooms_are_those_of_the_package():
    there = {each.name for each in (ROOT / "roll").iterdir() if each.is_dir() and each.name != "__pycache__"}
    rooms = PAGE.partition("## The rooms")[2].partition("##")[0]
    assert there <= set(re.findall(r"`(\w+)`", rooms))
