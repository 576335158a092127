"""The child side of `TemplateProcess`: `python -m roll.prompts.template_process`.

A chat template comes with a model folder, and a program in it may loop for ever or fill the memory. So it runs here: the kernel
ends the process when one conversation has taken `CPU_LIMIT_S` of its time, inside whatever call it is stuck, and its memory is
limited. Reads a line of JSON with the template and its special tokens, then per line one list of messages, or what `render` is
given for one; writes a line for each, `{"text": ...}` or `{"error": ...}`.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO

CPU_LIMIT_S = 2.0
"""For one conversation, which takes about a millisecond."""
LONGEST_TEXT = 16 << 20
"""Characters of one conversation."""
MEMORY_BYTES = 2 << 30
"""Above what the process has when it begins."""


def render(
    template: str,
    special: dict[str, Any],
    messages: list[dict[str, Any]],
    whole: bool = False,
    tools: list[Any] | None = None,
    asks: bool = False,
) -> str:
    """Ends where the assistant's turn begins, or behind an answer that is begun, unless the conversation is `whole`. `asks`: the
    turn begins whoever spoke last."""
    from transformers.utils.chat_template_utils import render_jinja_template

    begun = not (whole or asks) and messages[-1]["role"] == "assistant"
    rendered: Any = render_jinja_template(
        conversations=[messages],
        chat_template=template,
        tools=tools,
        add_generation_prompt=not whole and not begun,
        continue_final_message=begun,
        **special,
    )
    return str(rendered[0][0])


def whole_conversation(item: dict[str, Any]) -> str:
    """A conversation to its end, for a process that keeps the time itself. `item`: template, special and messages."""
    return render(item["template"], item["special"], item["messages"], whole=True)


def answers(source: BinaryIO) -> Iterator[dict[str, str]]:
    setup = json.loads(source.readline())
    for line in source:
        signal.setitimer(signal.ITIMER_PROF, CPU_LIMIT_S)
        answer = _answer(setup["template"], setup["special"], line)
        signal.setitimer(signal.ITIMER_PROF, 0)
        yield answer


def _answer(template: str, special: dict[str, object], line: bytes) -> dict[str, str]:
    try:
        asked = json.loads(line)
        text = render(template, special, **(asked if isinstance(asked, dict) else {"messages": asked}))
    except Exception as error:  # boundary: a template may raise anything
        return {"error": f"refuses the messages: {type(error).__name__}: {error}"[:1000]}
    if len(text) > LONGEST_TEXT:
        return {"error": f"writes {len(text):,} characters for one conversation, more than {LONGEST_TEXT:,}"}
    return {"text": text}


def limit_memory() -> None:
    if sys.platform == "linux":
        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY_BYTES, now + MEMORY_BYTES))


def main() -> None:
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever is printed goes to standard error, not among the answers
    from transformers.utils import chat_template_utils  # noqa: F401  (before the memory is limited)

    limit_memory()
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    for answer in answers(sys.stdin.buffer):
        sink.write(json.dumps(answer).encode() + b"\n")
        sink.flush()  # the lines written before the kernel ends this process show which conversation ended it


if __name__ == "__main__":
    main()
