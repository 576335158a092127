"""Makes values safe to show: no secrets in a log or on another machine, no control characters on a terminal.

Secrets are recognised by names: of keys, of `NAME=value` inside texts, of parameters in URLs, of environment variables
(`hide_values`). A name is read word by word, so that `auth_token` matches and `author` does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

HIDDEN = "***"
SHORTEST = 8

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SECRET_WORDS = frozenset(
    (
        *("auth", "oauth", "authorization", "authorisation", "bearer", "cookie", "cookies", "pwd", "pw"),
        *("dsn", "pat", "signature", "sas", "pin"),
    )
)
_SECRET_PART = re.compile(
    r"secret(?!ar)|passw|passphrase|credential|apikey|accesskey|privatekey|authkey|authtoken|pwd|dsn$|^xaccess|^hf$",
    re.IGNORECASE,
)
_OPEN_WORDS = frozenset(
    (
        *("eos", "bos", "pad", "unk", "sep", "cls", "mask", "stop", "special", "image", "audio", "padding", "sort", "group"),
        *("max", "min", "num", "per", "level", "count", "type", "ids", "foreign", "primary", "cache", "batch", "microbatch"),
        *("prompt", "response", "messages", "length", "step", "turn", "second", "episode", "budget", "limit"),
        *("size", "question", "answer", "hint", "fn", "video"),
    )
)
"""Words beside "key" and "token" that make them harmless: `eos_token`, `num_key_value_heads`."""
_SIGNATURE = "sig"
"""A further name of secrets among the parameters of a URL."""

_URL_USER = re.compile(r"(?P<before>https?://)(?P<hidden>[^/@:\s'\"?#]+)(?=@)", re.I)
_URL_PASSWORD = re.compile(r"(?P<before>://[^/@:\s]*:)(?P<hidden>[^/@\s]+)(?=@)")
_URL_PARAMETER = re.compile(r"(?P<before>[?&;](?P<name>[\w.%-]+)=)(?P<hidden>[^&;#\s'\"]+)")
_ASSIGNMENT = re.compile(
    r"(?P<before>(?<![\w.?&;%-])[+~-]*(?P<name>[A-Za-z_][\w.-]*)=)(?P<hidden>'[^']*'|\"[^\"]*\"|[^\s'\"]\S*)"
)
_HEADER = re.compile(
    r"(?P<before>\b(?P<name>(?:proxy-)?authorization|(?:set-)?cookie|x-[\w-]*(?:key|token)) *: *)(?P<hidden>[^\s'\"][^'\"\n]*)",
    re.IGNORECASE,
)
_BEARER = re.compile(r"(?P<before>\bbearer +)(?P<hidden>[\w.~+/=-]{8,})", re.IGNORECASE)
_NUMBER = re.compile(r"[+-]?\d{1,12}(\.\d+)?")
_INSIDE_TEXT = (_URL_PASSWORD, _URL_USER, _URL_PARAMETER, _ASSIGNMENT, _HEADER, _BEARER)


_known: list[str] = []
"""Values hidden under every key, the longest first."""


def hide_values(environment: Mapping[str, str]) -> None:
    """Hides the secrets among these variables from now on, under every key, because a configuration may have read them
    (`${oc.env:NAME}`). Short values are not hidden, because they occur in ordinary words."""
    named = {value for name, value in environment.items() if name not in ("PWD", "OLDPWD") and is_secret(name, value)}
    _known[:] = sorted((value for value in named if len(value) >= SHORTEST), key=lambda value: (-len(value), value))


def redact(value: object) -> Any:
    """Copies a nested config, with `***` for values under keys like `api_key`, `hf_token`, `authorization`, `password`.

    Under a name with "token" or "key", which are also words of language models, only text is a secret (`max_new_tokens: 64`
    stays). In texts it hides passwords and parameters of URLs, `NAME=value`, and words after `Authorization:` and `Bearer`."""
    if isinstance(value, Mapping):
        named = _named_value(value)
        return {key: HIDDEN if key == named or is_secret(str(key), item) else redact(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        after_option = _after_options(value)
        return [HIDDEN if i in after_option else redact(item) for i, item in enumerate(value)]
    return redact_text(value) if isinstance(value, str) else value


def redact_text(text: str) -> str:
    for value in _known:
        text = text.replace(value, HIDDEN)
    for pattern in _INSIDE_TEXT:
        text = pattern.sub(lambda found: found["before"] + HIDDEN if _hides(found) else found[0], text)
    return text


def redact_at(path: str, value: object) -> Any:
    """Redacts the value of a key given by its dotted path: `***` if one of the path's names marks a secret."""
    names = [name for name in re.split(r"[.\[\]\s]+", path.lstrip("+~-")) if name and not name.isdigit()]
    return HIDDEN if any(is_secret(name, value) for name in names) else redact(value)


def secrets(value: object) -> Iterator[str]:
    """Yields the texts that `redact` hides."""
    if isinstance(value, Mapping):
        named = _named_value(value)
        for key, item in value.items():
            yield from _texts(item) if key == named or is_secret(str(key), item) else secrets(item)
    elif isinstance(value, list | tuple):
        after_option = _after_options(value)
        for i, item in enumerate(value):
            yield from _texts(item) if i in after_option else secrets(item)
    elif isinstance(value, str):
        yield from (found for found in _known if found in value)
        for pattern in _INSIDE_TEXT:
            yield from (found["hidden"] for found in pattern.finditer(value) if _hides(found) and found["hidden"] != HIDDEN)


def is_secret(name: str, value: object) -> bool:
    """True if a value is a secret by its name."""
    if value is None or isinstance(value, bool) or value == "":
        return False
    words = [word.lower() for word in _WORD.findall(name)]
    if _SECRET_WORDS & {*words} or _SECRET_PART.search(name.replace("_", "").replace("-", "")):
        return True
    counted = [word for word in words if word in ("key", "keys", "token", "tokens")]
    return bool(counted) and not _OPEN_WORDS & {*words} and not _is_number(value)


def _is_number(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_number(item) for item in value)
    return isinstance(value, int | float) or (isinstance(value, str) and _NUMBER.fullmatch(value) is not None)


def _hides(found: re.Match[str]) -> bool:
    if "name" not in found.re.groupindex:
        return True
    name = found["name"]
    if found.re is _URL_PARAMETER and _SIGNATURE in {word.lower() for word in _WORD.findall(name)}:
        return True
    generic = found.re is _ASSIGNMENT and name.lower() == "key"  # as in "write key=value"
    return not generic and is_secret(name, found["hidden"].strip("'\""))


def _named_value(value: Mapping[object, object]) -> str:
    """Returns the key of the secret in `{name: API_KEY, value: ...}`; empty if there is none."""
    name = value.get("name", value.get("key"))
    return "value" if isinstance(name, str) and "value" in value and is_secret(name, value["value"]) else ""


def _after_options(value: Sequence[object]) -> set[int]:
    """Returns the positions of secrets in a list like `[--api-key, ...]`, by the option before them."""
    pairs = enumerate(pairwise(value), start=1)
    options = {i: (option, item) for i, (option, item) in pairs if isinstance(option, str) and re.fullmatch(r"--?[\w-]+", option)}
    return {i for i, (option, item) in options.items() if is_secret(option, item)}


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
    elif value is not None:
        yield str(value)


def visible(text: str, keep: str = "") -> str:
    """Replaces control characters (escapes, carriage returns), marks of writing direction and lone surrogates by Python's
    escapes. `keep`: characters to leave unchanged, such as line ends."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() or character in keep else repr(character)[1:-1] for character in text)
