"""Configs without their secrets, for whatever leaves the machine or lands in a log."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

HIDDEN = "***"
_SECRET = re.compile(r"key|secret|passw|credential", re.IGNORECASE)
_TOKEN = re.compile(r"token(?!iz)", re.IGNORECASE)
_URL_PASSWORD = re.compile(r"(://[^/@:\s]*:)[^/@\s]+(?=@)")


def redact(value: Any) -> Any:
    """A copy of a nested config in which values under keys like `api_key`, `hf_token`, `secret`, `password` read `***`.

    Under a name with "token", which is also what a language model counts, only text is a secret (`max_new_tokens: 64` stays).
    Passwords inside URLs go too."""
    if isinstance(value, Mapping):
        return {key: HIDDEN if _is_secret(str(key), item) else redact(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact(item) for item in value]
    return _URL_PASSWORD.sub(rf"\1{HIDDEN}", value) if isinstance(value, str) else value


def secrets(value: Any) -> Iterator[str]:
    """The texts that `redact` hides because of their key."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(item) if _is_secret(str(key), item) else secrets(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from secrets(item)


def _is_secret(key: str, value: Any) -> bool:
    if value is None or isinstance(value, bool) or value == "":
        return False
    return bool(_SECRET.search(key)) or (not isinstance(value, int | float) and bool(_TOKEN.search(key)))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
    elif value is not None:
        yield str(value)
