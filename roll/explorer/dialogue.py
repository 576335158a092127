"""Renders messages to the tokens that an episode appends to its context. What was sampled stays as it was sampled: an answer is
never decoded and encoded again, and no earlier token is rendered again."""

from __future__ import annotations

from typing import Any

from roll.configs.arguments import Template
from roll.data.template_process import LONGEST_TEXT
from roll.errors import TemplateRefusal, boundary

MARK = "\u27e6answer\u27e7"
"""Stands for an answer while the chat template shows what follows one."""


class Dialogue:
    """The tokens of an episode are `first(...)`, then by turns an answer of the policy and `following(...)`."""

    def __init__(self, tokenizer: Any, template: Template) -> None:
        """`native`: the tokenizer's chat template. `none`: the texts as they stand, one after another. Raises `ValueError` if a
        chat template is asked for and there is none, or it does not show a message between others as it was given."""
        self._tokenizer = tokenizer
        self._native = template == "native"
        if self._native:
            if not tokenizer.chat_template:
                raise ValueError(f"the tokenizer of {tokenizer.name_or_path} has no chat template; use template: none")
            self._between("next")

    def first(self, system: str, user: str) -> list[int]:
        """System prompt (empty: none) and the message of the first turn, up to where the answer begins."""
        if not self._native:
            return self._encode(system + user, special=True)
        return self._encode(self._render([*self._system(system), {"role": "user", "content": user}]), special=False)

    def following(self, user: str, last_token: int) -> list[int]:
        """What comes between two answers: the end of the one before (unless `last_token`, the last that was sampled, is that end
        already) and the message of the next turn."""
        text = self._between(user) if self._native else user
        ids = self._encode(text, special=False)
        # The policy ends its answer itself, with the token that the template would write.
        return ids[1:] if self._native and ids and ids[0] == last_token else ids

    def _between(self, user: str) -> str:
        messages = [{"role": "user", "content": "."}, {"role": "assistant", "content": MARK}, {"role": "user", "content": user}]
        _, found, after = self._render(messages).partition(MARK)
        if not found:
            name = self._tokenizer.name_or_path
            raise TemplateRefusal(f"the chat template of {name} does not show an earlier answer as it was")
        return after

    def _system(self, text: str) -> list[dict[str, str]]:
        return [{"role": "system", "content": text}] if text else []

    def _render(self, messages: list[dict[str, str]]) -> str:
        _check("is given", sum(len(message["content"]) for message in messages))
        with boundary(TemplateRefusal, "the tokenizer's chat template refuses the messages", say=str):
            text = str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        _check("writes", len(text))
        return text

    def _encode(self, text: str, special: bool) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=special)["input_ids"]
        return ids


def _check(what: str, characters: int) -> None:
    if characters > LONGEST_TEXT:
        raise TemplateRefusal(f"the tokenizer's chat template {what} {characters:,} characters, more than {LONGEST_TEXT:,}")
