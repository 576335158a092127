"""Renders a row of a prompt file to the text, and the tokens, that the policy continues.

A chat template is a program from a model folder. The rows are rendered in a process of its own (`template_process`), so that a
template that never ends, or writes without end, is one clear error.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from roll.configs.arguments import Template
from roll.data.prompt_file import PromptFileError, PromptRow
from roll.data.template_process import CPU_LIMIT_S
from roll.data.well_formed import complaint

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LARGEST_TEMPLATE = 1 << 20
"""Characters."""
START_LIMIT_S = 300.0
"""Wall-clock time of the process besides that of its conversations. Generous: the machine may be busy."""
ROW_LIMIT_S = 0.1
"""Wall-clock time of a conversation, in the mean."""
TRIAL = [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}, {"role": "user", "content": "3"}]


class TemplateError(ValueError):
    """A chat template that does not end, or is too large."""


def render(rows: Sequence[PromptRow], tokenizer: PreTrainedTokenizerBase, template: Template) -> list[str]:
    """The prompts' texts. `native`: the tokenizer's chat template, applied to a row's messages (or to its prompt as the one
    message of a user), ending where the assistant's turn begins. `none`: a row's prompt as it stands. `chatml`: see there. Raises
    `PromptFileError`."""
    if template == "none":
        for row in rows:
            if row.prompt is None:
                raise PromptFileError(f"{row.where}: template none needs a prompt column, and the row has messages only")
        return [row.prompt or "" for row in rows]
    conversations = [conversation(row) for row in rows]
    if template == "chatml":
        return [chatml(messages, row.where) for messages, row in zip(conversations, rows, strict=True)]
    if not tokenizer.chat_template:
        raise PromptFileError(
            f"data_args.template: native, but the tokenizer of {tokenizer.name_or_path} has no chat template; use template: none"
        )
    texts: list[str] = []
    for row, answer in zip(rows, rendered_apart(tokenizer, conversations), strict=True):
        if "text" not in answer:
            raise PromptFileError(f"{row.where}: the tokenizer's chat template {answer['error']}")
        if wrong := complaint(answer["text"]):
            raise PromptFileError(f"{row.where}: the text that the tokenizer's chat template makes of the row {wrong}")
        texts.append(answer["text"])
    return texts


def conversation(row: PromptRow) -> list[dict[str, Any]]:
    return row.messages or [{"role": "user", "content": row.prompt}]


def chatml(messages: Sequence[Mapping[str, Any]], where: str) -> str:
    """Each message between <|im_start|> with its role and <|im_end|>, then the beginning of the assistant's: no system prompt is
    added, as the templates of some models do. Raises `PromptFileError`."""
    if not all(isinstance(message.get("role"), str) and isinstance(message.get("content"), str) for message in messages):
        raise PromptFileError(f"{where}: template chatml needs a text as role and as content of each message")
    told = "".join(f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n" for message in messages)
    return f"{told}<|im_start|>assistant\n"


def try_template(tokenizer: PreTrainedTokenizerBase) -> None:
    """Raises `TemplateError` if the tokenizer's chat template, should it have one, does not end for three short messages. One
    that refuses them is not at fault: what a run gives it is tried elsewhere."""
    if tokenizer.chat_template:
        (answer,) = rendered_apart(tokenizer, [TRIAL])
        if answer.get("error", "").startswith(("takes", "writes")):
            raise TemplateError(f"the chat template of {tokenizer.name_or_path} {answer['error']}")


def rendered_apart(tokenizer: Any, conversations: Sequence[list[dict[str, Any]]]) -> list[dict[str, str]]:
    """`{"text": ...}` or `{"error": ...}` for each conversation; the list ends early with the one that ended the process.

    Raises `TemplateError`."""
    template = str(tokenizer.get_chat_template())
    if len(template) > LARGEST_TEMPLATE:
        message = f"has {len(template):,} characters, more than {LARGEST_TEMPLATE:,}"
        raise TemplateError(f"the chat template of {tokenizer.name_or_path} {message}")
    setup = {"template": template, "special": dict(tokenizer.special_tokens_map)}
    asked = b"".join(json.dumps(item, default=str).encode() + b"\n" for item in (setup, *conversations))
    command = [sys.executable, "-P", "-m", "roll.data.template_process"]
    limit_s = START_LIMIT_S + ROW_LIMIT_S * len(conversations)
    try:
        done = subprocess.run(command, input=asked, capture_output=True, timeout=limit_s, env=_environment(), check=False)
    except subprocess.TimeoutExpired:
        raise TemplateError(f"the chat template of {tokenizer.name_or_path} takes more than {limit_s:.0f} s") from None
    answers: list[dict[str, str]] = [json.loads(line) for line in done.stdout.splitlines(keepends=True) if line.endswith(b"\n")]
    if done.returncode == -signal.SIGPROF:
        answers.append({"error": f"takes more than {CPU_LIMIT_S:g} s for one conversation"})
    elif done.returncode != 0:
        last = (done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        answers.append({"error": f"ends its process: {last}"})
    return answers


def _environment() -> dict[str, str]:
    """The environment of the process, without the secrets of this one."""
    passed_on = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH")
    modules = os.pathsep.join(os.path.abspath(path) for path in sys.path)
    return {name: os.environ[name] for name in passed_on if name in os.environ} | {
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": modules,
    }


def encode(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, template: Template) -> list[list[int]]:
    """Token ids of each text. A chat template writes its special tokens itself; a raw prompt gets those that the tokenizer adds
    (such as BOS)."""
    if not texts:
        return []
    ids: list[list[int]] = tokenizer(list(texts), add_special_tokens=template == "none")["input_ids"]
    return ids
