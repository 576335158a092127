"""The symbols that a grid is drawn with, where a user chooses them."""

from __future__ import annotations

from collections.abc import Mapping

from roll.core.configs.problems import ConfigError, Problem, did_you_mean


def checked_vocabulary(given: Mapping[str, str] | None, default: Mapping[str, str]) -> dict[str, str]:
    """`default` with what the user gave laid over it. Raises `ConfigError` unless every symbol is one character of its own:
    else two different states could look the same, or a row could be read in two ways."""
    problems = []
    for name, symbol in (given or {}).items():
        if name not in default:
            fix = did_you_mean(name, default, f"known: {', '.join(default)}")
            problems.append(Problem(f"grid_vocabulary.{name}", symbol, "is not a kind of square", fix))
        elif not isinstance(symbol, str) or len(symbol) != 1 or symbol in "\n\r":
            problems.append(Problem(f"grid_vocabulary.{name}", symbol, "must be one character", f"e.g. {default[name]!r}"))
    symbols = {**default, **(given or {})}
    if not problems and len(set(symbols.values())) < len(symbols):
        problems.append(
            Problem("grid_vocabulary", dict(symbols), "two kinds of squares have the same symbol", f"e.g. {dict(default)}")
        )
    if problems:
        raise ConfigError(problems)
    return symbols
