"""The policy's text, read as thinking, text and calls of tools.

Calls have the form that Hermes began and Qwen, among others, writes: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.
An answer with a call that cannot be read has none: all of it is text, as it was written, and so is one that was cut inside a
call. Nothing is repaired: the policy is rewarded for the text that the program hears."""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass
from typing import Any

from roll.chat.conversation import ToolCall
from roll.core.data.untrusted import complaint

BEGIN, END = "<tool_call>", "</tool_call>"
CALL = re.compile(f"{BEGIN}(.*?){END}", re.DOTALL)
THINK, THOUGHT = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class Said:
    content: str
    thinking: str
    calls: list[ToolCall]


def read_answer(text: str, thinks: bool, reads_calls: bool) -> Said:
    """`thinks`: whether the template has begun the thinking, so that the answer only ends it."""
    thinking, rest = _apart(text, thinks)
    calls = _calls(rest) if reads_calls and BEGIN in rest else None
    if calls is None:
        return Said(rest.strip("\n") if thinking else rest, thinking, [])
    return Said(CALL.sub("", rest).strip(), thinking, calls)


def _apart(text: str, thinks: bool) -> tuple[str, str]:
    """Returns thinking, and the text behind it. If it was cut off, there is no more."""
    begins = text.lstrip().startswith(THINK)
    if not begins and not thinks:
        return "", text
    inner = text.lstrip().removeprefix(THINK) if begins else text
    thinking, _, rest = inner.partition(THOUGHT)
    return thinking.strip(), rest


def _calls(text: str) -> list[ToolCall] | None:
    if CALL.sub("", text).count(BEGIN):
        return None  # cut off inside a call
    calls = []
    for inner in CALL.findall(text):
        call = _call(inner)
        if call is None:
            return None
        calls.append(call)
    return calls


def _call(text: str) -> ToolCall | None:
    try:
        given: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(given, dict) or complaint(given):
        return None
    name, arguments = given.get("name"), given.get("arguments", {})
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    return ToolCall(new_id("call"), name, arguments)


def new_id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(12)}"
