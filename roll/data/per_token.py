"""Numbers of a response, one per token, kept as an array: a Python list of them takes five times the memory, is copied number by
number wherever it travels, and is gone through by each search for garbage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, SupportsIndex, TypeVar, overload

import numpy as np

T = TypeVar("T", int, float)


class PerToken(Sequence[T]):
    """Reads as the list of its numbers, equals it and adds to it; it does not change."""

    __slots__ = ("array",)
    __hash__ = None  # type: ignore[assignment]  # as a list

    def __init__(self, values: Sequence[T], dtype: type[np.generic]) -> None:
        self.array: np.ndarray[Any, Any] = values.array if isinstance(values, PerToken) else np.array(values, dtype)

    @classmethod
    def _of(cls, array: np.ndarray[Any, Any]) -> PerToken[T]:
        made = cls.__new__(cls)
        made.array = array
        return made

    @classmethod
    def _of_bytes(cls, data: bytes, dtype: str) -> PerToken[T]:
        return cls._of(np.frombuffer(data, dtype))

    def __reduce__(self) -> tuple[object, ...]:
        return self._of_bytes, (self.array.tobytes(), self.array.dtype.str)

    def __len__(self) -> int:
        return len(self.array)

    @overload
    def __getitem__(self, index: SupportsIndex) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> PerToken[T]: ...
    def __getitem__(self, index: Any) -> Any:
        found = self.array[index]
        return self._of(found) if isinstance(index, slice) else found.item()

    def __iter__(self) -> Iterator[T]:
        return iter(self.tolist())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(self.array, dtype) if copy else np.asarray(self.array, dtype)

    def __add__(self, other: Sequence[T]) -> PerToken[T]:
        return self._of(np.concatenate([self.array, np.asarray(other, self.array.dtype)]))

    def __radd__(self, other: Sequence[T]) -> PerToken[T]:
        return self._of(np.concatenate([np.asarray(other, self.array.dtype), self.array]))

    def __eq__(self, other: object) -> bool:
        return self.tolist() == list(other) if isinstance(other, PerToken | list) else NotImplemented

    def __repr__(self) -> str:
        return repr(self.tolist())

    def tolist(self) -> list[T]:
        found: list[T] = self.array.tolist()
        return found


def token_ids(values: Sequence[int]) -> PerToken[int]:
    return PerToken(values, np.int32)


def log_probs(values: Sequence[float]) -> PerToken[float]:
    """Doubles: what an engine said, to the last bit."""
    return PerToken(values, np.float64)
