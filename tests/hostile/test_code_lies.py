"""Solutions that would answer a test's questions in its place earn nothing; beside each, an honest one that passes the test."""

from __future__ import annotations

from typing import Any

import pytest
from code_samples import results, sample

STOPS = "def f(n): raise StopIteration"
OWN_STOP = "class Mine(StopIteration): pass\ndef f(n): raise Mine(n)"
STOPPING = "class A:\n    def __getattr__(self, name): raise StopIteration\n    def __getitem__(self, i): raise StopIteration\n"
CONTAINS = "class A:\n    def __contains__(self, item): return True\ndef f(*a): return A()"
LENGTH = (
    "class A:\n    looks = 0\n    def __len__(self): return 3\n    def __bool__(self): return True\n"
    "    def __iter__(self):\n        A.looks += 1\n        return iter([0, 0, 0] if A.looks == 1 else [])\ndef f(*a): return A()"
)
METHODS = (
    "class A:\n    def __getattr__(self, name): return lambda *a, **k: True\n    def __len__(self): return 1\n"
    "    def __iter__(self): return iter([])\n    def __contains__(self, item): return True\ndef f(*a): return A()"
)
CLAIMS = (
    "class f:\n    def __init__(self, *a): pass\n    def startswith(self, *a): return True\n    issubset = get = startswith\n"
)
DEFAULT = "class A:\n    def get(self, key, default=None): return default\ndef f(*a): return A()"
VECTOR = "class Vector:\n    def __init__(self, x): self.x = x\n"
FROM_SOLUTION = "from solution import Vector, f\nassert isinstance(Vector(1), Vector)\n"
POLY = '''import math
from typing import List

def poly(xs: list, x: float):
    """Evaluates the polynomial."""
    return sum(coefficient * math.pow(x, i) for i, coefficient in enumerate(xs))


def find_zero(xs: list):
    """Finds an x at which poly(xs, x) is 0."""
'''
CHECK = (
    "def check(candidate):\n    for xs in ([1, 2], [-6, 11, -6, 1]):\n        assert math.fabs(poly(xs, candidate(xs))) < 1e-4"
)
ZERO = POLY + (
    "    a, b = -1.0, 1.0\n    while poly(xs, a) * poly(xs, b) > 0: a, b = 2 * a, 2 * b\n"
    "    while b - a > 1e-10:\n        m = (a + b) / 2\n"
    "        if poly(xs, m) * poly(xs, a) > 0: a = m\n        else: b = m\n    return a\n"
)
HUMAN_EVAL = {"entry_point": "find_zero", "prompt": POLY, "canonical_solution": ZERO.replace(POLY, "")}
CASES: list[tuple[str, dict[str, Any], str, list[str]]] = [
    # (test, further columns, a solution that is right, solutions that lie)
    ("assert all(f(n) == n * n for n in range(1, 9))", {}, "def f(n): return n * n", [STOPS, OWN_STOP, STOPPING + STOPS]),
    ("assert not any(f(n) != n * n for n in range(1, 9))", {}, "def f(n): return n * n", [STOPS, OWN_STOP]),
    ("assert list(filter(lambda n: f(n) != n * n, range(9))) == []", {}, "def f(n): return n * n", [STOPS, OWN_STOP]),
    (
        "class Each:\n    def __iter__(self): return self\n    n = 0\n"
        "    def __next__(self):\n        self.n += 1\n        return f(self.n)\n"
        "for given, n in zip(Each(), range(1, 9)): assert given == n * n",
        {},
        "def f(n): return n * n",
        [STOPS, OWN_STOP],
    ),
    ("assert 'needle' in f('hay')", {}, "def f(x): return ['hay', 'needle']", [CONTAINS, METHODS, LENGTH]),
    ("assert (1, 2) in f() and (2, 1) in f()", {}, "def f(): return {(1, 2), (2, 1)}", [CONTAINS, METHODS]),
    (
        "r = f(); assert len(r) == 3 and all(a == b for a, b in zip(r, [4, 5, 6]))",
        {},
        "def f(): return [4, 5, 6]",
        [LENGTH, LENGTH.replace("return 3", "return 3.0"), METHODS],
    ),
    ("assert len(f()) == 1 and set(f()) <= {7}", {}, "def f(): return [7]", [METHODS, LENGTH]),
    ("assert f(8).startswith('ab')", {}, "def f(x): return 'abc'", [METHODS, CLAIMS]),
    ("assert f(8).issubset({1, 2, 3})", {}, "def f(x): return {1}", [METHODS, CLAIMS]),
    ("assert f(8).get('key', 'right') == 'right' and f(8) == {}", {}, "def f(x): return {}", [DEFAULT, METHODS, CLAIMS]),
    ("assert f(8).get(1, 2) == 2", {}, "def f(x): return {}", [DEFAULT]),
    (
        "def check(candidate): assert candidate(8).endswith('c')",
        {"entry_point": "f"},
        "def f(x): return 'abc'",
        [METHODS, CLAIMS],
    ),
    (
        FROM_SOLUTION + "assert f(8).startswith('ab')",
        {},
        VECTOR + "def f(x): return 'abc'",
        [VECTOR + "    def startswith(self, *a): return True\ndef f(x): return Vector(1)"],
    ),
    (
        CHECK,
        HUMAN_EVAL,
        ZERO,
        [POLY.replace("return sum", "return 0 and sum") + "    return 1.0", "def poly(*a): return 0\nfind_zero = poly"],
    ),
    (
        "def close(a, b): return abs(a - b) < 1e-6\nfrom solution import *\ndef test_f():\n    assert close(f(2), 4.0)",
        {},
        "def f(x): return x * 2.0",
        ["def f(x): return 9\ndef close(a, b): return True"],
    ),
]


def test_no_lie_passes_where_the_truth_does() -> None:
    given = [
        (test, row, source, right)
        for test, row, right_one, lies in CASES
        for source, right in [(right_one, True), *((lie, False) for lie in lies)]
    ]
    graded = results([sample(source, [test], **row) for test, row, source, _ in given])
    wrong = [case for case, result in zip(given, graded, strict=True) if (result.value, result.error) != (float(case[3]), None)]
    assert not wrong, (len(wrong), wrong[0])


CALLED = [
    # (what f returns for 4, what the data set expects)
    ("np.int64(x * 2)", 8),
    ("np.array([x, 2.5])", [4, 2.5]),
    ("[np.bool_(x > 3), np.float32(0.5)]", [True, 0.5]),
    ("Counter('aab')", {"a": 2, "b": 1}),
    ("OrderedDict(a=x)", {"a": 4}),
    ("namedtuple('P', 'x y')(x, 2)", [4, 2]),
    ("IntEnum('E', ['A', 'B']).B", 2),
]
ASKED = [
    # (what f returns, a test)
    ("np.int64(x)", "assert f(4) == 4 and isinstance(f(4), int) and f(4) in {4}"),
    ("np.arange(x)", "import numpy as np\nassert np.array_equal(f(3), [0, 1, 2]) and f(3).shape == (3,)"),
    ("Counter(x)", "assert f('aab') == {'a': 2, 'b': 1} and f('aab').most_common(1) == [('a', 2)]"),
    ("namedtuple('P', 'x y')(x, 2)", "assert f(1) == (1, 2) and f(1).y == 2 and (1, 2) in {f(1)}"),
    ("(n for n in range(x))", "assert list(f(3)) == [0, 1, 2] and sum(f(4)) == 6 and 2 in f(3)"),
    ("iter(range(x))", "g = f(2)\nassert next(g) == 0 and list(g) == [1]"),
    ("itertools.count(x)", "assert list(itertools.islice(f(3), 3)) == [3, 4, 5]"),
    ("x.keys()", "assert sorted(f({2: 1, 1: 1})) == [1, 2] and len(f({2: 1})) == 1 and 2 in f({2: 1})"),
    ("map(str, range(x))", "assert list(f(2)) == ['0', '1']"),
    ("lambda y: x + y", "assert f(2)(3) == 5"),
]
STACK = """class Stack:
    def __init__(self): self.items = []
    def push(self, x): self.items.append(x)
    def pop(self): return self.items.pop()
    def __len__(self): return len(self.items)
    def __contains__(self, x): return x in self.items
"""
NODES = """class Node:
    def __init__(self, v, next=None): self.v, self.next = v, next
def f(n):
    last = None
    while n: n.next, last, n = last, n, n.next
    return last
"""
CACHE = """class Cache:
    def __init__(self, n): self.d = {}
    def get(self, k): return self.d.get(k, -1)
    def put(self, k, v): self.d[k] = v
"""
CLASSES = [
    (STACK, "s = Stack()\ns.push(1); s.push(2)\nassert len(s) == 2 and 1 in s and s.pop() == 2 and len(s) == 1"),
    (NODES, "r = f(Node(1, Node(2)))\nassert r.v == 2 and r.next.v == 1 and r.next.next is None"),
    (CACHE, "c = Cache(2)\nc.put(1, 5)\nassert c.get(1) == 5 and c.get(2) == -1"),
]
RETURNS = "import numpy as np\nfrom collections import *\nfrom enum import IntEnum\nimport itertools\ndef f(x): return "
HONEST: list[tuple[str, Any]] = [
    *((RETURNS + value, {"fn_name": "f", "inputs": [[4]], "outputs": [expected]}) for value, expected in CALLED),
    *((RETURNS + value, [test]) for value, test in ASKED),
    *((source, [test]) for source, test in CLASSES),
]


def test_what_an_honest_solution_returns_is_compared_as_python_would() -> None:
    graded = results([sample(source, tests) for source, tests in HONEST])
    wrong = [(case, result) for case, result in zip(HONEST, graded, strict=True) if (result.value, result.error) != (1.0, None)]
    assert not wrong, (len(wrong), wrong[0])


def test_a_helper_that_only_the_solution_would_define_is_no_test() -> None:
    (result,) = results([sample(ZERO, [CHECK], entry_point="find_zero")])
    assert "check() uses poly, which only the solution would define" in (result.error or "")


@pytest.mark.parametrize("column", ["prompt", "solution"])
def test_a_reference_solution_does_not_stand_in_for_an_answer(column: str) -> None:
    row = {"entry_point": "find_zero", column: ZERO}
    graded = results([sample(source, [CHECK], **row) for source in (ZERO, "def find_zero(xs): return 7.0")])
    assert [result.value for result in graded] == [1.0, 0.0]
