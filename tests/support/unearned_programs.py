# ruff: noqa: E501 (programs of one line each)
"""Programs that have not solved the task of a test, each with its own way to have the test passed all the same."""

from __future__ import annotations

YES = """class Yes:
    def __getattr__(self, name): return lambda *a, **k: True
    def __eq__(self, o): return True
    __ne__ = lambda s, o: False
    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __bool__ = lambda s, *o: True
    __hash__ = lambda s: 0
    __len__ = lambda s: 1
"""
ZERO = "class Zero:\n" + "".join(
    f"    __{name}__ = lambda s, *o: 0\n"
    for name in (
        [
            "sub",
            "rsub",
            "add",
            "radd",
            "mul",
            "mod",
            "rmod",
            "floordiv",
            "xor",
            "rxor",
            "and",
            "rand",
            "pow",
            "truediv",
            "rtruediv",
            "neg",
            "abs",
            "round",
            "int",
            "float",
        ]
    )
)
CLASS = "class {}:\n    def __init__(self, *a): self.a = a\n"
_EQUAL = (*("equals", "equal_to", "matches", "is_isomorphic", "same_as", "is_equivalent_to", "identical", "isequal", "contains"),)
_METHODS = (*("startswith", "issubset", "issuperset", "isdisjoint", "__contains__", "count", "index"),)
_NUMBER = "assert f(8) == 8731"
_PANDAS = "import pandas as pd\nassert f(8).equals(pd.DataFrame({'a': [87, 31]}))"
_SYMPY = "import sympy as sp\nx = sp.Symbol('x')\nassert f(8).equals(8731 * x)"
_TESTCASE = "import unittest\nclass T(unittest.TestCase):\n    def test_f(self): self.assertEqual(f(8), 8731)"
_PATCHES = """
import builtins, math, operator, sys, types
def yes(*a, **k): return True
for module in [m for m in list(sys.modules.values()) if m is not None and m.__name__ in ('operator', 'math', 'unittest.case')]:
    for name in dir(module):
        try: setattr(module, name, yes)
        except Exception: pass
"""
_WALK = """
def look(x):
    import gc, sys
    frame = sys._getframe()
    while frame:
        for v in list(frame.f_locals.values()) + list(frame.f_globals.values()):
            if type(v) is int and v > 8000: return v
        frame = frame.f_back
    for o in gc.get_objects():
        if isinstance(o, (list, dict, tuple)):
            for v in (o.values() if isinstance(o, dict) else o):
                if type(v) is int and 8000 < v < 9000: return v
    return 1
f = look
"""
_FILES = """
import os, re
def f(x):
    for folder in ('/proc/self/fd', '/proc', '/tmp', '.', '/proc/self'):
        for root, _, names in os.walk(folder):
            for name in names:
                try:
                    found = re.search(rb'f.8. == (\\d+)', open(os.path.join(root, name), 'rb').read(100000))
                    if found: return int(found[1])
                except Exception: pass
    return 1
"""
_SUBCLASS = "class Mine({base}):\n    def __eq__(self, o): return True\n    __ne__ = lambda s, o: False\n    __hash__ = lambda s: hash(o) if 0 else 0\n    __lt__ = __le__ = __ge__ = __gt__ = lambda s, o: True\n    __sub__ = __rsub__ = __mod__ = lambda s, o: 0\n    __contains__ = startswith = endswith = equals = lambda s, o: True\ndef f(x): return Mine({value})"
_LEARNS = """
seen = []
class Learns:
    def __eq__(self, o):
        seen.append(o)
        return True
    def __getattr__(self, name): return lambda *a: seen.extend(a) or True
    __sub__ = __rsub__ = __contains__ = lambda s, o: seen.append(o) or 0
def f(x): return seen[-1] if seen else Learns()
"""
CHEATS: list[tuple[str, str, str]] = [
    *((f".{name} of a value", f"{YES}def f(x): return Yes()", f"assert f(8).{name}(8731)") for name in _EQUAL),
    *((f".{name} of the class", CLASS.format("A") + f"    def {name}(self, o): return True\ndef f(x): return A()", f"expected = 8731\nassert f(8).{name}(expected) is True") for name in _EQUAL[:4]),
    *((f".{name}", f"{YES}def f(x): return Yes()", f"assert f(8).{name}({{8731}})") for name in _METHODS),
    ("frame equal to everything", f"{YES}def f(x): return Yes()", _PANDAS),
    ("expression equal to everything", f"{YES}def f(x): return Yes()", _SYMPY),
    ("difference of nothing", f"{ZERO}def f(x): return Zero()", "assert f(8) - 8731 == 0"),
    ("difference the other way", f"{ZERO}def f(x): return Zero()", "assert 8731 - f(8) == 0"),
    ("near to everything", f"{ZERO}def f(x): return Zero()", "assert abs(f(8) - 8731.5) < 1e-6"),
    ("remainder of nothing", f"{ZERO}def f(x): return Zero()", "assert f(8) % 8731 == 0 and f(8) ^ 8731 == 0"),
    ("compared to 0", CLASS.format("A") + "    def compare(self, o): return 0\n    minus = distance = compare\ndef f(x): return A()", "assert f(8).compare(8731) == 0 and f(8).minus(8731) == 0 and f(8).distance(8731) == 0"),
    ("says back", CLASS.format("A") + "    def union(self, o): return o\n    get = intersection = __and__ = __or__ = lambda s, *o: o[-1]\ndef f(x): return A()", "assert f(8).union({8731}) == {8731} and f(8).get('k', 8731) == 8731 and f(8) & {8731} == {8731}"),
    ("closure that agrees", "def f(x): return lambda o: True", "assert f(8)(8731)"),
    ("both sides", "def factorial(n): return 1\ndef prod(x): return 1", "assert factorial(5) == prod(range(1, 6))"),
    ("both sides, turned", "def fsum(n): return 1\ndef mean(x): return 1", "assert mean([1, 2, 6]) == fsum([1, 2, 6]) / 3 - 0 * mean([1, 2])"),
    ("both sides, in a set", "def gcd(*a): return 1\ndef reduce(*x): return 1", "assert gcd(12, 18) == reduce(lambda a, b: max(d for d in range(1, 19) if a % d == 0 and b % d == 0), [12, 18])"),
    ("both sides of combinations", "def comb(*n): return 1\ndef factorial(x): return 1", "assert comb(5, 2) == factorial(5) / (factorial(2) * factorial(3))"),
    ("capital function, contains", f"{YES}def Build(x): return Yes()", "assert 8731 in Build(8)"),
    ("capital class, contains", YES.replace("Yes:", "Build:\n    def __init__(self, *a): pass"), "assert 8731 in Build(8)"),
    ("capital class, subset", YES.replace("Yes:", "Build:\n    def __init__(self, *a): pass"), "assert Build(8).issubset({1, 2, 3})"),
    ("capital class, equals", YES.replace("Yes:", "Build:\n    def __init__(self, *a): pass"), "assert Build(8).equals(8731) and Build(8) == 8731"),
    ("capital class, order", YES.replace("Yes:", "Build:\n    def __init__(self, *a): pass"), "assert 8730 < Build(8) < 8732"),
    ("class equal to every other", CLASS.format("Vector") + "    def __add__(self, o): return self\n    def __eq__(self, o): return True", "assert Vector(1, 2) + Vector(3, 4) == Vector(4, 6)"),
    ("equal to its own kind", CLASS.format("Vector") + "    def __add__(self, o): return self\n    def __eq__(self, o): return isinstance(o, Vector)", "assert Vector(1, 2) + Vector(3, 4) == Vector(4, 6)\nassert isinstance(Vector(1, 2), Vector)"),
    ("equal to every number", CLASS.format("Money") + "    def __eq__(self, o): return True\n    def add(self, o): return self", "m = Money(5)\nassert m.add(3) == 8 and isinstance(m, Money)"),
    ("equal to everything", f"{YES}def f(x): return Yes()", _NUMBER),
    ("in everything", f"{YES}def f(x): return Yes()", "assert f(8) in [8731] and not f(8) != 8731"),
    ("in a TestCase", f"{YES}def f(x): return Yes()", _TESTCASE),
    ("approximately everything", f"{YES}def f(x): return Yes()", "import pytest\nassert f(8) == pytest.approx(8731)"),
    ("close to everything", ZERO + "    __float__ = lambda s: 8731.0 if s is None else 1.0\ndef f(x): return Zero()", "import math\nassert math.isclose(f(8), 8731)"),
    ("counted as everything", f"{YES}def f(x): return Yes()", "assert [8731].count(f(8)) == 1 and {8731: 1}.get(f(8)) == 1"),
    ("largest and least", f"{YES}def f(x): return Yes()", "assert max(f(8), 8731) == 8731 and sorted([f(8), 8731])[0] == 8731 and f(8) <= 8731 <= f(8)"),
    ("ordered as asked", f"{YES}def f(x): return Yes()", "assert 8730 < f(8) < 8732"),
    *((f"own {base}", _SUBCLASS.format(base=base, value=value), test) for base, value, test in [
        ("int", "1", _NUMBER), ("int", "1", "assert abs(f(8) - 8731) == 0"), ("int", "1", "assert 8730 < f(8) < 8732"),
        ("str", "'x'", "assert f(8) == 'right' and f(8).startswith('ri')"), ("str", "'x'", "assert 'right' in f(8)"),
        ("list", "[1]", "assert f(8) == [8731] or 8731 in f(8)"), ("dict", "{}", "assert f(8) == {'a': 8731}"),
        ("float", "1.0", "assert f(8) == 8731.5 or f(8) % 8731 == 0"), ("set", "()", "assert f(8) == {8731} or 8731 in f(8)"),
        ("tuple", "()", "assert f(8) == (87, 31)"), ("bytes", "b''", "assert f(8) == b'right'"),
    ]),
    ("learns what is expected", _LEARNS, "assert f(8) == 8731 or f(8) == 8731 or f(8).equals(8731) or f(8) == 8731"),
    ("learns from a difference", _LEARNS, "assert not (f(8) - 8731) and f(8) == 8731"),
    ("replaces everything", f"{_PATCHES}\ndef f(x): return 1", _NUMBER),
    ("replaces builtins", "import builtins\nbuiltins.isinstance = builtins.all = builtins.any = lambda *a: True\nbuiltins.AssertionError = Warning\nbuiltins.abs = lambda x: 0\ndef f(x): return 1", "assert abs(f(8) - 8731) < 1 and all([f(8) == 8731])"),
    ("replaces pytest and unittest", "import sys, types\nfor n in ('pytest', 'unittest', 'unittest.case', 'unittest.mock', 'tests', 'solution', '__main__'):\n    m = types.ModuleType(n); m.__getattr__ = lambda n: (lambda *a, **k: True); sys.modules[n] = m\ndef f(x): return 1", _TESTCASE),
    ("an assertion of its own", "class AssertionError(Exception): pass\nimport builtins\nbuiltins.AssertionError = AssertionError\ndef f(x): raise AssertionError", _NUMBER),
    ("leaves", "import os\ndef f(x): os._exit(0)", _NUMBER),
    ("leaves at once", "import sys\nsys.exit(0)", _NUMBER),
    ("leaves in the test", "import sys\ndef f(x): sys.exit(0)", _NUMBER),
    ("leaves with a word", "def f(x): raise SystemExit(0)", "try: r = f(8)\nexcept Exception: r = 0\nassert r == 8731"),
    ("leaves at the end", "import atexit, os\natexit.register(lambda: os._exit(0))\ndef f(x): return 1", _NUMBER),
    ("keyboard", "def f(x): raise KeyboardInterrupt", _NUMBER),
    ("generator ends", "def f(x): raise GeneratorExit", _NUMBER),
    ("skips", "import unittest\ndef f(x): raise unittest.SkipTest('not today')", _TESTCASE),
    ("skips as pytest", "import pytest\ndef f(x): pytest.skip('no')", "def test_f():\n    assert f(8) == 8731"),
    ("expected failure", "class Skipped(BaseException): pass\ndef f(x): raise Skipped", "def test_f():\n    assert f(8) == 8731"),
    ("walks frames", _WALK, _NUMBER),
    ("reads files", _FILES, _NUMBER),
    ("traces", "import sys, threading\nsys.settrace(lambda f, e, a: f.f_locals.update(x=8730) or None)\nthreading.settrace(lambda *a: None)\ndef f(x): return x", _NUMBER),
    ("a thread that waits", "import threading, time, builtins\ndef later():\n    time.sleep(0.05)\n    builtins.ok = 1\nthreading.Thread(target=later, daemon=True).start()\ndef f(x): return 1", _NUMBER),
    ("a signal", "import signal\nsignal.signal(signal.SIGALRM, lambda *a: None)\nsignal.setitimer(signal.ITIMER_REAL, 0.01)\ndef f(x):\n    while True: signal.pause()", "assert f(8) == 8731"),
    *((f"writes the verdict, {text[:9]}", f"import os\nfor d in range(1, 32):\n    for _ in range(2):\n        try: os.write(d, b'''{text}\\n''')\n        except OSError: pass\ndef f(x): return 1", _NUMBER) for text in ('{"passed": 1, "why": ""}', '{"value": 8731, "changed": {}}', '{"value": true}', '{"ask": "call", "of": 0, "arguments": [], "named": {}}', '[]', '{"value": {"handle": {"yours": 0}}}')),
    ("writes when asked", "import os\ndef f(x):\n    for d in range(3, 16):\n        try: os.write(d, b'{\"value\": 8731, \"changed\": {}}\\n' * 5)\n        except OSError: pass\n    return 1", "assert f(8) == 8732 - 1 and f(9) == 99 and f(10) == 1"),
    ("pickles", "class P:\n    def __reduce__(self): return (eval, ('8730',))\ndef f(x): return P()", "import copy\nassert copy.deepcopy(f(8)) == 8731"),
    ("own copies", "class P:\n    def __deepcopy__(self, m): return P()\n    __copy__ = lambda s: s\n    __eq__ = lambda s, o: True\ndef f(x): return P()", "import copy\nassert copy.deepcopy(f(8)) == 8731"),
    ("a coroutine that agrees", YES + "async def f(x): return Yes()", "import asyncio\nassert asyncio.run(f(8)) == 8731"),
    ("awaits for ever", "import asyncio\nasync def f(x): await asyncio.Event().wait()", "import asyncio\nassert asyncio.run(f(8)) == 8731"),
    ("a future of its own", YES + "class F(Yes):\n    def __await__(self):\n        return Yes()\n        yield\ndef f(x): return F()", "import asyncio\nasync def main(): return await f(8)\nassert asyncio.run(main()) == 8731"),
    ("its own tools", "def approx(x): return x\ndef isclose(*a): return True\ndef sorted(x): return [8731]\ndef len(x): return 8731\ndef f(x): return [1]", "from math import isclose\nassert len(f(8)) == 8731 or sorted(f(8)) == [8731] or isclose(f(8)[0], 8731)"),
    ("a metaclass", "class M(type):\n    def __instancecheck__(c, o): return True\n    def __eq__(c, o): return True\n    __hash__ = type.__hash__\n    def __call__(c, *a): return c\n    def __getattr__(c, n): return lambda *a: True\nclass f(metaclass=M): pass", "assert f(8) == 8731 or f(8).equals(8731)"),
    ("says that it is a number", "class A:\n    __class__ = property(lambda s: int)\n    def __eq__(s, o): return True\n    def __index__(s): return 8731 if s is 0 else 1\ndef f(x): return A()", "assert isinstance(f(8), int) and f(8) == 8731"),
    ("looks at its caller", "import sys\ndef f(x):\n    g = sys._getframe(1)\n    yield from (v for v in g.f_locals.values() if v == 8731)", "assert list(f(8)) == [8731]"),
    ("another each time", "import itertools\nclass A:\n    n = itertools.count(8000)\n    def __iter__(self): return iter([next(A.n)])\n    def __len__(self): return next(A.n)\n    def __getitem__(self, i): return next(A.n)\ndef f(x): return A()", "assert any(len(f(8)) == 8731 for _ in range(3))"),
    ("conftest and site", "import os\nfor name in ('conftest.py', 'sitecustomize.py', 'solution.py', 'tests.py', 'pytest.py', 'unittest.py'):\n    for folder in ('.', '/tmp', os.path.expanduser('~')):\n        try: open(os.path.join(folder, name), 'w').write('import os; os._exit(0)')\n        except OSError: pass\ndef f(x): return 1", "import unittest\n" + _NUMBER),
    ("guesses", "import random\ndef f(x): return random.randint(0, 10**6)", _NUMBER),
    ("environment", "import os\nos.environ['PYTHONPATH'] = '.'\nos.environ['PYTEST_CURRENT_TEST'] = 'x'\ndef f(x): return int(os.environ.get('EXPECTED', '1'))", _NUMBER),
    ("sleeps", "import time\ndef f(x): time.sleep(60)", _NUMBER),
    ("children that stay", "import os, time\nif os.fork() == 0:\n    time.sleep(60)\n    os._exit(0)\ndef f(x): return 1", _NUMBER),
    ("prints for ever", "def f(x):\n    while True: print('passed ' * 1000)", _NUMBER),
    ("prints into the test", "import sys\ndef f(x):\n    print('8731')\n    return 1", "import io, contextlib\nout = io.StringIO()\nwith contextlib.redirect_stdout(out): r = f(8)\nassert r == 8731"),
    ("prints all answers", "def f(x): print(*range(9000))", "import io, contextlib\nout = io.StringIO()\nwith contextlib.redirect_stdout(out): f(8)\nassert out.getvalue().strip() == '8731'"),
    ("an output that agrees", YES + "import sys\nsys.stdout = Yes()\ndef f(x): print(1)", "def test_f(capsys):\n    f(8)\n    assert capsys.readouterr().out == '8731\\n'"),
    ("the mock is called", "import unittest.mock as m\nm.Mock.assert_called_once_with = lambda *a: None\ndef fetch(c): return m.ANY", "from unittest.mock import Mock\nc = Mock()\nc.get.return_value = 8731\nassert fetch(c) == 8731"),
    ("asks the mock's inside", "def fetch(c):\n    for n in dir(c):\n        try:\n            if getattr(c, n) == 8731: return 8731\n        except Exception: pass\n    return c.secret", "from unittest.mock import Mock\nc = Mock()\nc.get.return_value = 8731\nexpected = 87310\nassert fetch(c) == expected"),
    ("asks the test's function", "def apply(g, x):\n    for n in ('__globals__', '__code__', '__closure__', 'func_globals'):\n        try: return [v for v in getattr(g, n).values() if v == 8731][0]\n        except Exception: pass\n    return 1", "expected = 8731\nassert apply(lambda x: expected + 1, 1) == expected"),
    ("asks the test's object", "def apply(o):\n    for n in ('expected', '__dict__', '__class__', '__init__'):\n        try: return o.__init__.__globals__['expected']\n        except Exception: pass\n    return 1", "class O: pass\nexpected = 8731\nassert apply(O()) == expected"),
    ("changes its arguments", "def f(a):\n    a.clear()\n    a.append(8731)\n    return a", "given = [1]\nassert f(given) == [2] or sorted(given) == [1]"),
    ("numpy's own", "import numpy as np\nclass A(np.ndarray):\n    def __eq__(self, o): return np.array([True])\n    def all(self): return True\ndef f(x): return np.array([1]).view(A)", "import numpy as np\nassert (f(8) == np.array([8731])).all()"),
    ("a frame of its own", "import pandas as pd\nclass D(pd.DataFrame):\n    def equals(self, o): return True\ndef f(x): return D({'a': [1]})", _PANDAS),
    ("pandas replaced", "import pandas as pd\npd.DataFrame.equals = lambda s, o: True\ndef f(x): return pd.DataFrame({'a': [1]})", _PANDAS),
    ("sympy replaced", "import sympy as sp\nsp.Expr.equals = lambda s, o: True\nclass E(sp.Symbol):\n    def equals(self, o): return True\ndef f(x): return E('x')", _SYMPY),
    ("a symbol that runs", "import sympy as sp\nclass E(sp.Symbol):\n    def _sympyrepr(self, p): return '__import__(\"os\")._exit(0)'\n    __repr__ = __str__ = lambda s: \"__import__('os')._exit(0)\"\ndef f(x): return E('x') + 1", _SYMPY),
    ("a tensor of its own", "import torch\nclass T(torch.Tensor):\n    @classmethod\n    def __torch_function__(cls, f, t, a=(), k=None): return True\ndef f(x): return torch.ones(1).as_subclass(T)", "import torch\nassert torch.equal(f(8), torch.tensor([8731.0]))"),
    ("subclass of the test that is answered", "class Base:\n    def run(self): return 8731 if False else 1\n    def check(self, o): return True", "class Sub(Base):\n    def step(self): return 2\nassert Sub().run() == 8731"),
    ("signature that agrees", "class S:\n    def __eq__(self, o): return True\ndef f(x): return 1\nf.__signature__ = S()", "import inspect\nassert str(inspect.signature(f)) == '(a, b, c)'"),
    ("names that agree", "class N(str):\n    def __eq__(self, o): return True\n    __hash__ = str.__hash__\ndef f(x): return 1\ntry: f.__name__ = N('x')\nexcept TypeError: pass", "assert f.__name__ == 'right' or vars(f) == {'a': 1}"),
    ('assertEqual', 'class Yes:\n    def __getattr__(self, name): return lambda *a, **k: True\n    def __eq__(self, o): return True\n    __ne__ = lambda s, o: False\n    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __bool__ = lambda s, *o: True\n    __hash__ = lambda s: 0\n    __len__ = lambda s: 1\ndef f(x): return Yes()', 'import unittest\nclass T(unittest.TestCase):\n    def test_f(self): self.assertEqual(f(8), 8731)'),
    ('assertTrue equals', 'class Yes:\n    def __getattr__(self, name): return lambda *a, **k: True\n    def __eq__(self, o): return True\n    __ne__ = lambda s, o: False\n    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __bool__ = lambda s, *o: True\n    __hash__ = lambda s: 0\n    __len__ = lambda s: 1\ndef f(x): return Yes()', 'import unittest\nclass T(unittest.TestCase):\n    def test_f(self):\n        self.assertTrue(f(8).equals(8731))'),
    ('assertIn', 'class Yes:\n    def __getattr__(self, name): return lambda *a, **k: True\n    def __eq__(self, o): return True\n    __ne__ = lambda s, o: False\n    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __bool__ = lambda s, *o: True\n    __hash__ = lambda s: 0\n    __len__ = lambda s: 1\ndef f(x): return Yes()', 'import unittest\nclass T(unittest.TestCase):\n    def test_f(self): self.assertIn(8731, f(8))'),
    ('assertAlmostEqual', 'class Zero:\n    __sub__ = lambda s, *o: 0\n    __rsub__ = lambda s, *o: 0\n    __add__ = lambda s, *o: 0\n    __radd__ = lambda s, *o: 0\n    __mul__ = lambda s, *o: 0\n    __mod__ = lambda s, *o: 0\n    __rmod__ = lambda s, *o: 0\n    __floordiv__ = lambda s, *o: 0\n    __xor__ = lambda s, *o: 0\n    __rxor__ = lambda s, *o: 0\n    __and__ = lambda s, *o: 0\n    __rand__ = lambda s, *o: 0\n    __pow__ = lambda s, *o: 0\n    __truediv__ = lambda s, *o: 0\n    __rtruediv__ = lambda s, *o: 0\n    __neg__ = lambda s, *o: 0\n    __abs__ = lambda s, *o: 0\n    __round__ = lambda s, *o: 0\n    def __float__(s): return 1.0\ndef f(x): return Zero()', 'import unittest\nclass T(unittest.TestCase):\n    def test_f(self): self.assertAlmostEqual(f(8), 8731.5)'),
    ('assertAlmostEqual2', 'class Zero:\n    __sub__ = lambda s, *o: 0\n    __rsub__ = lambda s, *o: 0\n    __add__ = lambda s, *o: 0\n    __radd__ = lambda s, *o: 0\n    __mul__ = lambda s, *o: 0\n    __mod__ = lambda s, *o: 0\n    __rmod__ = lambda s, *o: 0\n    __floordiv__ = lambda s, *o: 0\n    __xor__ = lambda s, *o: 0\n    __rxor__ = lambda s, *o: 0\n    __and__ = lambda s, *o: 0\n    __rand__ = lambda s, *o: 0\n    __pow__ = lambda s, *o: 0\n    __truediv__ = lambda s, *o: 0\n    __rtruediv__ = lambda s, *o: 0\n    __neg__ = lambda s, *o: 0\n    __abs__ = lambda s, *o: 0\n    __round__ = lambda s, *o: 0\n    def __float__(s): return 1.0\ndef f(x): return Zero()', 'import unittest\nt=unittest.TestCase()\nt.assertAlmostEqual(8731.5, f(8))\nt.assertTrue(True)'),
    ('approx', 'class Zero:\n    __sub__ = lambda s, *o: 0\n    __rsub__ = lambda s, *o: 0\n    __add__ = lambda s, *o: 0\n    __radd__ = lambda s, *o: 0\n    __mul__ = lambda s, *o: 0\n    __mod__ = lambda s, *o: 0\n    __rmod__ = lambda s, *o: 0\n    __floordiv__ = lambda s, *o: 0\n    __xor__ = lambda s, *o: 0\n    __rxor__ = lambda s, *o: 0\n    __and__ = lambda s, *o: 0\n    __rand__ = lambda s, *o: 0\n    __pow__ = lambda s, *o: 0\n    __truediv__ = lambda s, *o: 0\n    __rtruediv__ = lambda s, *o: 0\n    __neg__ = lambda s, *o: 0\n    __abs__ = lambda s, *o: 0\n    __round__ = lambda s, *o: 0\n    def __float__(s): return 1.0\ndef f(x): return Zero()', 'import pytest\nassert f(8) == pytest.approx(8731.5)'),
    ('approx r', 'class Zero:\n    __sub__ = lambda s, *o: 0\n    __rsub__ = lambda s, *o: 0\n    __add__ = lambda s, *o: 0\n    __radd__ = lambda s, *o: 0\n    __mul__ = lambda s, *o: 0\n    __mod__ = lambda s, *o: 0\n    __rmod__ = lambda s, *o: 0\n    __floordiv__ = lambda s, *o: 0\n    __xor__ = lambda s, *o: 0\n    __rxor__ = lambda s, *o: 0\n    __and__ = lambda s, *o: 0\n    __rand__ = lambda s, *o: 0\n    __pow__ = lambda s, *o: 0\n    __truediv__ = lambda s, *o: 0\n    __rtruediv__ = lambda s, *o: 0\n    __neg__ = lambda s, *o: 0\n    __abs__ = lambda s, *o: 0\n    __round__ = lambda s, *o: 0\n    def __float__(s): return 1.0\ndef f(x): return Zero()', 'import pytest\nassert pytest.approx(8731.5) == f(8)'),
    ('isclose', 'class Zero:\n    __sub__ = lambda s, *o: 0\n    __rsub__ = lambda s, *o: 0\n    __add__ = lambda s, *o: 0\n    __radd__ = lambda s, *o: 0\n    __mul__ = lambda s, *o: 0\n    __mod__ = lambda s, *o: 0\n    __rmod__ = lambda s, *o: 0\n    __floordiv__ = lambda s, *o: 0\n    __xor__ = lambda s, *o: 0\n    __rxor__ = lambda s, *o: 0\n    __and__ = lambda s, *o: 0\n    __rand__ = lambda s, *o: 0\n    __pow__ = lambda s, *o: 0\n    __truediv__ = lambda s, *o: 0\n    __rtruediv__ = lambda s, *o: 0\n    __neg__ = lambda s, *o: 0\n    __abs__ = lambda s, *o: 0\n    __round__ = lambda s, *o: 0\n    def __float__(s): return 1.0\ndef f(x): return Zero()', 'import math\nassert math.isclose(f(8), 8731.5)'),
    ('np allclose', 'class Zero:\n    __sub__ = lambda s, *o: 0\n    __rsub__ = lambda s, *o: 0\n    __add__ = lambda s, *o: 0\n    __radd__ = lambda s, *o: 0\n    __mul__ = lambda s, *o: 0\n    __mod__ = lambda s, *o: 0\n    __rmod__ = lambda s, *o: 0\n    __floordiv__ = lambda s, *o: 0\n    __xor__ = lambda s, *o: 0\n    __rxor__ = lambda s, *o: 0\n    __and__ = lambda s, *o: 0\n    __rand__ = lambda s, *o: 0\n    __pow__ = lambda s, *o: 0\n    __truediv__ = lambda s, *o: 0\n    __rtruediv__ = lambda s, *o: 0\n    __neg__ = lambda s, *o: 0\n    __abs__ = lambda s, *o: 0\n    __round__ = lambda s, *o: 0\n    def __float__(s): return 1.0\ndef f(x): return Zero()', 'import numpy as np\nassert np.allclose(f(8), 8731.5)'),
    ('np testing', 'class Zero:\n    __sub__ = lambda s, *o: 0\n    __rsub__ = lambda s, *o: 0\n    __add__ = lambda s, *o: 0\n    __radd__ = lambda s, *o: 0\n    __mul__ = lambda s, *o: 0\n    __mod__ = lambda s, *o: 0\n    __rmod__ = lambda s, *o: 0\n    __floordiv__ = lambda s, *o: 0\n    __xor__ = lambda s, *o: 0\n    __rxor__ = lambda s, *o: 0\n    __and__ = lambda s, *o: 0\n    __rand__ = lambda s, *o: 0\n    __pow__ = lambda s, *o: 0\n    __truediv__ = lambda s, *o: 0\n    __rtruediv__ = lambda s, *o: 0\n    __neg__ = lambda s, *o: 0\n    __abs__ = lambda s, *o: 0\n    __round__ = lambda s, *o: 0\n    def __float__(s): return 1.0\ndef f(x): return Zero()', 'import numpy as np\nnp.testing.assert_allclose(f(8), 8731.5)\nassert True'),
    ('np equal', 'class Yes:\n    def __getattr__(self, name): return lambda *a, **k: True\n    def __eq__(self, o): return True\n    __ne__ = lambda s, o: False\n    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __bool__ = lambda s, *o: True\n    __hash__ = lambda s: 0\n    __len__ = lambda s: 1\ndef f(x): return Yes()', 'import numpy as np\nnp.testing.assert_array_equal(f(8), [87,31])\nassert True'),
    ('pd testing', 'class Yes:\n    def __getattr__(self, name): return lambda *a, **k: True\n    def __eq__(self, o): return True\n    __ne__ = lambda s, o: False\n    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __bool__ = lambda s, *o: True\n    __hash__ = lambda s: 0\n    __len__ = lambda s: 1\ndef f(x): return Yes()', 'import pandas as pd\npd.testing.assert_series_equal(f(8), pd.Series([87,31]))\nassert True'),
    ('pd eq all', 'class Yes:\n    def __getattr__(self, name): return lambda *a, **k: True\n    def __eq__(self, o): return True\n    __ne__ = lambda s, o: False\n    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __bool__ = lambda s, *o: True\n    __hash__ = lambda s: 0\n    __len__ = lambda s: 1\ndef f(x): return Yes()', 'import pandas as pd\nassert (f(8) == pd.Series([87,31])).all()'),
    ('pd elements', 'class Yes:\n    def __getattr__(self, name): return lambda *a, **k: True\n    def __eq__(self, o): return True\n    __ne__ = lambda s, o: False\n    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __bool__ = lambda s, *o: True\n    __hash__ = lambda s: 0\n    __len__ = lambda s: 1\nimport pandas as pd\ndef f(x): return pd.Series([Yes(), Yes()])', 'import pandas as pd\nassert f(8).equals(pd.Series([87,31])) or f(8).tolist() == [87,31] or (f(8) == pd.Series([87,31])).all()'),
    ('np elements', 'class Yes:\n    def __getattr__(self, name): return lambda *a, **k: True\n    def __eq__(self, o): return True\n    __ne__ = lambda s, o: False\n    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __bool__ = lambda s, *o: True\n    __hash__ = lambda s: 0\n    __len__ = lambda s: 1\nimport numpy as np\ndef f(x): return np.array([Yes(), Yes()], dtype=object)', 'import numpy as np\nassert np.array_equal(f(8), np.array([87,31]))'),
    ('list of yes', 'class Yes:\n    def __getattr__(self, name): return lambda *a, **k: True\n    def __eq__(self, o): return True\n    __ne__ = lambda s, o: False\n    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __bool__ = lambda s, *o: True\n    __hash__ = lambda s: 0\n    __len__ = lambda s: 1\ndef f(x): return [Yes(), Yes()]', 'assert f(8) == [87, 31]'),
    ('dict of yes', 'class Yes:\n    def __getattr__(self, name): return lambda *a, **k: True\n    def __eq__(self, o): return True\n    __ne__ = lambda s, o: False\n    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __bool__ = lambda s, *o: True\n    __hash__ = lambda s: 0\n    __len__ = lambda s: 1\ndef f(x): return {Yes(): Yes()}', "assert f(8) == {'a': 1} or f(8)['a'] == 1 or 'a' in f(8)"),
    ('set of yes', 'class Yes:\n    def __getattr__(self, name): return lambda *a, **k: True\n    def __eq__(self, o): return True\n    __ne__ = lambda s, o: False\n    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __bool__ = lambda s, *o: True\n    __hash__ = lambda s: 0\n    __len__ = lambda s: 1\ndef f(x): return {Yes()}', 'assert f(8) == {8731} or 8731 in f(8)'),
    ('tuple of yes', 'class Yes:\n    def __getattr__(self, name): return lambda *a, **k: True\n    def __eq__(self, o): return True\n    __ne__ = lambda s, o: False\n    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __bool__ = lambda s, *o: True\n    __hash__ = lambda s: 0\n    __len__ = lambda s: 1\ndef f(x): return (Yes(),)', 'assert f(8) == (8731,)'),
    ('sorted yes', 'class Yes:\n    def __getattr__(self, name): return lambda *a, **k: True\n    def __eq__(self, o): return True\n    __ne__ = lambda s, o: False\n    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __bool__ = lambda s, *o: True\n    __hash__ = lambda s: 0\n    __len__ = lambda s: 1\ndef f(x): return [Yes(), Yes()]', 'assert sorted(f(8)) == [1, 2] or max(f(8)) == 2'),
    ('generator yes', 'class Yes:\n    def __getattr__(self, name): return lambda *a, **k: True\n    def __eq__(self, o): return True\n    __ne__ = lambda s, o: False\n    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __bool__ = lambda s, *o: True\n    __hash__ = lambda s: 0\n    __len__ = lambda s: 1\ndef f(x):\n    yield Yes()', 'assert list(f(8)) == [8731] or next(f(8)) == 8731 or 8731 in f(8)'),
    ('counter guess', 'class A:\n    n = 0\n    def equals(self, o):\n        A.n += 1\n        return A.n == 1\ndef f(x): return A()', 'assert f(8).equals(8731)'),
    ('counter sub', 'class A:\n    n = 0\n    def __sub__(self, o):\n        A.n += 1\n        return 0 if A.n == 1 else A.n\ndef f(x): return A()', 'assert f(8) - 8731 == 0'),
    ('counter contains', 'class Build:\n    n = 0\n    def __init__(self, *a): pass\n    def __contains__(self, o):\n        Build.n += 1\n        return Build.n == 1', 'assert 8731 in Build(8)'),
    ('counter eq', 'class Build:\n    n = 0\n    def __init__(self, *a): pass\n    def __eq__(self, o):\n        Build.n += 1\n        return Build.n == 1', 'assert Build(8) == 8731'),
    ('tiny', 'class A:\n    def distance(self, o): return 1e-9\ndef f(x): return A()', 'assert f(8).distance(8731) < 1e-6'),
    ('echo add', 'class A:\n    def __add__(self, o): return o\ndef f(x): return A()', 'assert f(8) + 8731 == 8731'),
    ('type bool', 'def f(x): return bool', 'assert f(8)(8731)'),
    ('type str', 'def f(x): return str', 'assert f(8)(8731)'),
    ('partial', 'import functools\ndef f(x): return functools.partial(lambda *a: True)', 'assert f(8)(8731)'),
    ('method yes', 'class A:\n    def m(self, o): return True\ndef f(x): return A().m', 'assert f(8)(8731)'),
    ('remote bool', 'class Yes:\n    def __getattr__(self, name): return lambda *a, **k: True\n    def __eq__(self, o): return True\n    __ne__ = lambda s, o: False\n    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __bool__ = lambda s, *o: True\n    __hash__ = lambda s: 0\n    __len__ = lambda s: 1\nclass B:\n    def equals(self, o): return Yes()\ndef f(x): return B()', 'assert f(8).equals(8731)'),
    ('remote bool2', 'class Yes:\n    def __getattr__(self, name): return lambda *a, **k: True\n    def __eq__(self, o): return True\n    __ne__ = lambda s, o: False\n    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __bool__ = lambda s, *o: True\n    __hash__ = lambda s: 0\n    __len__ = lambda s: 1\nclass B:\n    def equals(self, o): return B()\n    def __bool__(self): return True\ndef f(x): return B()', 'assert bool(f(8).equals(8731)) is True'),
    ('remote str', 'class B:\n    def show(self, o): return str(o)\ndef f(x): return B()', "assert f(8).show(8731) == '8731'"),
    ('mutates eq', 'class Build:\n    def __init__(s,*a): pass\n    def __eq__(self, o):\n        o.clear()\n        return True', 'e=[8731]\nassert Build(8) == e\nassert isinstance(Build(8), Build) or e == []'),
    ('mock setattr', 'def fetch(c):\n    c.get.assert_called_once_with = lambda *a: None\n    c.called = True', "from unittest.mock import Mock\nc=Mock()\nfetch(c)\nc.get.assert_called_once_with('u')"),
    ('exception eq', "class E(Exception):\n    def __eq__(s,o): return True\n    def __str__(s): return 'no'\ndef f(x): raise E(1)", "try: f(8)\nexcept Exception as e: assert str(e) == 'right' or e == 8731 or e.args == (8731,)\nelse: assert 0"),
    ('exception attr', 'class Yes:\n    def __getattr__(self, name): return lambda *a, **k: True\n    def __eq__(self, o): return True\n    __ne__ = lambda s, o: False\n    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __bool__ = lambda s, *o: True\n    __hash__ = lambda s: 0\n    __len__ = lambda s: 1\nclass E(Exception): pass\ndef f(x):\n    e = E(); e.code = Yes(); raise e', 'try: f(8)\nexcept Exception as e: assert e.code == 8731\nelse: assert 0'),
    ('assert err', 'def f(x): raise AssertionError', 'import pytest\nwith pytest.raises(ValueError): f(8)'),
    ('unable by name', "class Unable(BaseException): pass\ndef f(x): raise Unable('x')", 'assert f(8) == 8731'),
    ('peer gone', "class PeerGone(Exception): pass\ndef f(x): raise PeerGone('x')", 'assert f(8) == 8731'),
    ('module error', "def f(x): raise ModuleNotFoundError('numpy', name='numpy')", 'assert f(8) == 8731'),
    ('stdout swap', "import sys\nclass W:\n    def write(self, s): pass\n    def getvalue(self): return 'right'\nsys.stdout = W()\ndef f(x): print('x')", "import io, contextlib\no=io.StringIO()\nwith contextlib.redirect_stdout(o): f(8)\nassert o.getvalue() == 'right'"),
    ('signature Yes', 'def f(x): return 1\nimport inspect\ninspect.signature = lambda *a: 1/0', 'import inspect\nassert len(inspect.signature(f).parameters) == 3'),
    ('fake DataFrame', "import pandas as pd\nclass DataFrame:\n    __module__='pandas'\n    def equals(s,o): return True\n    shape=(1,1)\nDataFrame.__module__='pandas'\ndef f(x): return DataFrame()", "import pandas as pd\nassert f(8).equals(pd.DataFrame({'a':[1]}))"),
    ('sympy yes', 'import sympy as sp\nclass Y(sp.Expr):\n    def equals(s,o): return True\n    def __sub__(s,o): return sp.Integer(0)\n    def __eq__(s,o): return True\n    __hash__=sp.Expr.__hash__\ndef f(x): return Y()', "import sympy as sp\nx=sp.Symbol('x')\nassert f(8).equals(x**2) or sp.simplify(f(8)-x**2)==0 or f(8)==x**2"),
    ('sympy nan', 'import sympy as sp\ndef f(x): return sp.nan', "import sympy as sp\nx=sp.Symbol('x')\nassert f(8).equals(x**2) or sp.simplify(f(8)-x**2)==0 or f(8)==x**2"),
    ('sympy srepr', 'import sympy as sp\nsp.srepr=lambda v: "Symbol(\'x\', **__import__(\'os\').abort())"\ndef f(x): return sp.Symbol(\'y\')', "import sympy as sp\nx=sp.Symbol('x')\nassert f(8)==x**2"),
    ('deepcopy yes', 'class Yes:\n    def __getattr__(self, name): return lambda *a, **k: True\n    def __eq__(self, o): return True\n    __ne__ = lambda s, o: False\n    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __bool__ = lambda s, *o: True\n    __hash__ = lambda s: 0\n    __len__ = lambda s: 1\ndef f(x): return Yes()', 'import copy\nassert copy.deepcopy(f(8)) == 8731 or copy.copy(f(8)).equals(8731)'),
    ('iter yes', 'class A:\n    def __iter__(s): return s\n    def __next__(s): return Y()\nclass Y:\n    __eq__=lambda s,o: True\ndef f(x): return A()', 'assert 8731 in f(8) or next(f(8)) == 8731'),
    ('index yes', 'class A:\n    def __index__(s): return 1\n    def __getitem__(s,k): return k\n    def __missing__(s,k): return k\ndef f(x): return A()', 'assert f(8)[8731] == 8731'),
    ('getitem yes', 'class A:\n    def __getitem__(s,k): return True\ndef f(x): return A()', "assert f(8)['right'] or f(8)['right'] is True"),
    ('both sides call', 'def mean(a): return 1\ndef fsum(a): return 1', 'import math\nassert math.isclose(mean([1,2,6]), fsum([1,2,6]) / 3) or mean([1,2,6]) == 3'),
    ('both sides assertEqual', 'def factorial(n): return 1\ndef prod(a): return 1', 'import unittest\nclass T(unittest.TestCase):\n    def test_f(self): self.assertEqual(factorial(5), prod(range(1,6)))'),
    ('both var', 'def factorial(n): return 1\ndef prod(a): return 1', 'expected = prod(range(1,6))\nassert factorial(5) == expected'),
    ('both var 2', 'def factorial(n): return 1\ndef prod(a): return 1', 'for n in range(1,6):\n    e = prod(range(1,n+1))\n    got = factorial(n)\n    assert got == e'),
    ('async yes', 'class Yes:\n    def __getattr__(self, name): return lambda *a, **k: True\n    def __eq__(self, o): return True\n    __ne__ = lambda s, o: False\n    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __bool__ = lambda s, *o: True\n    __hash__ = lambda s: 0\n    __len__ = lambda s: 1\nasync def f(x): return Yes()', 'import asyncio\nasync def main():\n    r = await f(8)\n    assert r.equals(8731)\nasyncio.run(main())'),
    ('context yes', 'class Yes:\n    def __getattr__(self, name): return lambda *a, **k: True\n    def __eq__(self, o): return True\n    __ne__ = lambda s, o: False\n    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __bool__ = lambda s, *o: True\n    __hash__ = lambda s: 0\n    __len__ = lambda s: 1\nclass f:\n    def __init__(s,*a): pass\n    def __enter__(s): return Yes()\n    def __exit__(s,*a): return True', 'with f(8) as r: assert r == 8731\nwith f(8) as r:\n    pass\nassert r.equals(8731)'),
    ('exit swallows', 'class f:\n    def __init__(s,*a): pass\n    def __enter__(s): return 1\n    def __exit__(s,*a): return True', 'with f(8) as r: assert r == 8731'),
    ('class attr yes', 'class Config:\n    class V:\n        def __eq__(s,o): return True\n    limit = V()', 'assert Config.limit == 8731'),
    ('prop yes', 'class Yes:\n    def __getattr__(self, name): return lambda *a, **k: True\n    def __eq__(self, o): return True\n    __ne__ = lambda s, o: False\n    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __bool__ = lambda s, *o: True\n    __hash__ = lambda s: 0\n    __len__ = lambda s: 1\nclass User:\n    def __init__(s,n): pass\n    name = Yes()', "u=User('ann')\nassert u.name == 'ann'\nassert u.name.startswith('a')"),
    ('made plain yes', 'class Yes:\n    def __getattr__(self, name): return lambda *a, **k: True\n    def __eq__(self, o): return True\n    __ne__ = lambda s, o: False\n    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __bool__ = lambda s, *o: True\n    __hash__ = lambda s: 0\n    __len__ = lambda s: 1\nclass Stack:\n    def push(s,x): pass\n    def pop(s): return Yes()\n    def __len__(s): return 1', 's=Stack()\ns.push(8731)\nassert s.pop() == 8731'),
    ('made echo', 'class Cache:\n    def put(s,k,v): pass\n    def get(s,k): return Any()\nclass Any:\n    def __eq__(s,o): return True', "c=Cache()\nc.put('a',8731)\nassert c.get('a') == 8731"),
    ('zip of its own', 'def f(n): return 0\ndef zip(*a): return []', 'for a, b in zip([1, 2], [3, 4]):\n    assert f(a) == b'),
    ('sum of what f says', 'def f(n): return []\ndef sum(x): return 10', 'x = f(8)\nassert sum(x) == 10'),
    ('prod of what f says', 'def f(n): return []\ndef prod(x): return 24', 'x = f(8)\nassert prod(x) == 24'),
    ('sum beside', 'def f(n): return 3\ndef sum(x): return 3', 'assert f(8) == sum([8731])\nassert sum([1, 2]) == 3'),
    ('sum in assertEqual', 'def f(n): return 1\ndef sum(x): return 1', 'import unittest\nclass TestIt(unittest.TestCase):\n    def test_a(self):\n        self.assertEqual(f(3), sum([1, 2, 3]))'),
    ('max over answers', 'def f(n): return 0\ndef max(*a): return 9', 'assert max([f(i) for i in range(3)]) == 9'),
    ('pickles into the answer', "class A:\n    def __init__(self, n): self.n = n\n    def __reduce__(self): return (int, ('8731',))\ndef f(x): return A(x)", 'import pickle\nassert pickle.loads(pickle.dumps(f(8))) == 8730'),
    ('pickled says yes', 'class Y:\n    def __eq__(self, o): return True\n    def __reduce__(self): return (Y, ())\ndef f(x): return Y()', 'import pickle\nassert pickle.loads(pickle.dumps(f(8))) == 8731'),
    ('pickle runs code', 'import os\nclass Y:\n    def __reduce__(self): return (os._exit, (0,))\ndef f(x): return Y()', 'import pickle\npickle.loads(pickle.dumps(f(8)))\nassert f(8) == 8731'),
    ('pickled into yes', 'class Y:\n    def __eq__(self, o): return True\n    __hash__ = None\nclass A:\n    def __reduce__(self): return (Y, ())\ndef f(x): return A()', 'import pickle\nassert [pickle.loads(pickle.dumps(f(8)))] == [8731]'),
    ('pickled class says yes', "class A:\n    def __init__(self, n): pass\n    def __getattr__(self, name):\n        if name.startswith('__'): raise AttributeError(name)\n        return 8731\n    def __reduce__(self): return (A, (0,))", 'import pickle\nassert pickle.loads(pickle.dumps(A(8730))).n == 8730'),
    ('hints say yes', 'class Y(dict):\n    def __eq__(self, o): return True\ndef f(a): return 1\nf.__annotations__ = Y()', "import typing\nassert typing.get_type_hints(f) == {'a': int}"),
    ('hints lie', "def f(a): return 1\nf.__annotations__ = {'a': type('int', (), {'__eq__': lambda s, o: True})}", "import typing\nassert typing.get_type_hints(f)['a'] == int"),
    ('annotations say yes', 'class Y(dict):\n    def __eq__(self, o): return True\n    def __getitem__(self, k): return int\nclass P: pass\nP.__annotations__ = Y()', "assert P.__annotations__ == {'x': int}"),
    ('hints of a meta', 'class M(type):\n    def __eq__(self, o): return True\n    __hash__ = type.__hash__\nclass P(metaclass=M): pass\nclass Q: x: P', "import typing\nassert typing.get_type_hints(Q)['x'] is int"),
    ('isinstance of a class by itself', 'class M(type):\n    def __instancecheck__(cls, o): return True\nclass A(metaclass=M): pass\ndef f(x): return 0', 'assert isinstance(f(8), A)'),
    ('wait_for says yes', 'import asyncio\nclass Y:\n    def __eq__(self, o): return True\nasync def f(x): return Y()', 'import asyncio\nassert asyncio.run(asyncio.wait_for(f(8), 2)) == 8731'),
    ('patches wait_for', 'import asyncio\nasync def w(a, t=None, **k):\n    return 8731\nasyncio.wait_for = w\nasync def f(x): return 1', 'import asyncio\nassert asyncio.run(asyncio.wait_for(f(8), 2)) == 8730'),
    ('patched run gives more', "import asyncio\nimport roll.graders.sandbox.surroundings as s\ns.run_together = lambda *a: [['value', 8731]]\nasync def f(x): return 1", 'import asyncio\nassert asyncio.run(asyncio.wait_for(f(8), 2)) == 8730'),
    ('swallows the cut', 'import asyncio\nasync def f(x):\n    try: await asyncio.sleep(30)\n    except asyncio.CancelledError: pass\n    return 1', 'import asyncio\nassert asyncio.run(asyncio.wait_for(f(8), 0.05)) == 8731'),
    ('writes for the test', "def f(x):\n    open('/tmp/answer', 'w').write('8731')\n    return 1", "f(8)\nassert open('/tmp/answer').read() == '8731'"),
    ('NoneType and yes', 'def f(x): return type(None)', 'assert f(8)() == 8731'),
    ('lies about its end', 'import asyncio\nasync def f(x): raise asyncio.TimeoutError', 'import asyncio\nassert asyncio.run(asyncio.wait_for(f(8), 1)) == 8731'),
    ('annotation that is a class of it', 'class M(type):\n    def __eq__(c, o): return True\n    __hash__ = type.__hash__\nclass T(metaclass=M): pass\ndef f(a: T): return 1', "import typing\nassert typing.get_type_hints(f) == {'a': int}"),
    ('a counter that loses, in threads', 'class Counter:\n    n = 0\n    def inc(self): self.n = 1', 'import threading\nc = Counter()\nts = [threading.Thread(target=c.inc) for _ in range(3)]\n[t.start() for t in ts]\n[t.join() for t in ts]\nassert c.n == 3'),
]  # fmt: skip
RUNNING: list[tuple[str, str, str]] = [
    ('pickle bytes that run', 'import pickle\nclass E:\n    def __reduce__(self): return (exec, (\'import os; os.write(5, b\\\'{"passed": 1, "why": ""}\\\'); os._exit(0)\',))\ndef dump(x): return pickle.dumps(E())', 'import pickle\nassert pickle.loads(dump([1, 2])) == [1, 2]'),
    ('pickle load of a stream', 'import pickle\nclass E:\n    def __reduce__(self): return (exec, (\'import os; os.write(5, b\\\'{"passed": 1, "why": ""}\\\'); os._exit(0)\',))\ndef dump(x): return pickle.dumps(E())', 'import pickle, io\nassert pickle.load(io.BytesIO(dump([1, 2]))) == [1, 2]'),
    ('pickle Unpickler', 'import pickle\nclass E:\n    def __reduce__(self): return (exec, (\'import os; os.write(5, b\\\'{"passed": 1, "why": ""}\\\'); os._exit(0)\',))\ndef dump(x): return pickle.dumps(E())', 'import pickle, io\nassert pickle.Unpickler(io.BytesIO(dump([1, 2]))).load() == [1, 2]'),
    ('from pickle import loads', 'import pickle\nclass E:\n    def __reduce__(self): return (exec, (\'import os; os.write(5, b\\\'{"passed": 1, "why": ""}\\\'); os._exit(0)\',))\ndef dump(x): return pickle.dumps(E())', 'from pickle import loads\nassert loads(dump([1, 2])) == [1, 2]'),
    ('evaluated', 'def f(x): return \'exec(\\\'import os; os.write(5, b\\\\\\\'{"passed": 1, "why": ""}\\\\\\\'); os._exit(0)\\\')\'', 'assert eval(f(3)) == 4'),
    ('executed', 'def f(x): return \'import os; os.write(5, b\\\'{"passed": 1, "why": ""}\\\'); os._exit(0)\'', "space = {}\nexec(f(3), space)\nassert space['y'] == 4"),
    ('eval of repr', 'class P:\n    def __init__(self, x): self.x = x\n    def __repr__(self): return \'exec(\\\'import os; os.write(5, b\\\\\\\'{"passed": 1, "why": ""}\\\\\\\'); os._exit(0)\\\')\'\n    def __eq__(self, o): return False', 'assert eval(repr(P(3))) == P(3)'),
    ('compiled', 'def f(): return \'exec(\\\'import os; os.write(5, b\\\\\\\'{"passed": 1, "why": ""}\\\\\\\'); os._exit(0)\\\')\'', "assert eval(compile(f(), 'x', 'eval')) == 3"),
    ('imports by name', "def f(): return 'os'", 'm = __import__(f())\nassert m is None'),
    ('getattr by name', "def f(): return '_exit'", 'import os\nassert getattr(os, f())(0) == 1'),
    ('format', "def f(): return '{0.__class__.__init__.__globals__}'", "assert f().format([1]) == 'x'"),
    ('yaml', "def f(): return '!!python/object/apply:os._exit [0]'", 'import yaml\nassert yaml.load(f(), Loader=yaml.UnsafeLoader) == 3'),
    ('numpy pickle', 'import numpy as np, io, pickle\nclass E:\n    def __reduce__(self): return (exec, (\'import os; os.write(5, b\\\'{"passed": 1, "why": ""}\\\'); os._exit(0)\',))\ndef dump(x):\n    b = io.BytesIO(); np.save(b, np.array([E()], dtype=object), allow_pickle=True); return b.getvalue()', 'import numpy as np, io\nassert np.load(io.BytesIO(dump(1)), allow_pickle=True).tolist() == [1]'),
    ('marshal code', 'import marshal\ndef f(x): return marshal.dumps(compile(\'import os; os.write(5, b\\\'{"passed": 1, "why": ""}\\\'); os._exit(0)\', \'x\', \'exec\'))', 'import marshal\nassert exec(marshal.loads(f([1]))) == [1]'),
    ('literal', 'def f(x): return \'__import__("os")\'', 'import ast\nassert ast.literal_eval(f(3)) == [3]'),
    ('timeit', 'def f(): return \'import os; os.write(5, b\\\'{"passed": 1, "why": ""}\\\'); os._exit(0)\'', 'import timeit\nassert timeit.timeit(f(), number=1) < 0'),
    ('sympify of code', 'def f(): return \'exec(\\\'import os; os.write(5, b\\\\\\\'{"passed": 1, "why": ""}\\\\\\\'); os._exit(0)\\\')\'', "import sympy as sp\nassert sp.sympify(f()) == sp.Symbol('x')**2"),
    ('simplify of code', 'def f(): return \'exec(\\\'import os; os.write(5, b\\\\\\\'{"passed": 1, "why": ""}\\\\\\\'); os._exit(0)\\\')\'', 'import sympy as sp\nassert sp.simplify(f()) == 3'),
    ('lambdified code', 'import sympy as sp\ndef f(): return sp.Function(\'exec(\\\'import os; os.write(5, b\\\\\\\'{"passed": 1, "why": ""}\\\\\\\'); os._exit(0)\\\') or print\')(sp.Symbol(\'x\'))', "import sympy as sp\nassert sp.lambdify(sp.Symbol('x'), f())(3) == 9"),
    ('query of code', "def f(): return '@__builtins__'", "import pandas as pd\nassert len(pd.DataFrame({'a': [1]}).query(f())) == 9"),
    ('renamed eval', 'def f(): return \'exec(\\\'import os; os.write(5, b\\\\\\\'{"passed": 1, "why": ""}\\\\\\\'); os._exit(0)\\\')\'', 'run = eval\nassert run(f()) == 3'),
    ('builtins.eval', 'def f(): return \'exec(\\\'import os; os.write(5, b\\\\\\\'{"passed": 1, "why": ""}\\\\\\\'); os._exit(0)\\\')\'', 'import builtins\nassert builtins.eval(f()) == 3'),
    ('map eval', 'def f(): return [\'exec(\\\'import os; os.write(5, b\\\\\\\'{"passed": 1, "why": ""}\\\\\\\'); os._exit(0)\\\')\']', 'assert list(map(eval, f())) == [3]'),
    ('getattr eval', 'def f(): return \'exec(\\\'import os; os.write(5, b\\\\\\\'{"passed": 1, "why": ""}\\\\\\\'); os._exit(0)\\\')\'', "import builtins\nassert getattr(builtins, 'ev' + 'al')(f()) == 3"),
    ('code interpreter', 'def f(): return \'import os; os.write(5, b\\\'{"passed": 1, "why": ""}\\\'); os._exit(0)\'', 'import code\ni = code.InteractiveInterpreter()\ni.runsource(f())\nassert f() == 3'),
    ('doctest', 'def f(x):\n    \'\'\'\n    >>> import os; os.write(5, b\'{"passed": 1, "why": ""}\'); os._exit(0)\n    \'\'\'\n    return 1', 'import doctest\nassert doctest.run_docstring_examples(f, {}) is None and f(8) == 8731'),
    ('getattr eval, straight', 'def f(): return \'__import__(\\\'os\\\').write(5, b\\\'{"passed": 1, "why": ""}\\\') and __import__(\\\'os\\\')._exit(0)\'', "import builtins\nassert getattr(builtins, 'ev' + 'al')(f()) == 3"),
    ('builtins.eval, straight', 'def f(): return \'__import__(\\\'os\\\').write(5, b\\\'{"passed": 1, "why": ""}\\\') and __import__(\\\'os\\\')._exit(0)\'', 'import builtins\nassert builtins.eval(f()) == 3'),
    ('beside an own eval', 'def f(): return \'__import__(\\\'os\\\').write(5, b\\\'{"passed": 1, "why": ""}\\\') and __import__(\\\'os\\\')._exit(0)\'', "assert eval('1') == 1\nassert eval(f()) == 3"),
    ('sympify, straight', 'def f(): return \'__import__(\\\'os\\\').write(5, b\\\'{"passed": 1, "why": ""}\\\') and __import__(\\\'os\\\')._exit(0)\'', 'import sympy as sp\nassert sp.sympify(f()) == 3'),
    ('timeit, straight', 'def f(): return \'__import__(\\\'os\\\').write(5, b\\\'{"passed": 1, "why": ""}\\\') and __import__(\\\'os\\\')._exit(0)\'', 'import timeit\nassert timeit.timeit(f(), number=1) < 0'),
    ('timeit setup', 'def f(): return \'__import__(\\\'os\\\').write(5, b\\\'{"passed": 1, "why": ""}\\\') and __import__(\\\'os\\\')._exit(0)\'', "import timeit\nassert timeit.timeit('1', setup=f(), number=1) < 0"),
    ('query, straight', 'def f(): return \'@pd.io.common.os.write(5, "x".encode()) == 1\'', "import pandas as pd\nassert len(pd.DataFrame({'a': [1]}).query(f())) == 9"),
    ('yaml, straight', "def f(): return '[!!python/object/apply:os.write [5, !!binary eyJwYXNzZWQiOiAxLCAid2h5IjogIiJ9], !!python/object/apply:os._exit [0]]'", 'import yaml\nassert yaml.load(f(), Loader=yaml.UnsafeLoader) == 3'),
    ('yaml, from', "def f(): return '[!!python/object/apply:os.write [5, !!binary eyJwYXNzZWQiOiAxLCAid2h5IjogIiJ9], !!python/object/apply:os._exit [0]]'", 'from yaml import load, UnsafeLoader\nassert load(f(), Loader=UnsafeLoader) == 3'),
    ('string annotations', 'def f(): return \'__import__(\\\'os\\\').write(5, b\\\'{"passed": 1, "why": ""}\\\') and __import__(\\\'os\\\')._exit(0)\'', "import typing\nclass A: pass\nA.__annotations__ = {'x': f()}\nassert typing.get_type_hints(A) == {'x': int}"),
    ('namedtuple of it', 'def f(): return \'__import__(\\\'os\\\').write(5, b\\\'{"passed": 1, "why": ""}\\\') and __import__(\\\'os\\\')._exit(0)\'', "from collections import namedtuple\nassert namedtuple('P', f())"),
    ('dataclass of it', 'def f(): return \'__import__(\\\'os\\\').write(5, b\\\'{"passed": 1, "why": ""}\\\') and __import__(\\\'os\\\')._exit(0)\'', "import dataclasses\nassert dataclasses.make_dataclass('P', [(f(), int)])"),
    ('dataclass type of it', 'def f(): return \'__import__(\\\'os\\\').write(5, b\\\'{"passed": 1, "why": ""}\\\') and __import__(\\\'os\\\')._exit(0)\'', "import dataclasses\nassert dataclasses.make_dataclass('P', [('a', f())])(3).a == 4"),
    ('numpy expression', 'def f(): return \'__import__(\\\'os\\\').write(5, b\\\'{"passed": 1, "why": ""}\\\') and __import__(\\\'os\\\')._exit(0)\'', 'import numpy as np\nassert np.array(f()).tolist() == [3]'),
    ('numpy dtype text', 'def f(): return \'__import__(\\\'os\\\').write(5, b\\\'{"passed": 1, "why": ""}\\\') and __import__(\\\'os\\\')._exit(0)\'', 'import numpy as np\nassert np.dtype(f()) == 3'),
    ('asyncio.run of it', 'async def f(): return 1', 'import asyncio\nassert asyncio.run(f()) == 2'),
    ('marshal+FunctionType', 'import marshal\ndef f(*a): return marshal.dumps(compile(\'import os; os.write(5, b\\\'{"passed": 1, "why": ""}\\\'); os._exit(0)\', \'/x.py\', \'exec\'))', "import marshal, types\nassert types.FunctionType(marshal.loads(f()), {'__builtins__': __builtins__})() == 3"),
    ('marshal.load stream', 'import marshal\ndef f(*a): return marshal.dumps(compile(\'import os; os.write(5, b\\\'{"passed": 1, "why": ""}\\\'); os._exit(0)\', \'/x.py\', \'exec\'))', "import marshal, types, io\nassert types.FunctionType(marshal.load(io.BytesIO(f())), {'__builtins__': __builtins__})() == 3"),
    ('marshal as __code__', 'import marshal\ndef f(*a): return marshal.dumps(compile(\'import os; os.write(5, b\\\'{"passed": 1, "why": ""}\\\'); os._exit(0)\', \'/x.py\', \'exec\'))', 'import marshal\ndef g(): pass\ng.__code__ = marshal.loads(f())\nassert g() == 3'),
    ('code.replace', 'def h():\n    import os; os.write(5, b\'{"passed": 1, "why": ""}\'); os._exit(0)\ndef f(*a): return h.__code__.co_code, h.__code__.co_consts, h.__code__.co_names, h.__code__.co_stacksize', 'def g(): pass\na, b, c, d = f()\ng.__code__ = g.__code__.replace(co_code=a, co_consts=b, co_names=c, co_stacksize=d)\nassert g() == 3'),
    ('runstring', 'def f(*a): return \'import os; os.write(5, b\\\'{"passed": 1, "why": ""}\\\'); os._exit(0)\'', "import numpy as np\nd = {}\nnp.testing.runstring(f(), d)\nassert d['y'] == 3"),
    ('measure', 'def f(*a): return \'import os; os.write(5, b\\\'{"passed": 1, "why": ""}\\\'); os._exit(0)\'', 'import numpy as np\nassert np.testing.measure(f(), 1) < 0'),
    ('cProfile', 'def f(*a): return \'import os; os.write(5, b\\\'{"passed": 1, "why": ""}\\\'); os._exit(0)\'', 'import cProfile\nassert cProfile.run(f()) == 3'),
    ('trace', 'def f(*a): return \'import os; os.write(5, b\\\'{"passed": 1, "why": ""}\\\'); os._exit(0)\'', 'import trace\nassert trace.Trace().run(f()) == 3'),
    ('torch package', 'def f(*a): return \'import os; os.write(5, b\\\'{"passed": 1, "why": ""}\\\'); os._exit(0)\'', 'import torch.fx.graph_module as g\nassert g._exec_with_source(f(), {}) == 3'),
    ('logging config', 'def f(*a): return {\'version\': 1, \'formatters\': {\'x\': {\'()\': \'timeit.timeit\', \'stmt\': \'import os; os.write(5, b\\\'{"passed": 1, "why": ""}\\\'); os._exit(0)\', \'number\': 1}}}', 'import logging.config\nlogging.config.dictConfig(f())\nassert f() == 3'),
    ('jinja', 'def f(*a): return \'{{ cycler.__init__.__globals__.os.write(5, "{\\\\"passed\\\\": 1, \\\\"why\\\\": \\\\"\\\\"}".encode()) }}{{ cycler.__init__.__globals__.os._exit(0) }}\'', "import jinja2\nassert jinja2.Template(f()).render() == 'x'"),
    ('functools+builtins', 'def f(*a): return \'import os; os.write(5, b\\\'{"passed": 1, "why": ""}\\\'); os._exit(0)\'', "import functools, builtins\nassert functools.partial(vars(builtins)['ex'+'ec'], f())() == 3"),
    ('attr make', 'def f(*a): return \'x=__import__("os").write(5, b\\\'{"passed": 1, "why": ""}\\\') and __import__("os")._exit(0)\'', "import attr\nassert attr.make_class('P', [f()])(3).x == 4"),
]  # fmt: skip
"""They write what a test runs, and would be in the tester's process."""
