"""Grammar of `device_mapping`, the global device indices of a role. Parsed, never evaluated."""

from __future__ import annotations

import re

GRAMMAR = 'a list of integers [0, 1], "0", "0-3,6", "list(range(0,4))", or such terms joined by "+"'
MAX_DEVICES = 65536

_INT = r"\s*([0-9]+)\s*"
_RANGE_CALL = re.compile(rf"\s*list\s*\(\s*range\s*\({_INT}(?:,{_INT})?(?:,{_INT})?\)\s*\)\s*")
_LIST = re.compile(r"\s*(?:list\s*\(\s*\[([^\[\]]*)\]\s*\)|\[([^\[\]]*)\])\s*")
_SPAN = re.compile(rf"{_INT}(?:-{_INT})?")


def parse_device_mapping(value: str | int | list[int]) -> tuple[int, ...]:
    """Returns the device indices in the order written, each at least 0 and unique.

    `"0-3,6"` includes both ends of a span; `list(range(a,b,step))` excludes `b`, as in Python.
    Raises `ValueError`, naming the value and the grammar."""
    if isinstance(value, bool) or not isinstance(value, (str, int, list)):
        raise _error(value, "is not a device mapping")
    if isinstance(value, str):
        devices = [device for term in value.split("+") for device in _parse_term(term, value)]
    else:
        devices = _checked_integers(value if isinstance(value, list) else [value], value)
    if not devices:
        raise _error(value, "names no device")
    duplicates = sorted({device for device in devices if devices.count(device) > 1}) if len(set(devices)) < len(devices) else []
    if duplicates:
        raise _error(value, f"names device {', '.join(map(str, duplicates))} more than once")
    return tuple(devices)


def _parse_term(term: str, whole: str) -> list[int]:
    if match := _RANGE_CALL.fullmatch(term):
        return _range_call([int(group) for group in match.groups() if group is not None], whole)
    if match := _LIST.fullmatch(term):
        listed = match.group(1) or match.group(2) or ""
        return _parse_spans(listed, whole) if listed.strip() else []
    return _parse_spans(term, whole)


def _parse_spans(text: str, whole: str) -> list[int]:
    devices: list[int] = []
    for part in text.split(","):
        match = _SPAN.fullmatch(part)
        if match is None:
            raise _error(whole, "has a negative index" if re.search(r"(^|[\s,(\[])-\s*[0-9]", whole) else "cannot be read")
        first, last = int(match.group(1)), int(match.group(2) or match.group(1))
        if last < first:
            raise _error(whole, f"has the reversed range {first}-{last}")
        devices += _bounded(range(first, last + 1), whole)
    return devices


def _range_call(arguments: list[int], whole: str) -> list[int]:
    if len(arguments) == 3 and arguments[2] == 0:
        raise _error(whole, "has a range with step 0")
    if len(arguments) > 1 and arguments[1] < arguments[0]:
        raise _error(whole, f"has the reversed range {arguments[0]} to {arguments[1]}")
    return _bounded(range(*arguments), whole)


def _bounded(indices: range, whole: str) -> list[int]:
    # Compared without len(), which overflows for absurd ranges.
    if indices and indices[-1] >= MAX_DEVICES:
        raise _error(whole, f"names a device beyond {MAX_DEVICES - 1}")
    return list(indices)


def _checked_integers(values: list[int], whole: object) -> list[int]:
    for value in values:
        if not isinstance(value, int) or isinstance(value, bool):
            raise _error(whole, f"has {value!r}, which is not an integer")
        if value < 0:
            raise _error(whole, "has a negative index")
        _bounded(range(value, value + 1), str(whole))
    return list(values)


def _error(value: object, reason: str) -> ValueError:
    return ValueError(f"device_mapping {value!r} {reason}; write {GRAMMAR}")
