"""Keeps a test from running in the tester's process what a solution has written: text, bytecode, or a pickle. It would be its own
judge.

What a test evaluates itself has to stand in it (`statements.runs_text`). What libraries do for it is heard of by Python's audit
events: names in pickles, code that is read or made from bytes, and code that comes from no file. What a library makes of names,
or while it is imported, runs.
"""

from __future__ import annotations

import marshal
import sys
import sysconfig
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

_LIBRARY = sysconfig.get_paths()["stdlib"]
_IMPORTING = "<frozen importlib._bootstrap"
_WRITERS = tuple(f"{_LIBRARY}/{name}" for name in ("collections/__init__.py", "dataclasses.py", "unittest/mock.py"))
"""Modules that make text of names, and run it."""
_PACKAGES = (
    "/site-packages/attr/_make.py",
    "/site-packages/networkx/utils/decorators.py",
    "/site-packages/torch/_dynamo/guards.py",
)
"""Modules of others that do so."""
_OWN = {
    ("/sympy/parsing/sympy_parser.py", "parse_expr"): "s",
    ("/jinja2/environment.py", "from_string"): "source",
}
"""Functions of packages, and which of their values is text that they run."""
_PICKLED = {
    "builtins": "bool bytearray bytes complex dict float frozenset int list object range set slice str tuple",
    "collections": "Counter OrderedDict defaultdict deque",
    "copyreg": "_reconstructor",
    "datetime": "date datetime time timedelta timezone",
    "decimal": "Decimal",
    "fractions": "Fraction",
    "uuid": "UUID",
    "roll.graders.sandbox.proxies": "_read_again",
}
"""Names that a pickle may contain: each only makes a value. Names of the solution's are proxies."""


def stand_guard(cannot: Callable[[str], None], own: frozenset[str], evaluates: bool) -> None:
    """Guards for good. `cannot` raises; `own`: texts that stand in the tests; `evaluates`: whether they run some of them."""

    def heard(event: str, given: tuple[Any, ...]) -> None:
        if event == "pickle.find_class":
            module, name = given
            if module != "solution" and name not in _PICKLED.get(module, "").split():
                cannot(f"read a pickle that names {module}.{name}")
        elif event == "marshal.load" or (event == "marshal.loads" and _has_code(given[0], sys._getframe(1))):
            cannot("read bytecode")
        elif event == "code.__new__" and sys._getframe(1).f_code.co_filename == "tests.py":
            cannot("make bytecode")
        elif event == "exec" and not _is_from_a_file(given[0]) and not _may_run(sys._getframe(1), own, evaluates):
            cannot("run text that does not stand in it")

    sys.addaudithook(heard)


def _has_code(written: bytes, reader: FrameType) -> bool:
    """True if marshal reads code from it, for another than the importer."""
    if reader.f_code.co_filename.startswith((_IMPORTING, __file__)):
        return False
    waiting, seen = [marshal.loads(written)], set[int]()
    while waiting:
        value = waiting.pop()
        if isinstance(value, CodeType):
            return True
        if isinstance(value, (tuple, list, set, frozenset, dict)) and id(value) not in seen:
            seen.add(id(value))
            waiting += [*value, *(value.values() if isinstance(value, dict) else ())]
    return False


def _is_from_a_file(code: CodeType) -> bool:
    return code.co_filename == "tests.py" or code.co_filename.startswith(("/", "<frozen "))


def _may_run(frame: FrameType | None, own: frozenset[str], evaluates: bool) -> bool:
    """True if the code that runs text writes it itself, or was given one of the test's."""
    caller = frame.f_code.co_filename if frame is not None else ""
    if caller in _WRITERS or caller.endswith(_PACKAGES):
        return True
    if caller == "tests.py":
        return evaluates
    while frame is not None and frame.f_code.co_filename != "tests.py":
        place, values = (frame.f_code.co_filename, frame.f_code.co_name), frame.f_locals
        if place == (f"{_LIBRARY}/timeit.py", "__init__"):
            return all(
                type(values[name]) is not str or values[name] in own | {"pass", "_stmt()", "_setup()"}
                for name in ("stmt", "setup")
            )
        if place == (f"{_LIBRARY}/typing.py", "_evaluate"):
            return values["self"].__forward_arg__ in own
        if place[0].startswith(_IMPORTING):
            return True
        for (file, name), text in _OWN.items():
            if place[0].endswith(file) and place[1] == name:
                return values[text] in own
        frame = frame.f_back
    return False
