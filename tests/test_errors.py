"""roll/core/errors.py names who raises an error and who catches it; they do. `boundary` tells what foreign code raises."""

import ast
import asyncio
import builtins
import re
import signal
import sys
from pathlib import Path

import pytest

from roll.core import errors

ROLL = Path(errors.__file__).parents[1]
TREES = {str(path.relative_to(ROLL)): ast.parse(path.read_text()) for path in sorted(ROLL.rglob("*.py"))}
CLASSES = {name: value for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
PLACES = re.findall(r"`([a-z_/]+(?:\.py|/))`", (ROLL / "core/errors.py").read_text())


def path_of(place):
    """A place in the core is named without it."""
    return f"core/{place}" if (ROLL / "core" / place).exists() else place


def names(*nodes):
    found = [each for node in nodes for each in ast.walk(node)]
    return {each.id for each in found if isinstance(each, ast.Name)} | {
        each.attr for each in found if isinstance(each, ast.Attribute)
    }


def caught(tree):
    """Names of the classes that a file catches, suppresses or tells apart."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and node.type is not None:
            found |= names(node.type)
        if isinstance(node, ast.Call) and names(node.func) & {"suppress", "isinstance"}:
            found |= names(*node.args)
    return found | ({each.__name__ for each in errors.LOST} if "LOST" in found else set())


def raised(tree):
    """Names of the classes that a file makes instances of, raises as they are, or lets a boundary raise."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            found |= names(node.func) | (names(*node.args[:1]) if "boundary" in names(node.func) else set())
        if isinstance(node, ast.Raise) and node.exc is not None:
            found |= names(node.exc)
    return found


RAISED, CAUGHT = ({path: find(tree) for path, tree in TREES.items()} for find in (raised, caught))


def elsewhere():
    """Exception classes outside of core/errors.py that one file raises and another catches by their name."""
    bases = {
        node.name: [ast.unparse(base) for base in node.bases]
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and path != "core/errors.py"
    }

    def is_error(name, seen=()):
        known = getattr(builtins, name, CLASSES.get(name))
        if isinstance(known, type) and issubclass(known, BaseException):
            return True
        return name not in seen and any(is_error(base, (*seen, name)) for base in bases.get(name, ()))

    for name in filter(is_error, bases):
        raising, catching = ({path for path in TREES if name in of[path]} for of in (RAISED, CAUGHT))
        if raising and catching and len(raising | catching) > 1:
            yield name


def test_an_error_that_crosses_files_stands_in_errors():
    assert list(elsewhere()) == ["ConfigError"]  # which core/errors.py says


@pytest.mark.parametrize("place", sorted(set(PLACES)))
def test_every_place_is_there(place):
    assert (ROLL / path_of(place)).exists()


@pytest.mark.parametrize("name", CLASSES)
def test_who_raises_and_catches_an_error_does(name):
    said = CLASSES[name].__doc__.partition("→")
    raising, catching = ([path_of(place) for place in re.findall(r"`([a-z_/]+\.py)`", part)] for part in (said[0], said[2]))
    assert raising or " as `" in CLASSES[name].__doc__.lower() or "same places" in CLASSES[name].__doc__
    assert [path for path in raising if name not in RAISED[path]] == []
    assert [path for path in catching if name not in CAUGHT[path]] == []


def test_errors_imports_nothing_of_the_project():
    assert not [
        node for node in ast.walk(TREES["core/errors.py"]) if isinstance(node, ast.ImportFrom) and "roll" in str(node.module)
    ]


@pytest.mark.parametrize("act", [lambda: {}["x"], lambda: next(iter(())), lambda: sys.exit(3)])
def test_what_foreign_code_raises_is_told_with_its_type_and_its_cause(act):
    with (
        pytest.raises(ValueError, match=r"^the grader fails: (KeyError: 'x'|StopIteration: |SystemExit: 3)$") as told,
        errors.boundary(ValueError, "the grader fails"),
    ):
        act()
    assert isinstance(told.value.__cause__, KeyError | StopIteration | SystemExit)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, errors.BackendLost])
def test_ctrl_c_and_our_own_errors_pass(kind):
    with pytest.raises(kind), errors.boundary(ValueError, "the grader fails", errors.BackendLost):
        raise kind


class Odd(BaseException):
    pass


ODD = [StopIteration, KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError, Odd]


@pytest.mark.parametrize("kind", ODD)
def test_what_foreign_code_raises_on_a_thread_is_an_error_whatever_it_is(kind):
    def call():
        raise kind("why")

    async def main():
        with pytest.raises(errors.Escaped) as told:
            await asyncio.wait_for(asyncio.to_thread(errors.contained, call), 30)
        assert errors.reason(told.value) == f"{kind.__name__}: why"

    asyncio.run(main())


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError, Odd])
def test_what_a_foreign_coroutine_raises_ends_neither_the_loop_nor_the_task(kind):
    """Where the run handles Ctrl-C itself, a KeyboardInterrupt is the foreign code's own."""

    async def foreign():
        raise kind("why")

    async def main():
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: None)
        with pytest.raises(errors.Escaped, match=f"{kind.__name__}: why"), errors.escapes():
            await foreign()

    asyncio.run(main())


def test_around_what_is_awaited_a_boundary_lets_cancellation_through():
    async def main():
        async def waits():
            with errors.boundary(ValueError, "the grader fails"):
                await asyncio.Event().wait()

        task = asyncio.create_task(waits())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
