"""Renders a row of a prompt file to the text, and the tokens, that the policy continues.

A chat template is a program from a model folder. The rows are rendered in a process of its own (`template_process`), so that a
template that never ends, or writes without end, is one clear error.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

from roll.core.configs.arguments import Template
from roll.core.data.sample import begun_answer
from roll.core.data.untrusted import complaint
from roll.core.errors import PromptFileError
from roll.prompts.messages import texts_of
from roll.prompts.prompt_file import PromptRow
from roll.prompts.template_process import CPU_LIMIT_S

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LARGEST_TEMPLATE = 1 << 20
"""Characters."""
START_LIMIT_S = 300.0
"""Wall-clock time that each part of the conversations may take besides `ROW_LIMIT_S`: the process starts with the first.
Generous: the machine may be busy."""
ROW_LIMIT_S = 0.1
"""Wall-clock time of a conversation, in the mean."""
TRIAL = [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}, {"role": "user", "content": "3"}]
_ONE = "join messages of the user that follow each other into one, or leave the row out"
"""Most templates show them, some refuse them, and a few pass over one."""


class Renderer:
    """Makes texts of rows, a part of them at a time. `native`: the tokenizer's chat template, applied to a row's messages (or to
    its prompt as the one message of a user), ending where the assistant's turn begins. `none`: a row's prompt as it stands.
    `chatml`: see there."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, template: Template) -> None:
        self._tokenizer, self._template = tokenizer, template
        self._process: TemplateProcess | None = None

    def __enter__(self) -> Renderer:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.close()

    def texts(self, rows: Sequence[PromptRow]) -> list[str]:
        """One for each row. Raises `PromptFileError`, `ValueError`."""
        if self._template == "none":
            for row in rows:
                if row.prompt is None:
                    message = f"{row.where}: template none needs a prompt column, and the row has messages only"
                    raise PromptFileError(message, "data_args.template: native, or chatml")
            return [row.prompt or "" for row in rows]
        if self._template == "chatml":
            return [chatml(conversation(row), row.where) for row in rows]
        return self._native(rows)

    def _native(self, rows: Sequence[PromptRow]) -> list[str]:
        if not self._tokenizer.chat_template:
            name = self._tokenizer.name_or_path
            raise PromptFileError(
                f"data_args.template: native, but the tokenizer of {name} has no chat template",
                "data_args.template: chatml, or none where each row has a prompt",
            )
        if self._process is None:
            self._process = TemplateProcess(self._tokenizer)
        texts: list[str] = []
        for row, answer in zip(rows, self._process.render([conversation(row) for row in rows]), strict=True):
            if "text" not in answer:
                fix = "mend the row's messages, or leave it out"
                raise PromptFileError(f"{row.where}: the tokenizer's chat template {answer['error']}", fix)
            if (left := _unshown(row, answer["text"])) is not None:
                raise PromptFileError(
                    f"{row.where}: the tokenizer's chat template does not show the user's message {left.strip()!r}", _ONE
                )
            if wrong := complaint(answer["text"]):
                raise PromptFileError(f"{row.where}: the text that the tokenizer's chat template makes of the row {wrong}")
            texts.append(answer["text"])
        return texts


def _unshown(row: PromptRow, text: str) -> str | None:
    """The beginning of a message that a template has passed over, of several of a user; it may change white space."""
    users = [text for each in conversation(row) if each["role"] == "user" for text in texts_of(each["content"])]
    shown = "".join(text.split()) if len(users) > 1 else ""
    return next((content[:40] for content in users if shown and "".join(content.split()) not in shown), None)


def render(rows: Sequence[PromptRow], tokenizer: PreTrainedTokenizerBase, template: Template) -> list[str]:
    """The texts of a few rows; see `Renderer`."""
    with Renderer(tokenizer, template) as renderer:
        return renderer.texts(rows)


def set_variables(tokenizer: PreTrainedTokenizerBase, values: Mapping[str, object]) -> None:
    """Sets these variables at the head of the tokenizer's chat template, for every caller from now on."""
    if values and tokenizer.chat_template:
        head = "".join(f"{{%- set {name} = {_literal(value)} -%}}" for name, value in values.items())
        tokenizer.chat_template = head + str(tokenizer.get_chat_template())


def _literal(value: object) -> str:
    """Writes a value as Jinja does."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_literal(str(name))}: {_literal(entry)}" for name, entry in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_literal, value)) + "]"
    return "none" if value is None else json.dumps(value, ensure_ascii=False)


def conversation(row: PromptRow) -> list[dict[str, Any]]:
    """Returns its messages, which may end with an answer that is begun."""
    return row.messages or [{"role": "user", "content": row.prompt}]


def chatml(messages: Sequence[Mapping[str, object]], where: str) -> str:
    """Writes each message between <|im_start|> with its role and <|im_end|>, then the beginning of the assistant's, or its begun
    answer: no system prompt is added, as the templates of some models do. Raises `PromptFileError`."""
    if not all(isinstance(message.get("role"), str) and isinstance(message.get("content"), str) for message in messages):
        raise PromptFileError(f"{where}: template chatml needs a text as role and as content of each message")
    begun = begun_answer(messages)
    asked = messages[:-1] if begun else messages
    told = "".join(f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n" for message in asked)
    return f"{told}<|im_start|>assistant\n{begun}"


def try_template(tokenizer: PreTrainedTokenizerBase) -> None:
    """Raises `ValueError` if the tokenizer's chat template, should it have one, does not end for three short messages. One
    that refuses them is not at fault: a run's own messages are tried elsewhere."""
    if tokenizer.chat_template:
        (answer,) = rendered_apart(tokenizer, [TRIAL])
        if answer.get("error", "").startswith(("takes", "writes")):
            raise ValueError(f"the chat template of {tokenizer.name_or_path} {answer['error']}")


def rendered_apart(tokenizer: Any, conversations: Sequence[list[dict[str, Any]]]) -> list[dict[str, str]]:
    """Renders as `TemplateProcess.render` does."""
    with contextlib.closing(TemplateProcess(tokenizer)) as process:
        return process.render(conversations)


class TemplateProcess:
    """Renders conversations in a process of its own, which stays until `close`."""

    def __init__(self, tokenizer: Any) -> None:
        """Raises `ValueError`."""
        template = str(tokenizer.get_chat_template())
        self._name = f"the chat template of {tokenizer.name_or_path}"
        if len(template) > LARGEST_TEMPLATE:
            raise ValueError(f"{self._name} has {len(template):,} characters, more than {LARGEST_TEMPLATE:,}")
        self._asked = [{"template": template, "special": dict(tokenizer.special_tokens_map)}]
        self._limit_s = START_LIMIT_S
        self._late = False
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `close`)
        command = [sys.executable, "-P", "-m", "roll.prompts.template_process"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, env=_environment()
        )

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def render(self, conversations: Sequence[list[dict[str, Any]] | dict[str, Any]]) -> list[dict[str, str]]:
        """Renders each of them, messages or arguments of `template_process.render`: `{"text": ...}` or `{"error": ...}`; the
        list ends early with the one that ended the process.

        Raises `ValueError`."""
        sink, source = self._process.stdin, self._process.stdout
        assert sink is not None and source is not None
        asked = b"".join(json.dumps(item, default=str).encode() + b"\n" for item in (*self._asked, *conversations))
        limit_s = self._limit_s + ROW_LIMIT_S * len(conversations)
        writing = threading.Thread(target=_write, args=(sink, asked), daemon=True)  # answers are read meanwhile
        watch = threading.Timer(limit_s, self._give_up)
        writing.start()
        watch.start()
        try:
            lines = [line for _ in conversations if (line := source.readline()).endswith(b"\n")]
        finally:
            watch.cancel()
        self._asked = []
        answers: list[dict[str, str]] = [json.loads(line) for line in lines]
        if len(answers) < len(conversations):
            answers.append({"error": self._ending(limit_s)})
        writing.join()
        return answers

    def _give_up(self) -> None:
        self._late = True
        self._process.kill()

    def _ending(self, limit_s: float) -> str:
        """Returns the reason why the process ended."""
        code = self._process.wait()
        if self._late:
            raise ValueError(f"{self._name} takes more than {limit_s:.0f} s")
        if code == -signal.SIGPROF:
            return f"takes more than {CPU_LIMIT_S:g} s for one conversation"
        self._errors.seek(0)
        last = (self._errors.read().decode(errors="replace").strip().splitlines() or [f"exit code {code}"])[-1]
        return f"ends its process: {last}"


def _write(sink: IO[bytes], content: bytes) -> None:
    with contextlib.suppress(OSError):  # the process has ended: the reader of its answers says so
        sink.write(content)
        sink.flush()


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
