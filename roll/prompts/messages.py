"""Chat messages that somebody else wrote, read into what chat templates show: roles that they know, each content a text, in an
order that is a conversation. A template says nothing of a content that it cannot show: it prints what it gets."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from roll.core.errors import PromptFileError

ROLES = {"developer": "system", "system": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
"""A role in OpenAI's form -> the same in chat templates."""
_MEANT = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant", "ai": "assistant"}
_MEANT |= {"function": "tool", "observation": "tool", "ipython": "tool"}
"""Roles of other forms, which templates write as they stand, and no model was trained with."""
IMAGE = {"type": "image"}
"""The mark of an image in a content, as chat templates of models that see know it."""
IMAGE_KINDS = ("image", "image_url", "input_image")
"""Types of parts that are images: Anthropic's, OpenAI's of Chat Completions, and of Responses."""
_CONTINUED = "data_args.continue_final_message: true, if the policy is to go on from it; else leave it out of the row"


def read_messages(value: Sequence[object], where: str, begun: bool) -> list[dict[str, Any]]:
    """`where`: file, line and column, for errors. `begun`: whether an answer that is begun may stand at the end. Raises
    `PromptFileError`."""
    messages = read_turns(value, where)
    last, place = messages[-1], f"{where}[{len(messages) - 1}]"
    if last["role"] == "system":
        raise PromptFileError(f"{place} is the system's, and nobody asks anything behind it", "end the row with a user's message")
    if last["role"] == "assistant" and not begun:
        raise PromptFileError(f"{place} is the assistant's: the prompt would have an answer already", _CONTINUED)
    if last["role"] == "assistant" and last.get("tool_calls"):
        raise PromptFileError(f"{place} calls tools, and nobody goes on from that", "leave the message out of the row")
    return messages


def read_turns(value: Sequence[object], where: str) -> list[dict[str, Any]]:
    """As `read_messages`, whoever speaks last."""
    messages = [_message(each, f"{where}[{i}]") for i, each in enumerate(value)]
    for i, message in enumerate(messages):
        _check_order(messages[:i], message, f"{where}[{i}]")
    return messages


Show = Callable[[Mapping[str, Any]], str]
"""Stores the image in a part; the text that stands for it."""


def joined(content: object, kinds: Sequence[str] = ("text",), show: Show | None = None) -> str:
    """The text of a content: a text, or a list of parts, which may be of these types, or images if there is `show`. Raises
    `ValueError`."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ValueError("the content of a message is a text or a list of parts")
    return "".join(_parts(content, kinds, show))


def _parts(content: Sequence[object], kinds: Sequence[str], show: Show | None) -> Iterator[str]:
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(part, dict) and kind in kinds and isinstance(part.get("text"), str):
            yield part["text"]
        elif isinstance(part, str):
            yield part
        elif isinstance(part, dict) and kind in IMAGE_KINDS and show is not None:
            yield show(part)
        else:
            raise ValueError(f"this model reads text: a part of type {kind!r} cannot be shown to it")


def texts_of(content: str | list[dict[str, Any]]) -> list[str]:
    """The texts of a content that was read, between its images."""
    return [content] if isinstance(content, str) else [str(part["text"]) for part in content if "text" in part]


def _content(given: object) -> str | list[dict[str, Any]]:
    """A text, or texts and marks of images where there are any."""
    if not isinstance(given, list) or IMAGE not in given:
        return joined(given)
    return [IMAGE if part == IMAGE else {"type": "text", "text": joined([part])} for part in given]


def _message(given: object, where: str) -> dict[str, Any]:
    if not isinstance(given, dict) or not isinstance(role := given.get("role"), str):
        raise PromptFileError(f'{where} is not a message {{"role": ..., "content": ...}}')
    if role not in ROLES:
        fix = f"write {_MEANT[role]}" if role in _MEANT else f"one of {', '.join(ROLES)}"
        raise PromptFileError(f"{where} has the role {role!r}", fix)
    calls = given.get("tool_calls") if role == "assistant" else None
    if given.get("content") is None and not calls:
        if "content" not in given:
            raise PromptFileError(f'{where} is not a message {{"role": ..., "content": ...}}')
        raise PromptFileError(f"{where} has null for a content", "a text, or leave the message out of the row")
    try:
        content = "" if given.get("content") is None else _content(given["content"])
    except ValueError as error:
        raise PromptFileError(f"{where}: {error}", 'a text, or a list of {"type": "text", "text": ...}') from None
    message = {**given, "role": ROLES[role], "content": content}
    return {**message, "tool_calls": _calls(calls, where)} if calls else message


def _check_order(before: Sequence[Mapping[str, Any]], message: Mapping[str, Any], where: str) -> None:
    """Checks that each speaks in its turn. Two messages of a user one after the other are the template's to show or
    refuse."""
    role = message["role"]
    if role == "system" and before:
        raise PromptFileError(f"{where} is the system's, which comes first", "join it to the first message, or make it a user's")
    if role == "tool" and not (before and (before[-1]["role"] == "tool" or before[-1].get("tool_calls"))):
        raise PromptFileError(f"{where} is a tool's, and no message before it calls one", "tool_calls in the message before it")


def _calls(calls: object, where: str) -> list[Any]:
    """Calls with mappings for arguments, as templates show them; OpenAI's form has the JSON of one."""
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise PromptFileError(f"{where}.tool_calls is no list of calls")
    return [_call(call) for call in calls]


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(text := function.get("arguments"), str):
        return dict(call)
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError):
        return dict(call)
    return {**call, "function": {**function, "arguments": arguments}} if isinstance(arguments, dict) else dict(call)
