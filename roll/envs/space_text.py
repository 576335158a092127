"""A space of gymnasium as text: what its members are, how one is shown to the agent, and how what the agent writes is read back.

An observation is shown plainly: a number, a row of numbers, a line for each part of a Dict. An action of several parts is JSON,
which can be read in one way only: a list for MultiDiscrete, MultiBinary and Tuple, an object for Dict."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces

MOST_NUMBERS = 64
"""Most numbers of a Box, MultiDiscrete or MultiBinary: an observation with more is a picture, which text cannot show."""
ACTIONS = "Text, Discrete, MultiDiscrete, MultiBinary, and Tuple and Dict of these"
OBSERVATIONS = f"{ACTIONS}, and a Box of at most {MOST_NUMBERS} numbers"
_NAMED_CHARACTERS = 40
"""A set of characters that is no larger is written out."""


def flaw(space: Any, shown: bool) -> str:
    """The part of the space that is no text; empty if there is none. `shown`: as an observation, else as an action."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return next((found for found in (flaw(part, shown) for part in _parts(space).values()) if found), "")
    if isinstance(space, spaces.Discrete | spaces.Text):
        return ""
    row = isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary) or (shown and isinstance(space, spaces.Box))
    return "" if row and math.prod(space.shape) <= MOST_NUMBERS else str(space)[:200]


def _parts(space: Any) -> dict[Any, Any]:
    return dict(space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces))


def shown(space: Any, value: Any, digits: int) -> str:
    """An observation as text: numbers with so many significant digits, a line for each part of a Dict."""
    if isinstance(space, spaces.Dict):
        return "\n".join(f"{name}: {shown(part, value[name], digits)}" for name, part in space.spaces.items())
    if isinstance(space, spaces.Tuple):
        return "; ".join(shown(part, each, digits) for part, each in zip(space.spaces, value, strict=True))
    if isinstance(space, spaces.Text):
        return str(value)
    numbers = np.asarray(value).reshape(-1).tolist()
    return ", ".join(f"{number:.{digits}g}" if isinstance(number, float) else str(int(number)) for number in numbers)


def outside(space: Any, value: Any) -> str:
    """Returns why a text in an observation is not of its space; empty if the texts are."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = [(part, value[name]) for name, part in _parts(space).items() if name in value or isinstance(value, tuple)]
        return next((found for part, each in parts if (found := outside(part, each))), "")
    if not isinstance(space, spaces.Text) or not isinstance(value, str):
        return ""
    what = f"the text {value[:_NAMED_CHARACTERS]!r}"
    if odd := sorted({*value} - space.character_set):
        named = ", ".join({" ": "a space", "\n": "a line break", "\t": "a tab"}.get(each, repr(each)) for each in odd)
        return (
            f"{what} has {named}, which its Text space lacks: Text(..., charset=) names all that may occur (default: A-Z a-z 0-9)"
        )
    if not space.min_length <= len(value) <= space.max_length:
        return f"{what} has {len(value)} characters, and its Text space {space.min_length} to {space.max_length} (max_length=)"
    return ""


def described(space: Any) -> str:
    """Describes its members, as far as the space says it."""
    if isinstance(space, spaces.Dict):
        return "; ".join(f"{name}: {described(part)}" for name, part in space.spaces.items())
    if isinstance(space, spaces.Tuple):
        return "; ".join(described(part) for part in space.spaces)
    if isinstance(space, spaces.Text):
        return "a text"
    if isinstance(space, spaces.Discrete):
        return f"a number from {int(space.start)} to {int(space.start + space.n - 1)}"
    ranges = [f"{a:.3g} to {b:.3g}" if math.isfinite(a) and math.isfinite(b) else "any" for a, b in _bounds(space)]
    count = f"{len(ranges)} numbers" if isinstance(space, spaces.Box) else f"{len(ranges)} whole numbers"
    return f"{count} ({', '.join(ranges)})" if len(set(ranges)) > 1 else f"{count}, each {ranges[0]}"


def _bounds(space: Any) -> list[tuple[float, float]]:
    if isinstance(space, spaces.MultiBinary):
        return [(0, 1)] * math.prod(space.shape)
    if isinstance(space, spaces.MultiDiscrete):
        low: Any = space.start
        high: Any = space.start + space.nvec - 1
    else:
        low, high = space.low, space.high
    return list(zip(np.asarray(low).reshape(-1).tolist(), np.asarray(high).reshape(-1).tolist(), strict=True))


def text_wanted(space: spaces.Text) -> str:
    """Describes the texts that are in the space."""
    characters = "".join(sorted(space.character_set))
    length = f"{space.min_length} to {space.max_length}" if space.min_length != space.max_length else f"{space.max_length}"
    if characters.isascii() and characters.isalnum() and len(characters) == len(spaces.Text(1).character_set):
        return f"a text of {length} letters and digits"
    return f"a text of {length} characters" + (f" among {characters!r}" if len(characters) <= _NAMED_CHARACTERS else "")


def plain(space: Any, member: Any) -> Any:
    """A member of the space as a value of JSON."""
    if isinstance(space, spaces.Dict):
        return {str(name): plain(part, member[name]) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return [plain(part, each) for part, each in zip(space.spaces, member, strict=True)]
    return member if isinstance(space, spaces.Text) else np.asarray(member).tolist()


def member(space: Any, value: Any) -> Any:
    """The member of the space that a value of JSON stands for. Raises `ValueError` if it is none."""
    try:
        found = _converted(space, value)
    except OverflowError:
        raise ValueError("a number is too large") from None
    if not space.contains(found):
        raise ValueError(f"is not in {space}")
    return found


def _converted(space: Any, value: Any) -> Any:
    if isinstance(space, spaces.Dict) and isinstance(value, dict) and value.keys() == {str(name) for name in space.spaces}:
        return {name: _converted(part, value[str(name)]) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple) and isinstance(value, list):
        return tuple(_converted(part, each) for part, each in zip(space.spaces, value, strict=True))
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary) and _whole(value):
        return np.array(value, dtype=space.dtype)
    if (isinstance(space, spaces.Discrete) and type(value) is int) or (isinstance(space, spaces.Text) and isinstance(value, str)):
        return value
    raise ValueError(f"is not in {space}")


def _whole(value: object) -> bool:
    """True for a list of whole numbers, or of such lists: else numpy would round, and count True as 1."""
    return isinstance(value, list) and all(type(each) is int or _whole(each) for each in value)


def example(space: Any) -> Any:
    """A value of JSON that shows the form of an action."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = {str(name): example(part) for name, part in _parts(space).items()}
        return parts if isinstance(space, spaces.Dict) else list(parts.values())
    if isinstance(space, spaces.Text):
        return "..."
    if isinstance(space, spaces.Discrete):
        return int(space.start)
    return np.zeros(space.shape, int).tolist() if isinstance(space, spaces.MultiBinary) else space.start.tolist()
