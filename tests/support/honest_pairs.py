# ruff: noqa: E501 (programs of one line each)
"""Right solutions with ordinary tests, by what the test does with what the solution gives it."""

from __future__ import annotations

VECTOR = """class Vector:
    def __init__(self, x, y): self.x, self.y = x, y
    def __repr__(self): return f"Vector({self.x}, {self.y})"
    def __eq__(self, o): return isinstance(o, Vector) and (self.x, self.y) == (o.x, o.y)
    def __hash__(self): return hash((self.x, self.y))
    def __add__(self, o): return Vector(self.x + o.x, self.y + o.y)
    def __radd__(self, o): return self if o == 0 else NotImplemented
    def __sub__(self, o): return Vector(self.x - o.x, self.y - o.y)
    def __mul__(self, k): return Vector(self.x * k, self.y * k)
    __rmul__ = __mul__
    def __truediv__(self, k): return Vector(self.x / k, self.y / k)
    def __floordiv__(self, k): return Vector(self.x // k, self.y // k)
    def __mod__(self, k): return Vector(self.x % k, self.y % k)
    def __matmul__(self, o): return self.x * o.x + self.y * o.y
    def __neg__(self): return Vector(-self.x, -self.y)
    def __pos__(self): return self
    def __abs__(self): return (self.x ** 2 + self.y ** 2) ** 0.5
    def __bool__(self): return bool(self.x or self.y)
    def __len__(self): return 2
    def __iter__(self): return iter((self.x, self.y))
    def __getitem__(self, i): return (self.x, self.y)[i]
    def __iadd__(self, o):
        self.x += o.x; self.y += o.y
        return self
"""
MONEY = """import functools
@functools.total_ordering
class Money:
    def __init__(self, n): self.n = n
    def __eq__(self, o): return self.n == (o.n if isinstance(o, Money) else o)
    def __lt__(self, o): return self.n < (o.n if isinstance(o, Money) else o)
    def __hash__(self): return hash(self.n)
    def __int__(self): return self.n
    def __float__(self): return float(self.n)
    def __index__(self): return self.n
    def __round__(self, d=0): return Money(round(self.n, d))
    def __format__(self, spec): return format(self.n, spec)
    def __str__(self): return f"${self.n}"
    def __pow__(self, k): return Money(self.n ** k)
    def __divmod__(self, k): return divmod(self.n, k)
    def __lshift__(self, k): return Money(self.n << k)
    def __and__(self, o): return Money(self.n & o.n)
    def __or__(self, o): return Money(self.n | o.n)
    def __xor__(self, o): return Money(self.n ^ o.n)
    def __invert__(self): return Money(~self.n)
    def add(self, k):
        self.n += k
        return self
"""
SHAPES = """from abc import ABC, abstractmethod
class Shape(ABC):
    def __init__(self, name="shape"): self.name = name
    @abstractmethod
    def area(self): ...
    def describe(self): return f"{self.name} of {self.area()}"
class Square(Shape):
    def __init__(self, a):
        super().__init__("square")
        self.a = a
    def area(self): return self.a ** 2
    @property
    def side(self): return self.a
    @side.setter
    def side(self, a):
        if a < 0: raise ValueError("negative")
        self.a = a
    @classmethod
    def unit(cls): return cls(1)
    @staticmethod
    def corners(): return 4
class Cube(Square): pass
"""
ACCOUNT = """class Broke(Exception):
    def __init__(self, need, code=7):
        super().__init__(f"needs {need}")
        self.need, self.code = need, code
class Account:
    count = 0
    def __init__(self, owner, balance=0):
        self.owner, self.balance = owner, balance
        type(self).count += 1
    def deposit(self, n):
        self.balance += n
        return self.balance
    def withdraw(self, n):
        if n > self.balance: raise Broke(n - self.balance)
        self.balance -= n
    def __enter__(self): return self
    def __exit__(self, *a):
        self.owner = None
        return False
    def __call__(self, n): return self.balance * n
    def __contains__(self, word): return word in (self.owner or "")
def open_account(owner): return Account(owner, 100)
"""
STACK = """class Stack:
    def __init__(self, items=()): self._items = list(items)
    def push(self, x): self._items.append(x)
    def pop(self): return self._items.pop()
    def peek(self): return self._items[-1]
    def is_empty(self): return not self._items
    def size(self): return len(self._items)
    def append(self, x): self._items.append(x)
    def __len__(self): return len(self._items)
    def __getitem__(self, i): return self._items[i]
    def __setitem__(self, i, x): self._items[i] = x
    def __delitem__(self, i): del self._items[i]
    def __contains__(self, x): return x in self._items
    def __reversed__(self): return reversed(self._items)
    def __iter__(self): return iter(self._items)
def make_stack(): return Stack()
"""
TRIE = """class Trie:
    def __init__(self): self.words = set()
    def insert(self, w): self.words.add(w)
    def search(self, w): return w in self.words
    def starts_with(self, p): return any(w.startswith(p) for w in self.words)
def build_trie(words):
    t = Trie()
    for w in words: t.insert(w)
    return t
"""
CLOSURES = """def make_adder(n): return lambda x: x + n
def make_counter():
    n = 0
    def count():
        nonlocal n
        n += 1
        return n
    return count
def compose(*fs):
    def composed(x):
        for f in reversed(fs): x = f(x)
        return x
    return composed
def memoize(f):
    import functools
    kept = {}
    @functools.wraps(f)
    def inner(*a):
        if a not in kept: kept[a] = f(*a)
        return kept[a]
    inner.kept = kept
    return inner
def twice(f): return lambda *a, **k: f(f(*a, **k))
def curry(f):
    import inspect
    n = len(inspect.signature(f).parameters)
    def take(*a): return f(*a) if len(a) >= n else lambda *b: take(*a, *b)
    return take
def remember(x, seen=[]):
    seen.append(x)
    return seen
TOTAL = 0
def add_total(n):
    global TOTAL
    TOTAL += n
    return TOTAL
def sort_by(items, key): return sorted(items, key=key)
def retry(times):
    def decorate(f):
        def inner(*a):
            for i in range(times):
                try: return f(*a)
                except ValueError:
                    if i == times - 1: raise
        return inner
    return decorate
"""
ASYNC = """import asyncio
async def f(x):
    await asyncio.sleep(0)
    return x * 2
async def fail(): raise KeyError("lost")
async def countdown(n):
    while n:
        yield n
        n -= 1
class Lock:
    held = False
    async def __aenter__(self):
        self.held = True
        return self
    async def __aexit__(self, *a): self.held = False
    async def work(self, x): return x + 1
"""
PRINTS = """import sys
def hello(name): print("Hello,", name)
def ask(): return int(input("n? ")) + 1
def add_lines(): return sum(int(line) for line in sys.stdin)
def main():
    a, b = map(int, input().split())
    print(a + b)
def warn(): print("careful", file=sys.stderr)
"""
DATA = """from dataclasses import dataclass, field
from enum import Enum, IntEnum, auto
from typing import NamedTuple
from collections import namedtuple
@dataclass(order=True)
class Point:
    x: int
    y: int = 0
    tags: list = field(default_factory=list)
@dataclass(frozen=True)
class Key:
    name: str
class Color(Enum):
    RED = 1
    GREEN = 2
class Level(IntEnum):
    LOW = 1
    HIGH = 2
class Pair(NamedTuple):
    a: int
    b: int
Size = namedtuple("Size", "w h")
def size(w, h): return Size(w, h)
def next_color(c): return Color.GREEN if c is Color.RED else Color.RED
"""
NODE = """class Node:
    def __init__(self, value, next=None): self.value, self.next = value, next
def reverse(n):
    last = None
    while n: n.next, last, n = last, n, n.next
    return last
class LinkedList:
    def __init__(self, items=()):
        self.head = None
        for each in reversed(list(items)): self.head = Node(each, self.head)
    def __iter__(self):
        n = self.head
        while n:
            yield n.value
            n = n.next
    def __eq__(self, o): return list(self) == list(o)
    def __str__(self): return " -> ".join(map(str, self))
def merge(a, b): return LinkedList(sorted([*a, *b]))
"""
PANDAS = """import pandas as pd
def frame(): return pd.DataFrame({"a": [1, 2], "b": ["x", None]}, index=["p", "q"])
def series(): return pd.Series([1.5, 2.5], name="s")
def total(df): return df.groupby("k")["v"].sum().reset_index()
def dates(): return pd.to_datetime(pd.Series(["2020-01-01", "2021-05-05"]))
def double(df):
    df = df.copy()
    df["v"] = df["v"] * 2
    return df
"""
SYMPY = """import sympy as sp
def derivative(): 
    x = sp.symbols("x")
    return sp.diff(x ** 3 + sp.sin(x), x)
def roots(): return sp.solve(sp.Symbol("x") ** 2 - 2)
def matrix(): return sp.Matrix([[1, 2], [3, 4]])
def of(e): return sp.expand(e)
"""
TORCH = "import torch\ndef ones(n): return torch.ones(n) * 2\ndef twice(t): return t * 2\n"
NUMPY = "import numpy as np\ndef grid(n): return np.arange(n * n).reshape(n, n)\ndef average(a): return np.mean(a)\ndef mask(a): return a > 2\n"
EXACT = """from decimal import Decimal
from fractions import Fraction
from datetime import date, datetime, timedelta, time
def price(): return Decimal("1.10")
def half(): return Fraction(1, 2)
def day(n): return date(2020, 1, 1) + timedelta(days=n)
def noon(): return time(12, 0)
def span(a, b): return b - a
"""
ITERS = """def evens(n):
    for i in range(0, n, 2): yield i
def echo():
    got = None
    while True: got = yield got
class Count:
    def __init__(self, n): self.n, self.i = n, 0
    def __iter__(self): return self
    def __next__(self):
        if self.i >= self.n: raise StopIteration
        self.i += 1
        return self.i
def chunks(items, n): return [items[i:i + n] for i in range(0, len(items), n)]
def clear(d): d.clear(); d["done"] = True
def first_none(x): return None
"""
SYSTEM = """import random, time, os
def roll_die(): return random.randint(1, 6)
def stamp(): return time.time()
def helper(x): return x + 1
def uses_helper(x): return helper(x) * 10
def quit_now(code):
    import sys
    sys.exit(code)
def home(): return os.environ.get("MY_HOME", "none")
class Client:
    def get(self, url): raise OSError("no network")
def fetch(client, url): return client.get(url)["data"]
class Service:
    def load(self): return 5
    def run(self): return self.load() + 1
"""
OWN_EQUALS = """class Graph:
    def __init__(self, edges): self.edges = {frozenset(e) for e in edges}
    def has_edge(self, a, b): return frozenset((a, b)) in self.edges
    def equals(self, o): return isinstance(o, Graph) and self.edges == o.edges
def build(edges): return Graph(edges)
"""
PAIRS: list[tuple[str, str, str]] = [
    ("minus", VECTOR, "assert -Vector(1, 2) == Vector(-1, -2) and +Vector(1, 2) == Vector(1, 2)"),
    ("divided", VECTOR, "assert Vector(2, 4) / 2 == Vector(1, 2) and Vector(5, 7) // 2 == Vector(2, 3) and Vector(5, 7) % 2 == Vector(1, 1)"),
    ("from the left", VECTOR, "assert 2 * Vector(1, 2) == Vector(2, 4)\nassert sum([Vector(1, 2), Vector(3, 4)]) == Vector(4, 6)"),
    ("in place", VECTOR, "a = Vector(1, 2)\nb = a\na += Vector(2, 2)\nassert a == Vector(3, 4) and a is b"),
    ("abs, len, bool", VECTOR, "assert abs(Vector(3, 4)) == 5 and len(Vector(1, 2)) == 2 and Vector(1, 0) and not Vector(0, 0)"),
    ("matrix product", VECTOR, "assert Vector(1, 2) @ Vector(3, 4) == 11"),
    ("set and dict", VECTOR, "assert len({Vector(1, 2), Vector(1, 2), Vector(2, 1)}) == 2\nd = {Vector(0, 1): 'a'}\nassert d[Vector(0, 1)] == 'a'"),
    ("list of objects", VECTOR, "assert [Vector(1, 2), Vector(3, 4)] == [Vector(1, 2), Vector(3, 4)] and Vector(1, 2) in [Vector(1, 2)] and Vector(1, 2) != Vector(2, 1)"),
    ("unpacked", VECTOR, "x, y = Vector(3, 4)\nassert (x, y) == (3, 4) and tuple(Vector(1, 2)) == (1, 2) and Vector(5, 6)[0] == 5 and Vector(5, 6)[-1] == 6"),
    ("str and repr", VECTOR, "assert repr(Vector(1, 2)) == 'Vector(1, 2)' and str(Vector(1, 2)) == 'Vector(1, 2)' and f'{Vector(1, 2)!r}' == 'Vector(1, 2)'"),
    ("order", MONEY, "assert Money(1) < Money(2) <= Money(2) and Money(3) > Money(2) >= Money(1)\nassert max([Money(1), Money(5)]).n == 5 and [m.n for m in sorted([Money(3), Money(1)])] == [1, 3]"),
    ("numbers of it", MONEY, "assert int(Money(5)) == 5 and float(Money(5)) == 5.0 and [7, 8, 9][Money(1)] == 8 and round(Money(5)).n == 5"),
    ("formats", MONEY, "assert f'{Money(255):x}' == 'ff' and format(Money(5), '03d') == '005' and '%s' % Money(5) == '$5' and f'{Money(5)!s:>4}' == '  $5'"),
    ("bits", MONEY, "assert (Money(1) << 3).n == 8 and (Money(6) & Money(3)).n == 2 and (Money(6) | Money(3)).n == 7 and (Money(6) ^ Money(3)).n == 5 and (~Money(0)).n == -1"),
    ("power and divmod", MONEY, "assert (Money(2) ** 3).n == 8 and divmod(Money(7), 2) == (3, 1)"),
    ("equal to a plain value", MONEY, "assert Money(5) == 5 and Money(5) != 6 and Money(3) < 4\nassert Money(5).add(2).add(1).n == 8"),
    ("abstract", SHAPES, "import pytest\nwith pytest.raises(TypeError): Shape()\nassert Square(3).area() == 9 and issubclass(Square, Shape) and isinstance(Cube(2), Shape) and not isinstance(3, Shape)"),
    ("property", SHAPES, "s = Square(3)\ns.side = 5\nassert s.area() == 25 and s.side == 5\ntry:\n    s.side = -1\n    assert False\nexcept ValueError as e: assert 'negative' in str(e)"),
    ("class methods", SHAPES, "assert Square.unit().a == 1 and Square.corners() == 4 and type(Cube.unit()).__name__ == 'Cube' and type(Square(1)) is Square and Square(1).__class__.__name__ == 'Square'"),
    ("names of classes", SHAPES, "assert Square.__name__ == 'Square' and Cube.__mro__[1] is Square and Cube.__bases__ == (Square,) and hasattr(Square, 'area') and not hasattr(Square, 'volume')"),
    ("subclass in the test", SHAPES, "class Circle(Shape):\n    def __init__(self, r):\n        super().__init__('circle')\n        self.r = r\n    def area(self): return 3 * self.r ** 2\nc = Circle(2)\nassert c.describe() == 'circle of 12' and isinstance(c, Shape) and c.r == 2 and c.name == 'circle'"),
    ("subclass that overrides", ACCOUNT, "class Gold(Account):\n    def deposit(self, n): return super().deposit(n * 2)\ng = Gold('ann', 1)\nassert g.deposit(5) == 11 and g.balance == 11 and isinstance(g, Account)"),
    ("with", ACCOUNT, "with Account('ann', 5) as a:\n    assert a.owner == 'ann'\nassert a.owner is None"),
    ("vars", ACCOUNT, "a = Account('ann', 5)\nassert vars(a) == {'owner': 'ann', 'balance': 5} and a.__dict__['owner'] == 'ann' and getattr(a, 'age', 3) == 3 and 'deposit' in dir(a)"),
    ("copies", ACCOUNT, "import copy\na = Account('ann', 5)\nb, c = copy.deepcopy(a), copy.copy(a)\nb.deposit(5); c.deposit(1)\nassert (a.balance, b.balance, c.balance) == (5, 10, 6) and b is not a"),
    ("error with attributes", ACCOUNT, "import pytest\nwith pytest.raises(Broke) as caught: Account('ann', 5).withdraw(8)\nassert caught.value.need == 3 and caught.value.code == 7 and str(caught.value) == 'needs 3' and issubclass(Broke, Exception)"),
    ("match of an error", ACCOUNT, "import pytest\nwith pytest.raises(Broke, match='needs 3'): Account('ann', 5).withdraw(8)\ntry: Account('x').withdraw(1)\nexcept Exception as e: assert type(e).__name__ == 'Broke' and e.args == ('needs 1',)"),
    ("called, counted", ACCOUNT, "Account.count = 0\na = Account('ann', 5)\nassert a(3) == 15 and callable(a) and Account.count == 1 and 'nn' in a and 'z' not in a"),
    ("attributes set and deleted", ACCOUNT, "a = Account('ann')\na.balance = 7\nassert a.deposit(1) == 8\ndel a.owner\nassert not hasattr(a, 'owner')"),
    ("factory", ACCOUNT, "a = open_account('bob')\nassert a.deposit(50) == 150 and a.balance == 150 and isinstance(a, Account)\na.withdraw(30)\nassert a.balance == 120"),
    ("stack", STACK, "s = Stack()\nassert s.is_empty() and len(s) == 0\ns.push(1); s.push(2)\nassert s.pop() == 2 and s.peek() == 1 and 1 in s and 5 not in s and not s.is_empty()"),
    ("items", STACK, "s = Stack([1, 2, 3, 4])\ns[0] = 9\ndel s[1]\nassert s[1:] == [3, 4] and list(s) == [9, 3, 4] and list(reversed(s)) == [4, 3, 9] and s[-1] == 4\nimport pytest\nwith pytest.raises(IndexError): s[10]"),
    ("stack of a function", STACK, "s = make_stack()\ns.append(1); s.push(2)\nassert len(s) == 2 and s.pop() == 2 and s.size() == 1 and s[0] == 1"),
    ("trie of a function", TRIE, "t = build_trie(['apple', 'app'])\nassert t.search('app') and not t.search('ap') and t.starts_with('ap') and not t.starts_with('b')"),
    ("closures", CLOSURES, "c = make_counter()\nassert (c(), c(), make_counter()()) == (1, 2, 1) and make_adder(3)(4) == 7 and compose(lambda x: x + 1, lambda x: x * 2)(5) == 11 and twice(lambda x: x * 3)(2) == 18"),
    ("decorators on the test's functions", CLOSURES, "calls = []\n@memoize\ndef slow(x):\n    'docs'\n    calls.append(x)\n    return x * 2\nassert slow(2) == slow(2) == 4 and calls == [2] and slow.__name__ == 'slow' and slow.__doc__ == 'docs'"),
    ("retries", CLOSURES, "tries = []\n@retry(3)\ndef flaky(x):\n    tries.append(x)\n    if len(tries) < 3: raise ValueError('no')\n    return 'yes'\nassert flaky(1) == 'yes' and len(tries) == 3"),
    ("curry", CLOSURES, "assert curry(lambda a, b, c: a + b + c)(1)(2)(3) == 6 and curry(lambda a, b: a - b)(5, 2) == 3"),
    ("mutable default, global", CLOSURES, "assert remember(1) == [1] and remember(2) == [1, 2] and add_total(2) == 2 and add_total(3) == 5"),
    ("key of the test", CLOSURES, "assert sort_by(['bb', 'a'], key=len) == ['a', 'bb'] and sort_by([(1, 'b'), (2, 'a')], key=lambda p: p[1]) == [(2, 'a'), (1, 'b')]"),
    ("signature", CLOSURES, "import inspect\ns = inspect.signature(sort_by)\nassert list(s.parameters) == ['items', 'key'] and inspect.signature(remember).parameters['seen'].default == []\nassert sort_by.__code__.co_argcount == 2 and inspect.isfunction(sort_by) and callable(sort_by)"),
    ("async function", ASYNC, "import asyncio\nassert asyncio.run(f(8)) == 16 and asyncio.iscoroutinefunction(f)\nasync def both(): return await asyncio.gather(f(1), f(2))\nassert asyncio.run(both()) == [2, 4]"),
    ("async error", ASYNC, "import asyncio, pytest\nwith pytest.raises(KeyError): asyncio.run(fail())\nasync def main():\n    async with Lock() as l:\n        assert l.held\n        assert await l.work(2) == 3\n    return l.held\nassert asyncio.run(main()) is False"),
    ("async generator", ASYNC, "import asyncio\nasync def all(): return [n async for n in countdown(3)]\nassert asyncio.run(all()) == [3, 2, 1]"),
    ("async test", ASYNC, "import pytest\n@pytest.mark.asyncio\nasync def test_f():\n    assert await f(3) == 6"),
    ("redirected print", PRINTS, "import io, contextlib\nout = io.StringIO()\nwith contextlib.redirect_stdout(out): hello('Ann')\nassert out.getvalue() == 'Hello, Ann\\n'"),
    ("capsys", PRINTS, "def test_hello(capsys):\n    hello('Ann')\n    assert capsys.readouterr().out == 'Hello, Ann\\n'\n    warn()\n    assert 'careful' in capsys.readouterr().err"),
    ("patched stdout", PRINTS, "import io\nfrom unittest.mock import patch\nwith patch('sys.stdout', new_callable=io.StringIO) as out: hello('Bo')\nassert out.getvalue().strip() == 'Hello, Bo'"),
    ("patched input", PRINTS, "from unittest.mock import patch\nwith patch('builtins.input', return_value='41'): assert ask() == 42\nwith patch('builtins.input', side_effect=['1 2']), patch('builtins.print') as p:\n    main()\n    p.assert_called_once_with(3)"),
    ("patched stdin", PRINTS, "import io, sys\nsys.stdin = io.StringIO('1\\n2\\n')\nassert add_lines() == 3"),
    ("monkeypatch", PRINTS, "import io\ndef test_main(monkeypatch, capsys):\n    monkeypatch.setattr('sys.stdin', io.StringIO('3 4\\n'))\n    main()\n    assert capsys.readouterr().out == '7\\n'\n    monkeypatch.setattr('builtins.input', lambda _='': '9')\n    assert ask() == 10"),
    ("dataclass", DATA, "assert Point(1, 2) == Point(1, 2) and Point(1) < Point(2) and repr(Point(1)) == 'Point(x=1, y=0, tags=[])'\np = Point(3)\np.tags.append('a')\nassert p.tags == ['a'] and Point(3).tags == []"),
    ("dataclass as a dict", DATA, "from dataclasses import asdict, is_dataclass, fields, replace\nassert asdict(Point(1, 2)) == {'x': 1, 'y': 2, 'tags': []} and is_dataclass(Point) and [f.name for f in fields(Point)] == ['x', 'y', 'tags'] and replace(Point(1, 2), y=5).y == 5"),
    ("frozen", DATA, "import pytest, dataclasses\nwith pytest.raises(dataclasses.FrozenInstanceError): Key('a').name = 'b'\nassert len({Key('a'), Key('a')}) == 1"),
    ("enum", DATA, "assert Color.RED.value == 1 and Color(2) is Color.GREEN and Color['RED'] == Color.RED and next_color(Color.RED) == Color.GREEN and [c.name for c in Color] == ['RED', 'GREEN'] and isinstance(Color.RED, Color)"),
    ("numeral", DATA, "assert Level.LOW < Level.HIGH and Level.HIGH == 2 and Level.LOW + 1 == 2 and isinstance(Level.LOW, int)"),
    ("named tuple", DATA, "p = Pair(1, 2)\nassert p == (1, 2) and p.a == 1 and p._asdict() == {'a': 1, 'b': 2} and size(2, 3).w == 2 and size(2, 3) == Size(2, 3) and isinstance(size(1, 2), tuple)\na, b = p\nassert a + b == 3 and len(p) == 2 and p[1] == 2"),
    ("nodes", NODE, "r = reverse(Node(1, Node(2)))\nassert r.value == 2 and r.next.value == 1 and r.next.next is None"),
    ("lists of nodes", NODE, "l = LinkedList([1, 2])\nassert list(l) == [1, 2] and str(l) == '1 -> 2' and merge(LinkedList([3]), LinkedList([1])) == LinkedList([1, 3])\nn = Node(5)\nn.next = Node(6)\nassert n.next.value == 6"),
    ("frame", PANDAS, "import pandas as pd\nexpected = pd.DataFrame({'a': [1, 2], 'b': ['x', None]}, index=['p', 'q'])\nassert frame().equals(expected) and list(frame().columns) == ['a', 'b'] and frame().loc['p', 'a'] == 1 and frame().shape == (2, 2)"),
    ("series", PANDAS, "import pandas as pd\npd.testing.assert_series_equal(series(), pd.Series([1.5, 2.5], name='s'))\nassert series().sum() == 4.0 and dates().dt.year.tolist() == [2020, 2021]"),
    ("frame given", PANDAS, "import pandas as pd\ndf = pd.DataFrame({'k': ['a', 'b', 'a'], 'v': [1, 2, 3]})\npd.testing.assert_frame_equal(total(df), pd.DataFrame({'k': ['a', 'b'], 'v': [4, 2]}))\nassert double(df)['v'].tolist() == [2, 4, 6] and df['v'].tolist() == [1, 2, 3]"),
    ("symbols", SYMPY, "import sympy as sp\nx = sp.symbols('x')\nassert derivative().equals(3 * x ** 2 + sp.cos(x)) and sp.simplify(derivative() - 3 * x ** 2 - sp.cos(x)) == 0"),
    ("roots, matrix", SYMPY, "import sympy as sp\nassert set(roots()) == {sp.sqrt(2), -sp.sqrt(2)} and matrix().det() == -2 and of((sp.Symbol('y') + 1) ** 2) == sp.Symbol('y') ** 2 + 2 * sp.Symbol('y') + 1"),
    ("tensors", TORCH, "import torch\nassert torch.equal(ones(3), torch.full((3,), 2.0)) and ones(2).shape == (2,) and torch.allclose(twice(torch.tensor([1.0, 2.0])), torch.tensor([2.0, 4.0]))"),
    ("arrays", NUMPY, "import numpy as np\nassert np.array_equal(grid(2), np.array([[0, 1], [2, 3]])) and (grid(2) == np.array([[0, 1], [2, 3]])).all() and average(np.array([1, 2])) == 1.5 and mask(np.array([1, 3])).tolist() == [False, True]"),
    ("exact numbers", EXACT, "from decimal import Decimal\nfrom fractions import Fraction\nassert price() == Decimal('1.10') and half() + Fraction(1, 2) == 1 and isinstance(price(), Decimal)"),
    ("dates", EXACT, "from datetime import date, time, timedelta\nassert day(1) == date(2020, 1, 2) and noon() == time(12) and noon().hour == 12 and span(date(2020, 1, 1), date(2020, 1, 3)).days == 2"),
    ("generators", ITERS, "import inspect\ng = evens(5)\nassert next(g) == 0 and list(g) == [2, 4] and inspect.isgenerator(evens(1)) and inspect.isgeneratorfunction(evens)\ne = echo()\nnext(e)\nassert e.send(5) == 5 and list(zip(evens(4), 'ab')) == [(0, 'a'), (2, 'b')]"),
    ("iterators", ITERS, "import pytest\nc = Count(2)\nassert next(c) == 1 and next(c) == 2\nwith pytest.raises(StopIteration): next(c)\nassert next(c, None) is None and list(Count(3)) == [1, 2, 3] and [x for x in Count(2)] == [1, 2] and iter(c) is c"),
    ("slices and changes", ITERS, "assert chunks([1, 2, 3], 2) == [[1, 2], [3]] and first_none(1) is None\nd = {'a': 1}\nclear(d)\nassert d == {'done': True}"),
    ("an iterator of the test", ITERS, "assert chunks(list(x for x in range(3)), 2) == [[0, 1], [2]]\nassert list(Count(sum(x for x in [1, 1]))) == [1, 2]"),
    ("exit", SYSTEM, "import pytest\nwith pytest.raises(SystemExit) as caught: quit_now(3)\nassert caught.value.code == 3"),
    ("patched module", SYSTEM, "from unittest.mock import patch\nwith patch('random.randint', return_value=4) as die:\n    assert roll_die() == 4\n    die.assert_called_once_with(1, 6)\nwith patch('time.time', return_value=5.0): assert stamp() == 5.0"),
    ("patched helper", SYSTEM, "from unittest.mock import patch\nwith patch('solution.helper', return_value=3): assert uses_helper(1) == 30\nassert uses_helper(1) == 20"),
    ("patched method", SYSTEM, "from unittest.mock import patch\nwith patch.object(Service, 'load', return_value=10): assert Service().run() == 11\ns = Service()\nwith patch.object(s, 'load', return_value=1): assert s.run() == 2\nassert s.run() == 6"),
    ("mock as an argument", SYSTEM, "from unittest.mock import Mock\nclient = Mock()\nclient.get.return_value = {'data': 5}\nassert fetch(client, 'u') == 5\nclient.get.assert_called_once_with('u')"),
    ("a fake of the test", SYSTEM, "class Fake:\n    def get(self, url): return {'data': url + '!'}\nassert fetch(Fake(), 'u') == 'u!'"),
    ("environment", SYSTEM, "def test_home(monkeypatch):\n    monkeypatch.setenv('MY_HOME', 'x')\n    assert home() == 'x'"),
    ("TestCase", STACK, "import unittest\nclass TestStack(unittest.TestCase):\n    def setUp(self): self.s = Stack([1])\n    def test_push(self):\n        self.s.push(2)\n        self.assertEqual(self.s.pop(), 2)\n        self.assertIn(1, self.s)\n    def test_empty(self):\n        with self.assertRaises(IndexError): Stack().pop()\nif __name__ == '__main__': unittest.main()"),
    ("class of tests", STACK, "class TestStack:\n    def setup_method(self): self.s = Stack()\n    def test_size(self):\n        self.s.push(1)\n        assert self.s.size() == 1"),
    ("approx, parametrize", VECTOR, "import pytest\n@pytest.mark.parametrize('x, y, n', [(3, 4, 5), (0, 1, 1)])\ndef test_abs(x, y, n): assert abs(Vector(x, y)) == pytest.approx(n)"),
    ("fixture", STACK, "import pytest\n@pytest.fixture\ndef s(): return Stack([1, 2])\ndef test_pop(s): assert s.pop() == 2\ndef test_len(s): assert len(s) == 2"),
    ("own equals", OWN_EQUALS, "g = build([(1, 2)])\nassert g.has_edge(2, 1) and not g.has_edge(1, 3) and g.equals(Graph([(2, 1)])) and not g.equals(Graph([]))"),
    ("round trip", "import json\ndef dump(o): return json.dumps(o)\ndef load(s): return json.loads(s)", "assert load(dump({'a': [1, None]})) == {'a': [1, None]} and dump([1]) == '[1]'"),
    ("name of Python's", "def factorial(n): return 1 if n < 2 else n * factorial(n - 1)", "assert factorial(5) == prod(range(1, 6))\nassert [factorial(i) for i in range(3)] == [1, 1, 2]"),
    ("recursion error", "def deep(n): return deep(n + 1)", "import pytest\nwith pytest.raises(RecursionError): deep(0)"),
    ('neg', 'class A:\n    def __init__(self,x=0): self.x=x\n    def __neg__(s): return A(-s.x)\n    def __eq__(s,o): return s.x==o.x\n', 'assert -A(3) == A(-3)'),
    ('div plain', 'class A:\n    def __init__(self,x=0): self.x=x\n    def __truediv__(s,o): return s.x/o\n', 'assert A(8) / 2 == 4'),
    ('mod plain', 'class A:\n    def __init__(self,x=0): self.x=x\n    def __mod__(s,o): return s.x%o\n', 'assert A(7) % 3 == 1'),
    ('le', 'class A:\n    def __init__(self,x=0): self.x=x\n    def __le__(s,o): return s.x<=(o.x if isinstance(o,A) else o)\n', 'assert A(3) <= A(4) and A(3) <= 5 and not A(3) <= 2'),
    ('abs', 'class A:\n    def __init__(self,x=0): self.x=x\n    def __abs__(s): return abs(s.x)\n', 'assert abs(A(-3)) == 3'),
    ('rmul', 'class A:\n    def __init__(self,x=0): self.x=x\n    def __rmul__(s,o): return A(o*s.x)\n', 'assert (2 * A(4)).x == 8'),
    ('rmul plain', 'class A:\n    def __init__(self,x=0): self.x=x\n    def __rmul__(s,o): return o*s.x\n', 'assert 2 * A(4) == 8'),
    ('iadd', 'class A:\n    def __init__(self,x=0): self.x=x\n    def __iadd__(s,o):\n        s.x+=o\n        return s\n', 'a = A(1)\na += 2\nassert a.x == 3'),
    ('add plain', 'class A:\n    def __init__(self,x=0): self.x=x\n    def __add__(s,o): return A(s.x+o)\n    def __eq__(s,o): return s.x==(o.x if isinstance(o,A) else o)\n', 'assert A(1) + 2 == A(3)\nassert A(1) + 2 == 3'),
    ('int', 'class A:\n    def __init__(self,x=0): self.x=x\n    def __int__(s): return s.x\n', 'assert int(A(5)) == 5'),
    ('fmt', 'class A:\n    def __init__(self,x=0): self.x=x\n    def __format__(s,f): return format(s.x,f)\n', "assert f'{A(255):x}' == 'ff'"),
    ('with', 'class A:\n    def __init__(self,x=0): self.x=x\n    def __enter__(s): return s.x\n    def __exit__(s,*a): return True\n', 'with A(5) as r: assert r == 5\nwith A(1): raise ValueError'),
    ('exit sees error', 'class A:\n    def __init__(self,x=0): self.x=x\n    def __enter__(s): return s\n    def __exit__(s,t,v,tb):\n        s.x = t.__name__ + str(v)\n        return True\n', "with A() as a: raise ValueError('no')\nassert a.x == 'ValueErrorno'"),
    ('eq plain', 'class A:\n    def __init__(self,x=0): self.x=x\n    def __eq__(s,o): return s.x==o\n', "assert A(5) == 5 and A('a') == 'a'"),
    ('contains', 'class A:\n    def __init__(self,x=0): self.x=x\n    def __contains__(s,o): return o==s.x\n', 'assert 5 in A(5)'),
    ('contains both', 'class A:\n    def __init__(self,x=0): self.x=x\n    def __contains__(s,o): return o==s.x\n', 'assert 5 in A(5) and 6 not in A(5)'),
    ('typename', 'class A:\n    def __init__(self,x=0): self.x=x\n', "a=A()\nassert type(a).__name__ == 'A'"),
    ('vars', 'class A:\n    def __init__(self,x=0): self.x=x\n', "assert vars(A(3)) == {'x': 3}"),
    ('issub', 'class B: pass\nclass C(B): pass', 'assert issubclass(C, B)'),
    ('deepcopy', 'class A:\n    def __init__(self,x=0): self.x=x\n', 'import copy\na=A([1])\nb=copy.deepcopy(a)\nb.x.append(2)\nassert a.x == [1] and b.x == [1,2]'),
    ('attr list alias', 'class A:\n    def __init__(self,x=0): self.x=x\n', 'a=A([1])\na.x.append(5)\nassert a.x == [1,5] and len(a.x)==2\na.x[0]=9\nassert a.x == [9,5]'),
    ('dict alias', 'class G:\n    def __init__(s): s.adj={}\n    def nodes(s): return sorted(s.adj)', "g=G()\ng.adj['a']=[1]\ng.adj['a'].append(2)\nassert g.nodes()==['a'] and g.adj=={'a':[1,2]}"),
    ('subclass', 'class A:\n    def __init__(self,x=0): self.x=x\n', 'class B(A):\n    def twice(self): return self.x*2\nassert B(4).twice() == 8'),
    ('subclass 2', 'class A:\n    def __init__(self,x=0): self.x=x\n', 'class B(A):\n    def __init__(self, x, y):\n        super().__init__(x)\n        self.y = y\nb=B(1,2)\nassert b.x + b.y == 3 and isinstance(b, A) and isinstance(b,B)'),
    ('subclass 3', "from abc import ABC, abstractmethod\nclass P(ABC):\n    @abstractmethod\n    def step(self, x): ...\n    @property\n    def name(self): return 'p'\n    def run(self, xs): return [self.step(x) for x in xs]", "class Q(P):\n    K = 10\n    def step(self, x): return x + self.K\n    @property\n    def name(self): return 'q'\n    @classmethod\n    def make(cls): return cls()\n    @staticmethod\n    def z(): return 1\nq = Q.make()\nassert q.run([1,2]) == [11,12] and q.name == 'q' and Q.z() == 1"),
    ('exit code', 'import sys\ndef f(): sys.exit(3)', 'import pytest\nwith pytest.raises(SystemExit) as e: f()\nassert e.value.code == 3'),
    ('exit try', "import sys\ndef f(): sys.exit('bye')", "try:\n    f()\n    assert False\nexcept SystemExit as e: assert str(e) == 'bye'"),
    ('async', 'async def f(x): return x+1', 'import asyncio\nassert asyncio.run(f(8)) == 9'),
    ('async loop', 'async def f(x): return x+1', 'import asyncio\nloop=asyncio.new_event_loop()\nassert loop.run_until_complete(f(8)) == 9'),
    ('async callback', 'async def call(f, x): return await f(x)', 'import asyncio\nasync def g(x): return x*2\nassert asyncio.run(call(g, 4)) == 8'),
    ('signature', 'def f(a, b=2, *c, d, **e): pass', "import inspect\nassert str(inspect.signature(f)) == '(a, b=2, *c, d, **e)'"),
    ('annotations', "def f(a: int, b: str = 'x') -> bool:\n    'doc'\n    return True", 'import inspect\nassert f.__annotations__ == {\'a\': int, \'b\': str, \'return\': bool} and f.__doc__ == \'doc\' and f.__name__ == \'f\' and f.__defaults__ == (\'x\',)\nassert str(inspect.signature(f)) == "(a: int, b: str = \'x\') -> bool"'),
    ('print', "def f(): print('hi')", "import io, sys\nold=sys.stdout\nsys.stdout = io.StringIO()\nf()\nout=sys.stdout.getvalue()\nsys.stdout=old\nassert out == 'hi\\n'"),
    ('print write', "import sys\ndef f(): sys.stdout.write('hi'); sys.stderr.write('no')", "import io, contextlib\no, e = io.StringIO(), io.StringIO()\nwith contextlib.redirect_stdout(o), contextlib.redirect_stderr(e): f()\nassert (o.getvalue(), e.getvalue()) == ('hi','no')"),
    ('mock print', "def f(): print('hi', 3)", "from unittest.mock import patch\n@patch('builtins.print')\ndef test_f(p):\n    f()\n    p.assert_called_with('hi', 3)"),
    ('mock deco', 'import random\ndef f(): return random.choice([1,2,3])', "from unittest.mock import patch\nclass TestF:\n    @patch('random.choice', return_value=2)\n    def test_f(self, c):\n        assert f() == 2\n        assert c.called"),
    ('mock open', 'def f(p):\n    with open(p) as h: return h.read().upper()', "from unittest.mock import patch, mock_open\nwith patch('builtins.open', mock_open(read_data='abc')): assert f('x') == 'ABC'"),
    ('mock datetime', 'import datetime\ndef f(): return datetime.date.today().year', "from unittest.mock import patch\nimport datetime\nclass D(datetime.date):\n    @classmethod\n    def today(cls): return cls(2020,1,1)\nwith patch('datetime.date', D): assert f() == 2020"),
    ('mock sleep', "import time\ndef f():\n    for i in range(3): time.sleep(100)\n    return 'ok'", "from unittest.mock import patch\nwith patch('time.sleep') as s:\n    assert f() == 'ok'\n    assert s.call_count == 3"),
    ('mock requests', "import urllib.request, json\ndef f(u):\n    with urllib.request.urlopen(u) as r: return json.loads(r.read())['a']", 'from unittest.mock import patch, MagicMock\nwith patch(\'urllib.request.urlopen\') as o:\n    o.return_value.__enter__.return_value.read.return_value = b\'{"a": 5}\'\n    assert f(\'u\') == 5'),
    ('magicmock arg', "def f(db): return [r['id'] for r in db.query('x').all()]", "from unittest.mock import MagicMock\ndb=MagicMock()\ndb.query.return_value.all.return_value=[{'id':1}]\nassert f(db)==[1]\ndb.query.assert_called_with('x')"),
    ('side effect', 'def f(g):\n    try: return g()\n    except ValueError as e: return str(e)', "from unittest.mock import Mock\nassert f(Mock(side_effect=ValueError('bad'))) == 'bad'"),
    ('own error raised in test', "class Oops(Exception): pass\ndef f(g):\n    try: g()\n    except Oops: return 'caught'", "def g(): raise Oops('x')\nassert f(g) == 'caught'"),
    ('own error made', 'class Oops(ValueError):\n    def __init__(self, a, b):\n        super().__init__(a)\n        self.b = b', 'e = Oops(1, 2)\nassert e.b == 2 and isinstance(e, ValueError) and e.args == (1,)'),
    ('hierarchy of errors', "class E(Exception): pass\nclass F(E): pass\ndef f(): raise F('x') from KeyError('k')", 'import pytest\nwith pytest.raises(E) as i: f()\nassert type(i.value) is F and isinstance(i.value.__cause__, KeyError)'),
    ('generator close', 'def g():\n    try:\n        yield 1\n        yield 2\n    finally: g.done = True', 'x = g()\nassert next(x) == 1\nx.close()\nassert g.done is True'),
    ('contextmanager', "from contextlib import contextmanager\nlog=[]\n@contextmanager\ndef cm(x):\n    log.append('in')\n    try: yield x\n    finally: log.append('out')", "with cm(3) as v: assert v == 3\nassert log == ['in','out']"),
    ('lru', 'from functools import lru_cache\n@lru_cache(None)\ndef f(n): return n', 'f(1); f(1)\nassert f.cache_info().hits == 1\nf.cache_clear()'),
    ('property err', 'class T:\n    @property\n    def x(self): return 1', 'import pytest\nwith pytest.raises(AttributeError): T().x = 3'),
    ('singleton', 'class S:\n    _i=None\n    def __new__(cls):\n        if cls._i is None: cls._i=super().__new__(cls)\n        return cls._i', 'assert S() is S()'),
    ('descriptor', "class Pos:\n    def __set_name__(s,o,n): s.n='_'+n\n    def __get__(s,i,o): return getattr(i,s.n)\n    def __set__(s,i,v):\n        if v<0: raise ValueError\n        setattr(i,s.n,v)\nclass P:\n    x=Pos()", 'p=P()\np.x=3\nassert p.x==3\nimport pytest\nwith pytest.raises(ValueError): p.x=-1'),
    ('slots', "class P:\n    __slots__=('x',)\n    def __init__(s,x): s.x=x", 'import pytest\np=P(1)\nassert p.x==1\nwith pytest.raises(AttributeError): p.y=2'),
    ('observer', 'class Bus:\n    def __init__(s): s.h={}\n    def on(s,e,f): s.h.setdefault(e,[]).append(f)\n    def off(s,e,f): s.h[e].remove(f)\n    def emit(s,e,*a):\n        for f in s.h.get(e,[]): f(*a)', "b=Bus()\ngot=[]\nb.on('x',got.append)\nf=lambda v: got.append(v*2)\nb.on('x',f)\nb.emit('x',1)\nb.off('x',f)\nb.emit('x',3)\nassert got==[1,2,3]"),
    ('matrix', 'class Matrix:\n    def __init__(s,r): s.r=r\n    def __getitem__(s,ij): return s.r[ij[0]][ij[1]]\n    def __setitem__(s,ij,v): s.r[ij[0]][ij[1]]=v\n    def __matmul__(s,o): return Matrix([[sum(a*b for a,b in zip(r,c)) for c in zip(*o.r)] for r in s.r])\n    def __eq__(s,o): return s.r==o.r\n    @property\n    def T(s): return Matrix([list(c) for c in zip(*s.r)])', 'm=Matrix([[1,2],[3,4]])\nassert m[0,1]==2\nm[0,1]=5\nassert (m@Matrix([[1,0],[0,1]]))==m and m.T.r==[[1,3],[5,4]]'),
    ('frac class', 'class Frac:\n    def __init__(s,a,b): s.a,s.b=a,b\n    def __eq__(s,o): return s.a*o.b==s.b*o.a\n    def __add__(s,o): return Frac(s.a*o.b+o.a*s.b,s.b*o.b)\n    def __lt__(s,o): return s.a*o.b<o.a*s.b', 'assert Frac(1,2)==Frac(2,4) and Frac(1,2)+Frac(1,2)==Frac(1,1) and sorted([Frac(2,3),Frac(1,3)])[0]==Frac(1,3)'),
    ('tree fn', 'class TreeNode:\n    def __init__(s,val=0,left=None,right=None): s.val,s.left,s.right=val,left,right\ndef invert(t):\n    if t: t.left,t.right=invert(t.right),invert(t.left)\n    return t', 't=invert(TreeNode(1,TreeNode(2),TreeNode(3)))\nassert t.left.val==3 and t.right.val==2 and t.left.left is None'),
    ('test tree', 'def invert(t):\n    if t: t.left,t.right=invert(t.right),invert(t.left)\n    return t\ndef depth(t): return 0 if t is None else 1+max(depth(t.left),depth(t.right))', 'class TreeNode:\n    def __init__(s,val=0,left=None,right=None): s.val,s.left,s.right=val,left,right\nt=TreeNode(1,TreeNode(2),None)\nassert depth(t)==2\nr=invert(t)\nassert r.right.val==2 and r.left is None'),
    ('linked list test', 'def rev(h):\n    p=None\n    while h: h.next,p,h=p,h,h.next\n    return p', 'class N:\n    def __init__(s,v,next=None): s.v,s.next=v,next\nh=rev(N(1,N(2,N(3))))\nassert [h.v,h.next.v,h.next.next.v]==[3,2,1]'),
    ('str method class', "class Text(str):\n    def shout(s): return Text(s.upper()+'!')", "t=Text('ab')\nassert t.shout()=='AB!' and isinstance(t,str) and t.upper()=='AB' and len(t)==2 and t+'c'=='abc' and isinstance(t.shout(), Text)"),
    ('dict sub', 'class D(dict):\n    def __getattr__(s,n): return s[n]\n    def __missing__(s,k): return 0', "d=D(a=1)\nassert d.a==1 and d['zz']==0 and d=={'a':1} and dict(d)=={'a':1} and 'a' in d and list(d)==['a']\nd['b']=2\nassert d.b==2 and len(d)==2 and d.keys()=={'a','b'}"),
    ('list sub', 'class L(list):\n    def first(s): return s[0]', 'l=L([3,1])\nl.append(2)\nassert l.first()==3 and l==[3,1,2] and sorted(l)==[1,2,3] and l[1:]==[1,2]\nl.sort()\nassert l==[1,2,3]'),
    ('userlist', 'from collections import UserDict, UserList\nclass U(UserDict): pass', "u=U(a=1)\nassert u['a']==1 and u=={'a':1} and len(u)==1"),
    ('deque', 'from collections import deque\ndef f(): return deque([1,2],maxlen=2)', 'from collections import deque\nassert f()==deque([1,2]) and f().maxlen==2'),
    ('defaultdict', 'from collections import defaultdict\ndef f(w):\n    d=defaultdict(list)\n    for x in w: d[len(x)].append(x)\n    return d', "assert f(['a','bb'])=={1:['a'],2:['bb']}\nassert f(['a'])[9]==[]"),
    ('complex etc', "def f(): return [1j, b'x', bytearray(b'y'), frozenset({1}), range(3), None, ..., slice(1,2), float('inf')]", "assert f()==[1j,b'x',bytearray(b'y'),frozenset({1}),range(3),None,...,slice(1,2),float('inf')]"),
    ('nan', "def f(): return float('nan')", 'import math\nassert math.isnan(f())'),
    ('type result', 'def f(x): return type(x)', "assert f(3) is int and f('a') == str and f(int) is type"),
    ('callable builtins', 'def f(g, xs): return list(map(g, xs))', "assert f(int, ['1']) == [1] and f(len, ['ab']) == [2] and f(str.upper, ['a']) == ['A']"),
    ('uuid, re, path', "import re, pathlib, uuid\ndef pat(): return re.compile('a+')\ndef p(): return pathlib.Path('/a')/'b'\ndef m(): return re.match('(a)(b)', 'ab')", "import pathlib\nassert pat().match('aa') and pat().pattern=='a+' and p()==pathlib.Path('/a/b') and m().group(1)=='a' and m().groups()==('a','b')"),
    ('wrapped', "import functools\ndef deco(f):\n    @functools.wraps(f)\n    def w(*a): return f(*a)\n    w.n = 5\n    return w\n@deco\ndef g(x):\n    'd'\n    return x", "assert g.__wrapped__(3)==3 and g.__name__=='g' and g.n==5 and g.__doc__=='d'"),
    ('operator overload len', 'class B:\n    def __init__(s): s.i=[]\n    def __lshift__(s,x):\n        s.i.append(x)\n        return s\n    def __len__(s): return len(s.i)', 'b=B()\nb << 1 << 2\nassert len(b)==2'),
    ('iter twice', 'class R:\n    def __init__(s,n): s.n=n\n    def __iter__(s): return iter(range(s.n))', 'r=R(2)\nassert list(r)==[0,1] and list(r)==[0,1] and sum(r)==1 and 1 in r and max(r)==1'),
    ('inventory', 'class Inv:\n    def __init__(s): s.items={}\n    def add(s,n,q=1): s.items[n]=s.items.get(n,0)+q\n    def count(s,n): return s.items.get(n,0)\n    def remove(s,n):\n        if n not in s.items: return False\n        del s.items[n]\n        return True', "i=Inv()\ni.add('a',2)\nassert i.count('a')==2\nassert i.remove('a') is True\nassert not i.remove('a')\nassert i.items=={}"),
    ('threading', 'import threading\nclass C:\n    def __init__(s): s.n=0; s.l=threading.Lock()\n    def inc(s):\n        with s.l: s.n+=1', 'import threading\nc=C()\nts=[threading.Thread(target=c.inc) for _ in range(3)]\n[t.start() for t in ts]; [t.join() for t in ts]\nassert c.n==3'),
    ('assertRaises etc', "def f(x):\n    if x<0: raise ValueError('neg')\n    return x**.5", "import unittest\nclass T(unittest.TestCase):\n    @classmethod\n    def setUpClass(cls): cls.k=4\n    def test_a(self):\n        with self.assertRaisesRegex(ValueError,'neg'): f(-1)\n        self.assertAlmostEqual(f(self.k),2.0)\n        for i in range(2):\n            with self.subTest(i=i): self.assertGreaterEqual(f(i),0)\n    def tearDown(self): pass"),
    ('hasattr', 'class A:\n    def __init__(self,x=0): self.x=x\n', "a=A()\nassert hasattr(a,'x') and not hasattr(a,'y') and not hasattr(a,'__len__') and not callable(a)\nimport collections.abc as c\nassert not isinstance(a, c.Iterable)"),
    ('lowercase class', 'class point:\n    def __init__(s,x): s.x=x\n    def shift(s,d):\n        s.x+=d\n        return s', 'p=point(1)\nassert p.shift(2).x==3\nassert p.x==3'),
    ('global instance', 'class _S:\n    def __init__(s): s.d={}\n    def set(s,k,v): s.d[k]=v\n    def get(s,k): return s.d.get(k)\nstore=_S()', "store.set('a',1)\nassert store.get('a')==1"),
    ('lru get', 'class LRU:\n    def __init__(s,n): s.n=n; s.d={}\n    def get(s,k):\n        if k not in s.d: return -1\n        v=s.d.pop(k); s.d[k]=v\n        return v\n    def put(s,k,v):\n        s.d.pop(k,None); s.d[k]=v\n        if len(s.d)>s.n: s.d.pop(next(iter(s.d)))', 'c=LRU(2)\nc.put(1,1);c.put(2,2)\nassert c.get(1)==1\nc.put(3,3)\nassert c.get(2)==-1'),
    ('factory bool', 'class V:\n    def check(s,x): return x>3\ndef make(): return V()', 'v=make()\nassert v.check(5)\nassert not v.check(2)'),
    ('set ops', "def f(): return {1,2}.__class__([1,2])\ndef g(): return {'a':1}.keys()", "assert f()|{3}=={1,2,3} and f().issubset({1,2,3}) and 'a' in g() and set(g())=={'a'} and g()=={'a'}"),
    ('zip map filter', 'def f(a,b): return zip(a,b)\ndef g(a): return enumerate(a)\ndef h(a): return reversed(a)', "assert list(f([1],[2]))==[(1,2)] and list(g('a'))==[(0,'a')] and dict(f('a',[1]))=={'a':1} and list(h([1,2]))==[2,1] and sorted(f([2,1],[3,4]))==[(1,4),(2,3)]"),
    ('writes its own file', "import os, tempfile\ndef f(x):\n    with tempfile.NamedTemporaryFile('w+') as t:\n        t.write(str(x)); t.seek(0)\n        return t.read()", "assert f(5) == '5'"),
    ('pickle', 'class Point:\n    def __init__(self, x, y): self.x, self.y = x, y\n    def __eq__(self, o): return isinstance(o, Point) and (self.x, self.y) == (o.x, o.y)\n', 'import pickle\np = Point(1, 2)\nq = pickle.loads(pickle.dumps(p))\nassert q == p and q is not p and q.x == 1'),
    ('pickle state', "class Point:\n    def __init__(self, x, y): self.x, self.y = x, y\n    def __eq__(self, o): return isinstance(o, Point) and (self.x, self.y) == (o.x, o.y)\n    def __getstate__(self): return {'x': self.x}\n    def __setstate__(self, s): self.x, self.y = s['x'], 0\n", 'import pickle\np = Point(1, 2)\nq = pickle.loads(pickle.dumps(p))\nassert (q.x, q.y) == (1, 0)'),
    ('type hints', "def f(a: int, b: str = 'x') -> bool:\n    return True", "import typing\nassert typing.get_type_hints(f) == {'a': int, 'b': str, 'return': bool}"),
    ('annotations', 'def f(a: int) -> bool:\n    return True', "assert f.__annotations__ == {'a': int, 'return': bool}"),
    ('class annotations', "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n    y: str = ''\n", "assert P.__annotations__ == {'x': int, 'y': str}"),
    ('class hints', "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n    y: str = ''\n", "import typing\nassert typing.get_type_hints(P)['x'] is int"),
    ('wait_for in time', 'import asyncio\nasync def fetch(n, s):\n    await asyncio.sleep(s)\n    return n\n', 'import asyncio\nassert asyncio.run(asyncio.wait_for(fetch(3, 0.01), 5)) == 3'),
    ('wait_for too late', 'import asyncio\nasync def fetch(n, s):\n    await asyncio.sleep(s)\n    return n\n', 'import asyncio, pytest\nasync def main():\n    with pytest.raises(asyncio.TimeoutError):\n        await asyncio.wait_for(fetch(3, 30), 0.05)\nasyncio.run(main())'),
    ("wait_for of the test's own", 'import asyncio\nasync def fetch(n, s):\n    await asyncio.sleep(s)\n    return n\n', 'import asyncio\nasync def both():\n    return await asyncio.gather(fetch(1, 0.01), fetch(2, 0.01))\nasync def test_it():\n    assert await asyncio.wait_for(both(), timeout=2) == [1, 2]'),
    ('its own timeout', "import asyncio\nasync def guarded(s, t):\n    try:\n        return await asyncio.wait_for(asyncio.sleep(s, 'done'), t)\n    except asyncio.TimeoutError:\n        return 'late'\n", "import asyncio\nassert asyncio.run(guarded(0, 1)) == 'done'\nassert asyncio.run(guarded(9, 0.01)) == 'late'"),
    ('cleans up on timeout', "import asyncio\nlog = []\nasync def work():\n    try:\n        await asyncio.sleep(30)\n    finally:\n        log.append('end')\ndef ended(): return list(log)", "import asyncio\nasync def main():\n    try:\n        await asyncio.wait_for(work(), 0.05)\n    except asyncio.TimeoutError:\n        pass\nasyncio.run(main())\nassert ended() == ['end']"),
    ('asyncio.timeout', 'import asyncio\nasync def fetch(n, s):\n    await asyncio.sleep(s)\n    return n\n', 'import asyncio\nasync def main():\n    async with asyncio.timeout(5):\n        return await fetch(3, 0.01)\nassert asyncio.run(main()) == 3'),
    ('asyncio.timeout late', 'import asyncio\nasync def fetch(n, s):\n    await asyncio.sleep(s)\n    return n\n', 'import asyncio, pytest\nasync def main():\n    with pytest.raises(TimeoutError):\n        async with asyncio.timeout(0.05):\n            await fetch(3, 30)\nasyncio.run(main())'),
    ("builtin's name, told", 'def mean(a): return sum_(a) / len(a)\ndef sum_(a):\n    t = 0\n    for x in a: t += x\n    return t\ndef pow(b, e, m=7):\n    return b ** e % m', 'assert mean([1, 3]) == 2\nassert pow(2, 3) == 1'),
    ("builtin's name, not told", 'def mean(a): return 2\ndef pow(b, e, m=7):\n    return b ** e % m', 'assert mean([1, 3]) == 2\nassert pow(2, 3) == 1'),
    ('inherited dataclass', 'from dataclasses import dataclass, fields, asdict\n@dataclass\nclass A:\n    x: int\n@dataclass\nclass B(A):\n    y: int = 2\n', "import dataclasses\nassert [f.name for f in dataclasses.fields(B)] == ['x', 'y'] and B(1) == B(1, 2)\nassert dataclasses.asdict(B(1)) == {'x': 1, 'y': 2}"),
    ('pickled twice', 'class A:\n    def __init__(self): self.v = []\n    def __eq__(self, o): return self.v == o.v\n', 'import pickle\na = A()\nb = pickle.dumps(a)\na.v.append(1)\nc, d = pickle.loads(b), pickle.loads(b)\nc.v.append(2)\nassert d.v == [] and a.v == [1] and c.v == [2]'),
    ('does not pickle', 'class A:\n    def __init__(self): self.f = lambda: 1\n', 'import pickle, pytest\nwith pytest.raises(Exception):\n    pickle.dumps(A())'),
    ('pickles in a list', 'class A:\n    def __init__(self, n): self.n = n\n', 'import pickle\nassert [a.n for a in pickle.loads(pickle.dumps([A(1), A(2)]))] == [1, 2]'),
    ('wait_for of a task', 'import asyncio\nasync def fetch(n, s):\n    await asyncio.sleep(s)\n    return n\n', 'import asyncio\nasync def main():\n    t = asyncio.create_task(fetch(3, 0.01))\n    return await asyncio.wait_for(t, 5)\nassert asyncio.run(main()) == 3'),
    ('two waits side by side', 'import asyncio\nasync def fetch(n, s):\n    await asyncio.sleep(s)\n    return n\n', 'import asyncio\nasync def main():\n    return await asyncio.gather(asyncio.wait_for(fetch(1, 0.01), 5), asyncio.wait_for(fetch(2, 30), 0.05), return_exceptions=True)\na, b = asyncio.run(main())\nassert a == 1 and isinstance(b, asyncio.TimeoutError)'),
    ('from asyncio import wait_for', 'import asyncio\nasync def fetch(n, s):\n    await asyncio.sleep(s)\n    return n\n', 'from asyncio import wait_for, run, TimeoutError\nimport pytest\nassert run(wait_for(fetch(4, 0), 3)) == 4\nwith pytest.raises(TimeoutError): run(wait_for(fetch(4, 30), 0.05))'),
    ('wait_for inside a helper', 'import asyncio\nasync def fetch(n, s):\n    await asyncio.sleep(s)\n    return n\n', 'import asyncio, pytest\nasync def helper():\n    return 1 + await fetch(1, 30)\nasync def main():\n    with pytest.raises(asyncio.TimeoutError): await asyncio.wait_for(helper(), 0.05)\n    return await asyncio.wait_for(helper_fast(), 3)\nasync def helper_fast(): return 1 + await fetch(1, 0)\nassert asyncio.run(main()) == 2'),
    ('a lock with wait_for', 'import asyncio\nclass Pool:\n    def __init__(self): self.q = asyncio.Queue()\n    async def get(self): return await self.q.get()\n    async def put(self, x): await self.q.put(x)\n', 'import asyncio, pytest\nasync def main():\n    p = Pool()\n    with pytest.raises(asyncio.TimeoutError):\n        await asyncio.wait_for(p.get(), 0.05)\n    await p.put(1)\n    return await asyncio.wait_for(p.get(), 1)\nassert asyncio.run(main()) == 1'),
    ('sum of its own, unittest', 'def sum(a, b): return a + b\ndef product(a, b): return a * b', 'import unittest\nclass TestIt(unittest.TestCase):\n    def test_a(self):\n        self.assertEqual(sum(1, 2), 3)\n        self.assertEqual(product(2, 3), 6)'),
    ('hints of a method', "class A:\n    def f(self, x: int) -> str: return ''", "from typing import get_type_hints\nassert get_type_hints(A.f) == {'x': int, 'return': str}"),
    ("a class with a name of Python's", 'class Counter:\n    def __init__(self): self.n = 0\n    def inc(self):\n        self.n += 1\n        return self.n\ndef product(a): return 6', 'assert product([1, 2, 3]) == 6\nc = Counter()\nassert c.inc() == 1'),
    ('gather in wait_for', 'import asyncio\nasync def fetch(n, s):\n    await asyncio.sleep(s)\n    return n\n', 'import asyncio\nasync def main():\n    return await asyncio.wait_for(asyncio.gather(fetch(1, 0), fetch(2, 0)), 5)\nassert asyncio.run(main()) == [1, 2]'),
    ('frozen pickled enum', 'from enum import Enum\nclass Color(Enum):\n    RED = 1\n', 'import pickle\nassert pickle.loads(pickle.dumps(Color.RED)) is Color.RED'),
    ('pickled function', 'def f(x): return x', 'import pickle\nassert pickle.loads(pickle.dumps(f))(3) == 3'),
    ('named tuple', "from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef f(): return P(1, 2)", 'import pickle\nassert pickle.loads(pickle.dumps(f())) == (1, 2)'),
    ('hints with None', 'def f(a: int) -> None: pass', "import typing\nassert typing.get_type_hints(f)['return'] is type(None)"),
    ("test's own class hints", 'def f(a): return a', "import typing\nclass A:\n    x: int\nassert typing.get_type_hints(A) == {'x': int}\nassert f(1) == 1"),
    ('exists of its own', 'def exists(a, x): return x in a', 'assert exists([1], 1)'),
    ('open of its own', 'class Door:\n    def __init__(self): self.o = False\n    def open(self): self.o = True\n', 'd = Door()\nd.open()\nassert d.o'),
    ('pickle a class', 'class A:\n    x = 1\n', 'import pickle\nassert pickle.loads(pickle.dumps(A)).x == 1'),
    ('copyreg state', 'class Point:\n    def __init__(self, x, y): self.x, self.y = x, y\n    def __eq__(self, o): return isinstance(o, Point) and (self.x, self.y) == (o.x, o.y)\n', 'import copy\np = Point(1, 2)\nq = copy.copy(p)\nassert q == p and q is not p'),
    ('wait_for None', 'import asyncio\nasync def fetch(n, s):\n    await asyncio.sleep(s)\n    return n\n', 'import asyncio\nassert asyncio.run(asyncio.wait_for(fetch(1, 0), None)) == 1'),
    ('hints of its own class', 'class A: pass\ndef f(a: A) -> int: return 1', "import typing\nassert typing.get_type_hints(f)['a'] is A"),
    ('returns NoneType', 'def f(x): return type(x)', 'assert f(None) is type(None) and f(3) is int'),
    ('timeout, then more', 'import asyncio\nasync def fetch(n, s):\n    await asyncio.sleep(s)\n    return n\n', 'import asyncio\nasync def main():\n    try:\n        async with asyncio.timeout(0.05):\n            await fetch(3, 30)\n    except TimeoutError:\n        pass\n    await asyncio.sleep(0)\n    return await fetch(4, 0)\nassert asyncio.run(main()) == 4'),
    ('timeout around a gather', 'import asyncio\nasync def fetch(n, s):\n    await asyncio.sleep(s)\n    return n\n', 'import asyncio, pytest\nasync def main():\n    with pytest.raises(TimeoutError):\n        async with asyncio.timeout(0.1):\n            await asyncio.gather(fetch(1, 30), fetch(2, 0))\n    return 1\nassert asyncio.run(main()) == 1'),
    ('gather too late', 'import asyncio\nasync def fetch(n, s):\n    await asyncio.sleep(s)\n    return n\n', 'import asyncio, pytest\nasync def main():\n    with pytest.raises(asyncio.TimeoutError):\n        await asyncio.wait_for(asyncio.gather(fetch(1, 0), fetch(2, 30)), 0.1)\nasyncio.run(main())'),
    ('task too late', 'import asyncio\nasync def fetch(n, s):\n    await asyncio.sleep(s)\n    return n\n', 'import asyncio, pytest\nasync def main():\n    t = asyncio.create_task(fetch(1, 30))\n    with pytest.raises(asyncio.TimeoutError):\n        await asyncio.wait_for(t, 0.1)\n    assert t.cancelled() or t.done()\nasyncio.run(main())'),
    ('wait_for', 'import asyncio\nasync def slow(): await asyncio.sleep(5)', 'import asyncio, pytest\nasync def main():\n    with pytest.raises(asyncio.TimeoutError): await asyncio.wait_for(slow(), 0.05)\nasyncio.run(main())'),
    ('pickle', 'class A:\n    def __init__(self,x=0): self.x=x\n', 'import pickle\nassert pickle.loads(pickle.dumps(A(3))).x == 3'),
    ('own pickle bytes', 'import pickle\ndef dump(x): return pickle.dumps(x)', 'import pickle\nassert pickle.loads(dump([1, 2])) == [1, 2]'),
    ("loads the test's", 'import pickle\ndef load(b): return pickle.loads(b)', 'import pickle\nassert load(pickle.dumps([1, 2])) == [1, 2]'),
    ('literal', 'import ast\ndef f(x): return str([x])', 'import ast\nassert ast.literal_eval(f(3)) == [3]'),
    ('marshal', 'import marshal\ndef f(x): return marshal.dumps(x)', 'import marshal\nassert marshal.loads(f([1])) == [1]'),
    ('json text', 'import json\ndef f(x): return json.dumps(x)', 'import json\nassert json.loads(f([1])) == [1]'),
    ("the test's own eval", 'def f(x): return x + 1', "assert f(eval('2')) == 3"),
    ('shelve or copy', 'import copy\ndef f(x): return copy.deepcopy(x)', 'a=[[1]]\nb=f(a)\nassert b == a and b is not a'),
    ('namedtuple made', 'def f(x): return [x]', "from collections import namedtuple\nP = namedtuple('P', 'a')\nassert P(*f(3)).a == 3"),
    ('dataclass made', 'def f(x): return x', 'from dataclasses import dataclass\n@dataclass\nclass Q:\n    a: int\nassert Q(f(3)).a == 3'),
    ("sympify of the test's", "import sympy as sp\ndef f(): \n    x = sp.Symbol('x')\n    return x**2", "import sympy as sp\nassert f() == sp.sympify('x**2')"),
    ('simplify', "import sympy as sp\ndef f(): \n    x = sp.Symbol('x')\n    return x**2 - x*x + 1", 'import sympy as sp\nassert sp.simplify(f() - 1) == 0'),
    ('timeit of a lambda', 'def f(x): return x', 'import timeit\nassert timeit.timeit(lambda: f(1), number=3) < 5 and f(2) == 2'),
    ('datetime pickled', 'import pickle, datetime\ndef dump(x): return pickle.dumps(x)', "import pickle, datetime\nd = datetime.date(2020, 1, 1)\nassert pickle.loads(dump({'d': d, 's': {1}})) == {'d': d, 's': {1}}"),
    ('a frame', "import pandas as pd\ndef f(): return pd.DataFrame({'a': [1, 2]})", "import pandas as pd\nassert f().equals(pd.DataFrame({'a': [1, 2]}))"),
    ('a query', "import pandas as pd\ndef f(): return pd.DataFrame({'a': [1, 2]})", "assert len(f().query('a > 1')) == 1"),
    ('an Enum of the test', 'def f(c): return c.value', "from enum import Enum\nE = Enum('E', 'A B')\nassert f(E.B) == 2"),
    ('its own eval', "def eval(s):\n    a, b = s.split('+')\n    return int(a) + int(b)", "assert eval('1+2') == 3"),
    ('eval of a property', 'class Model:\n    def eval(self, x): return x + 1\n    def query(self, q): return [q]\n', "m = Model()\nassert m.eval(2) == 3\nassert m.query('a') == ['a']"),
    ('query of a variable', 'class Db:\n    def query(self, q): return [q]\n', "q = 'a'\nassert Db().query(q) == ['a']"),
    ('model eval of a variable', 'class Model:\n    def eval(self, x): return x + 1\n', 'x = 2\nassert Model().eval(x) == 3'),
    ('re.compile of it', "def f(): return 'a+'", "import re\nassert re.compile(f()).match('aa')"),
    ('forward references', 'def f(a): return a', "import typing\nclass A:\n    x: 'int'\nassert typing.get_type_hints(A) == {'x': int} and f(1) == 1"),
    ('logging Loader', 'class Loader:\n    def load(self): return 1', 'assert Loader().load() == 1'),
    ('networkx', 'import networkx as nx\ndef f(n):\n    g = nx.path_graph(n)\n    return list(g.edges())', 'import networkx as nx\ng = nx.Graph(f(4))\nassert nx.is_isomorphic(g, nx.path_graph(4)) and nx.shortest_path_length(g, 0, 3) == 3'),
    ('networkx flow', 'def f(n): return n', 'import networkx as nx\nassert nx.density(nx.complete_graph(4)) == f(1)'),
    ('attrs', 'def f(x): return x * 2', 'import attr\n@attr.s(auto_attribs=True)\nclass P:\n    x: int\nassert P(f(2)) == P(4)'),
    ('attrs frozen', 'def f(x): return x * 2', 'import attrs\n@attrs.frozen\nclass P:\n    x: int\nassert P(f(2)).x == 4'),
    ('jinja const', 'def f(x): return x * 2', "import jinja2\nassert jinja2.Template('{{ x }}').render(x=f(2)) == '4'"),
    ('pydantic', 'def f(x): return x * 2', 'from pydantic import BaseModel\nclass P(BaseModel):\n    x: int\nassert P(x=f(2)).x == 4'),
    ('types.coroutine', 'def f(x): return x * 2', 'import types\n@types.coroutine\ndef g():\n    yield 1\nassert f(2) == 4'),
    ('mock autospec', 'def f(x): return x * 2', 'from unittest import mock\ndef real(x): return 1\nm = mock.create_autospec(real, return_value=f(2))\nassert m(1) == 4'),
    ('sortedcontainers', 'def f(x): return x * 2', 'from sortedcontainers import SortedDict\nd = SortedDict({f(2): 1})\nassert list(d) == [4]'),
    ('numpy records', 'def f(x): return x * 2', "import numpy as np\nr = np.rec.fromrecords([(1, 2.0)], names='a,b')\nassert f(r.a[0]) == 2"),
    ('threads that ask', 'import threading\nclass Counter:\n    def __init__(self):\n        self.n, self.l = 0, threading.Lock()\n    def inc(self):\n        with self.l: self.n += 1', 'import threading\nc = Counter()\nts = [threading.Thread(target=c.inc) for _ in range(3)]\n[t.start() for t in ts]\n[t.join() for t in ts]\nassert c.n == 3'),
    ('a pool of threads that asks', 'def f(x): return x + 1', 'from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(4) as p:\n    assert list(p.map(f, range(20))) == list(range(1, 21))'),
    ("a pool of the solution's that asks the test", 'from concurrent.futures import ThreadPoolExecutor\ndef pmap(f, xs):\n    with ThreadPoolExecutor(3) as p:\n        return list(p.map(f, xs))', 'assert pmap(lambda x: x * x, range(8)) == [x * x for x in range(8)]'),
]  # fmt: skip
UNABLE: list[tuple[str, str, str]] = [
    ("file of the test", "import os\ndef count(path): return sum(1 for _ in open(path))\n", "def test_count(tmp_path):\n    p = tmp_path / 'a.txt'\n    p.write_text('1\\n2\\n')\n    assert count(str(p)) == 2"),
    ('typing hints', 'from typing import List, get_type_hints\ndef f(a: List[int]) -> List[str]: return []', "from typing import get_type_hints, List\nassert get_type_hints(f)['a'] == List[int]"),
    ('getsource', 'def f(x): return x', "import inspect\nassert 'return' in inspect.getsource(f)"),
    ('reads a file, open', 'def count(path):\n    with open(path) as f: return sum(1 for _ in f)', "with open('x.txt', 'w') as t:\n    t.write('a\\nb\\n')\nassert count('x.txt') == 2"),
    ('solution writes, test opens', "def save(path, text):\n    with open(path, 'w') as f: f.write(text)", "save('a.txt', 'hi')\nassert open('a.txt').read() == 'hi'"),
    ('metaclass name', 'class SingletonMeta(type):\n    _instances = {}\n    def __call__(cls, *a, **k):\n        if cls not in cls._instances: cls._instances[cls] = super().__call__(*a, **k)\n        return cls._instances[cls]\nclass Config(metaclass=SingletonMeta):\n    def __init__(self): self.v = 1\n', "assert type(Config).__name__ == 'SingletonMeta'\nassert Config() is Config()"),
    ('metaclass isinstance', 'class SingletonMeta(type):\n    _instances = {}\n    def __call__(cls, *a, **k):\n        if cls not in cls._instances: cls._instances[cls] = super().__call__(*a, **k)\n        return cls._instances[cls]\nclass Config(metaclass=SingletonMeta):\n    def __init__(self): self.v = 1\n', 'assert isinstance(Config, SingletonMeta)\nassert type(Config) is SingletonMeta'),
    ('abc meta', 'from abc import ABC, abstractmethod\nclass A(ABC):\n    @abstractmethod\n    def f(self): ...', "assert type(A).__name__ == 'ABCMeta'"),
    ('class annotations of lists', 'class P:\n    x: list[int]\n', "assert P.__annotations__['x'] == list[int]"),
    ("hints of a library's", 'from datetime import datetime\ndef f(a: datetime) -> int: return 1', "import typing\nfrom datetime import datetime\nassert typing.get_type_hints(f)['a'] is datetime"),
    ("task of the test's own", 'import asyncio\nasync def fetch(n, s):\n    await asyncio.sleep(s)\n    return n\n', 'import asyncio\nasync def both(): return await fetch(1, 0)\nasync def main():\n    return await asyncio.wait_for(asyncio.create_task(both()), 1)\nassert asyncio.run(main()) == 1'),
    ('evaluated', "def f(x): return f'{x} + 1'", 'assert eval(f(3)) == 4'),
    ('eval of repr', "class P:\n    def __init__(self, x): self.x = x\n    def __repr__(self): return f'P({self.x})'\n    def __eq__(self, o): return self.x == o.x", 'assert eval(repr(P(3))) == P(3)'),
    ('sympify of an answer', "def f(): return 'x**2'", "import sympy as sp\nassert sp.sympify(f()) == sp.Symbol('x')**2"),
    ('lambdified', "import sympy as sp\ndef f(): return sp.Symbol('x') ** 2", "import sympy as sp\nassert sp.lambdify(sp.Symbol('x'), f())(3) == 9"),
    ('a pool of processes', 'def f(x): return x + 1', 'from multiprocessing import Pool\nwith Pool(2) as pool:\n    assert pool.map(f, [1, 2]) == [2, 3]'),
    ('an executor of processes', 'def f(x): return x + 1', 'from concurrent.futures import ProcessPoolExecutor\nwith ProcessPoolExecutor(1) as pool:\n    assert list(pool.map(f, [1])) == [2]'),
    ('more threads than the limit', 'import threading\nclass Counter:\n    def __init__(self):\n        self.n, self.l = 0, threading.Lock()\n    def inc(self):\n        with self.l: self.n += 1', 'import threading\nc, go = Counter(), threading.Event()\ndef later():\n    go.wait()\n    c.inc()\nts = [threading.Thread(target=later, daemon=True) for _ in range(8)]\nfor t in ts: t.start()\ngo.set()\nfor t in ts: t.join()\nassert c.n == 8'),
    ('threads that meet', "import threading\nclass Meeting:\n    def __init__(self): self.both = threading.Barrier(2)\n    def come(self):\n        self.both.wait()\n        return 'met'", "import threading\nm = Meeting()\nout = []\nt = threading.Thread(target=lambda: out.append(m.come()))\nt.start()\nassert m.come() == 'met'\nt.join()\nassert out == ['met']"),
]  # fmt: skip
"""Tests that ask for what another process cannot give."""
