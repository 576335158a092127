"""Values of NumPy, pandas, SymPy and torch as JSON, so that a test asks genuine ones.

Who writes is not believed: a reader builds values from numbers, texts and names that it looks up in lists of its own. What has
no such form stays where it is.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Callable
from typing import Any

Write = Callable[[Any], Any]
"""From a value inside to its JSON."""
Read = Callable[[Any], Any]
"""Back."""

_NUMBERS = re.compile(r"[<>|=][biufcU]\d+")
_DTYPES = re.compile(
    r"object|str|string|category|u?int\d+|U?Int\d+|[fF]loat\d+|complex\d+|bool|boolean"
    r"|(datetime|timedelta)64\[(s|ms|us|ns)(, [\w/+-]+)?\]"
)
_TORCH = frozenset(
    ["float16", "float32", "float64", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "bool", "complex64", "complex128"]
)
_TEXTS_OF = frozenset({"Symbol", "Dummy", "Wild", "Float", "Str", "Function", "MatrixSymbol"})
"""SymPy's classes that take a text as a text; others would run it."""


def to_library(value: Any, write: Write) -> dict[str, Any] | None:
    """None for what has no form."""
    kind = type(value)
    module = kind.__module__.partition(".")[0]
    if module == "sympy":
        sympy = importlib.import_module("sympy")
        if isinstance(value, sympy.Basic | sympy.MatrixBase):
            return {"sympy": sympy.srepr(value)}
    write_it = _WRITERS.get((module, kind.__name__))
    return None if write_it is None else write_it(value, write)


def _write_array(value: Any, write: Write) -> dict[str, Any] | None:
    if value.dtype == object or _NUMBERS.fullmatch(value.dtype.str):
        return {"ndarray": ["O" if value.dtype == object else value.dtype.str, list(value.shape), write(value.ravel().tolist())]}
    if value.dtype.kind in "mM":
        return {"ndarray": [value.dtype.str, list(value.shape), write(value.ravel().astype("int64").tolist())]}
    return None


def _write_column(value: Any, write: Write) -> list[Any]:
    dtype = str(value.dtype)
    if dtype == "category":
        return [dtype, write(value.tolist())]
    if dtype.startswith(("datetime64", "timedelta64")):
        return [dtype, write([None if each is None or each != each else str(each) for each in value])]
    return [dtype, write([None if each is _missing() else each for each in value.tolist()])]


def _missing() -> Any:
    return importlib.import_module("pandas").NA


def _write_index(value: Any, write: Write) -> Any:
    kind = type(value).__name__
    if kind == "RangeIndex":
        return ["range", value.start, value.stop, value.step, write(value.name)]
    if kind == "MultiIndex":
        return ["tuples", write(value.tolist()), write(list(value.names))]
    return ["values", _write_column(value, write), write(value.name), str(getattr(value, "freqstr", None) or "")]


def _write_series(value: Any, write: Write) -> dict[str, Any]:
    return {"Series": [_write_column(value, write), _write_index(value.index, write), write(value.name)]}


def _write_frame(value: Any, write: Write) -> dict[str, Any]:
    columns = [_write_column(value.iloc[:, i], write) for i in range(value.shape[1])]
    return {"DataFrame": [columns, _write_index(value.index, write), _write_index(value.columns, write)]}


def _write_tensor(value: Any, write: Write) -> dict[str, Any]:
    return {"Tensor": [str(value.dtype).removeprefix("torch."), list(value.shape), write(value.detach().flatten().tolist())]}


_WRITERS: dict[tuple[str, str], Callable[[Any, Write], dict[str, Any] | None]] = {
    ("numpy", "ndarray"): _write_array,
    ("pandas", "Series"): _write_series,
    ("pandas", "DataFrame"): _write_frame,
    **{
        ("pandas", name): lambda value, write: {"Index": _write_index(value, write)}
        for name in ("Index", "RangeIndex", "MultiIndex", "DatetimeIndex")
    },
    ("pandas", "Timestamp"): lambda value, write: {"Timestamp": str(value)},
    ("pandas", "Timedelta"): lambda value, write: {"Timedelta": str(value)},
    ("pandas", "NAType"): lambda value, write: {"missing": "NA"},
    ("pandas", "NaTType"): lambda value, write: {"missing": "NaT"},
    ("torch", "Tensor"): _write_tensor,
    ("torch", "Parameter"): _write_tensor,
}


def from_library(name: str, content: Any, read: Read) -> Any:
    """Raises `ValueError` and other errors of a value's kind for what `to_library` has not written; KeyError for another name."""
    return _READERS[name](content, read)


def _read_array(content: Any, read: Read) -> Any:
    import numpy

    numbers, shape, flat = content[0], [int(each) for each in content[1]], read(content[2])
    if numbers == "O":
        array: Any = numpy.empty(len(flat), object)
        array[:] = flat
        return array.reshape(shape)
    if re.fullmatch(r"[<>][mM]8\[\w+\]", numbers):
        return numpy.array(flat, "int64").astype(numbers).reshape(shape)
    if not _NUMBERS.fullmatch(numbers):
        raise ValueError(f"{numbers} is not a type of number")
    return numpy.array(flat, numbers).reshape(shape)


def _read_column(content: Any, read: Read, kind: str = "Series") -> Any:
    pandas = importlib.import_module("pandas")
    dtype, values = str(content[0]), read(content[1])
    if not _DTYPES.fullmatch(dtype):
        raise ValueError(f"{dtype} is not a type of column")
    if dtype.startswith("datetime64") and "," in dtype:
        read_utc = pandas.to_datetime(pandas.Series(values, dtype="object"), utc=True).astype(dtype)
        return read_utc if kind == "Series" else pandas.DatetimeIndex(read_utc)
    return getattr(pandas, kind)(values, dtype=dtype)


def _read_index(content: Any, read: Read) -> Any:
    pandas = importlib.import_module("pandas")
    if content[0] == "range":
        return pandas.RangeIndex(*(int(each) for each in content[1:4]), name=read(content[4]))
    if content[0] == "tuples":
        return pandas.MultiIndex.from_tuples(read(content[1]), names=read(content[2]))
    index = _read_column(content[1], read, "Index")
    index.name = read(content[2])
    if content[3] and hasattr(index, "freq"):
        index.freq = str(content[3])
    return index


def _read_series(content: Any, read: Read) -> Any:
    series = _read_column(content[0], read)
    series.index, series.name = _read_index(content[1], read), read(content[2])
    return series


def _read_frame(content: Any, read: Read) -> Any:
    pandas = importlib.import_module("pandas")
    index = _read_index(content[1], read)
    frame = pandas.DataFrame({i: _read_column(each, read) for i, each in enumerate(content[0])}, index=range(len(index)))
    frame.index, frame.columns = index, _read_index(content[2], read)
    return frame


def _read_tensor(content: Any, read: Read) -> Any:
    torch = importlib.import_module("torch")
    if content[0] not in _TORCH:
        raise ValueError(f"{content[0]} is not a type of tensor")
    return torch.tensor(read(content[2]), dtype=getattr(torch, content[0])).reshape([int(each) for each in content[1]])


def _read_sympy(content: Any, read: Read) -> Any:
    return _built(ast.parse(str(content), mode="eval").body)


def _built(node: ast.expr) -> Any:
    """Reads the output of SymPy's `srepr`; nothing is run but constructors of SymPy's own types."""
    sympy: Any = importlib.import_module("sympy")
    match node:
        case ast.Constant(value=value) if value is None or type(value) in (int, float, bool):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_built(operand)
        case ast.Tuple(elts=items):
            return tuple(map(_built, items))
        case ast.List(elts=items):
            return list(map(_built, items))
        case ast.Name(id=name) | ast.Attribute(value=ast.Name(id="S"), attr=name) if isinstance(
            _known(name), sympy.Basic | type(sympy.pi)
        ):
            return _known(name)
        case ast.Call(func=ast.Call() as function, args=arguments):
            return _built(function)(*map(_built, arguments))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=named):
            cls = _known(name)
            if not (isinstance(cls, type) and issubclass(cls, sympy.Basic | sympy.MatrixBase)):
                raise ValueError(f"{name} is no type of SymPy's")
            texts = [each.value if isinstance(each, ast.Constant) and name in _TEXTS_OF else _built(each) for each in arguments]
            return cls(*texts, **{str(each.arg): _built(each.value) for each in named})
    raise ValueError(f"SymPy has not written {ast.unparse(node)[:60]}")


def _known(name: str) -> Any:
    sympy: Any = importlib.import_module("sympy")
    found = getattr(sympy, name, None)
    return getattr(sympy.S, name, None) if found is None and not name.startswith("_") else found


def _missing_value(content: Any, read: Read) -> Any:
    pandas = importlib.import_module("pandas")
    return pandas.NA if content == "NA" else pandas.NaT


_READERS: dict[str, Callable[[Any, Read], Any]] = {
    "ndarray": _read_array,
    "Series": _read_series,
    "DataFrame": _read_frame,
    "Index": _read_index,
    "Timestamp": lambda content, read: importlib.import_module("pandas").Timestamp(str(content)),
    "Timedelta": lambda content, read: importlib.import_module("pandas").Timedelta(str(content)),
    "missing": _missing_value,
    "Tensor": _read_tensor,
    "sympy": _read_sympy,
}
NAMES = frozenset(_READERS)
LIBRARIES = frozenset({"numpy", "pandas", "sympy", "torch"})
