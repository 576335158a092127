"""Text that somebody else wrote (a model, an environment, a file), for a terminal: it can be read, and steers nothing."""

from __future__ import annotations


def visible(text: str, keep: str = "") -> str:
    """Control characters (escapes, carriage returns), marks that turn the direction of writing, and lone surrogates become
    Python's escapes. `keep`: characters that stay as they are, such as line ends."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() or character in keep else repr(character)[1:-1] for character in text)
