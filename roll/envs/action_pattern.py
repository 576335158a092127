"""The action within an answer, found by a regular expression of the user's. Environments of other interpreters read it, too."""

from __future__ import annotations

import re

from roll.core.configs.problems import ConfigError, Problem

ANSWER_PATTERN = r"<answer>(.*?)</answer>"
"""The default where an action is no free text: the agent may think aloud, the answer is between the tags."""
WHOLE_TEXT = "(.*)"
"""The default where it is one."""
LONGEST_TEXT = 1 << 16
"""Characters that are searched, from the end. A user's pattern need not be safe against texts without end."""


def compiled(pattern: str, key: str = "action_pattern") -> re.Pattern[str]:
    """A user's action pattern. Raises `ConfigError`."""
    try:
        expression = re.compile(pattern, re.DOTALL)
    except re.error as error:
        raise ConfigError([Problem(key, pattern, f"is not a regular expression: {error}", f"e.g. {ANSWER_PATTERN}")]) from None
    if expression.groups < 1:
        raise ConfigError([Problem(key, pattern, "has no group", f"put the action in brackets, e.g. {ANSWER_PATTERN}")])
    return expression


def found_in(pattern: re.Pattern[str], text: str) -> str | None:
    """The first group of the last match, or None; all of the text for `(.*)`, which finds an empty match at its end besides."""
    if pattern.pattern == WHOLE_TEXT:
        return text
    found: str | None = None
    for match in pattern.finditer(text[-LONGEST_TEXT:]):
        if match.end() > match.start():
            found = match.group(1)
    return found
