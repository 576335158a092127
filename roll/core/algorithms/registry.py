"""`Registry`: named functions that a configuration picks by string.

A name is either one that was registered here, or the dotted path `package.module.function` of a user's own function, so
nothing has to be edited in this package to add one. Anything else is an error that names the nearest known name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Generic, TypeVar

from roll.core.configs.dotted_path import import_failure, named_object
from roll.core.configs.problems import did_you_mean
from roll.core.errors import boundary

F = TypeVar("F", bound=Callable[..., Any])


def unknown_name(kind: str, name: str, known: Iterable[str]) -> ValueError:
    """The error to raise for a `name` that is not among the `known` ones of this `kind`."""
    names = sorted(known)
    hint = did_you_mean(name, names)
    return ValueError(f"unknown {kind} {name!r}; {hint}{' ' * bool(hint)}known: {', '.join(names)}")


class Registry(Generic[F]):
    """Functions of one `kind` by name. Called with a name it is the decorator that registers a function."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._functions: dict[str, F] = {}

    def __call__(self, name: str) -> Callable[[F], F]:
        def register(function: F) -> F:
            if name in self._functions:
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            self._functions[name] = function
            return function

        return register

    @property
    def names(self) -> list[str]:
        return sorted(self._functions)

    def get(self, name: str) -> F:
        """The function called `name`, registered or dotted. `ValueError` if there is none."""
        if name in self._functions:
            return self._functions[name]
        if "." in name:
            return self._import(name)
        raise unknown_name(self.kind, name, self._functions)

    def _import(self, path: str) -> F:
        with boundary(ValueError, f"cannot load {self.kind} {path!r}", say=partial(import_failure, path)):
            function = named_object(path)
        if not callable(function):
            raise ValueError(f"cannot load {self.kind} {path!r}: it is not a function")
        return function  # type: ignore[no-any-return]
