"""Renders messages to the tokens that an episode appends to its context. Sampled tokens stay as they are: an answer is never
decoded and encoded again, and no earlier token is rendered again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol, TypeAlias

from roll.core.configs.arguments import Template
from roll.core.errors import TemplateRefusal, boundary
from roll.prompts.image_marks import content, mark, pieces
from roll.prompts.template_process import LONGEST_TEXT

MARK = "\u27e6answer\u27e7"
"""Stands for an answer while the chat template renders the text after one."""

Message: TypeAlias = Mapping[str, Any]
"""A message as chat templates take it: role, content, and an assistant's tool_calls."""
THINK = "<think>"


class Sees(Protocol):
    """Images for a model that sees, by the names of their files."""

    sign: str
    """The chat template's text for an image."""

    def has(self, name: str) -> bool: ...

    def expand(self, ids: Sequence[int], names: Sequence[str]) -> list[int]:
        """Puts the images in the places of their signs. Raises `TemplateRefusal`."""


@dataclass(frozen=True, slots=True)
class Rendered:
    ids: list[int]
    thinks: bool
    """True if the template has begun the answer's thinking."""


class Dialogue:
    """The tokens of an episode are `first(...)`, then by turns an answer of the policy and `following(...)`; of a program's
    conversation `whole(...)`, then by turns an answer and `bridge(...)`."""

    def __init__(self, tokenizer: Any, template: Template, known: int | None = None, sees: Sees | None = None) -> None:
        """`native`: the tokenizer's chat template. `none`: the texts as they stand, one after another. `known`: the run's models
        know the token ids below; a text with another is refused. `sees`: marks of images in texts are shown as images. Raises
        `ValueError` if a chat template is asked for and there is none, or it does not show a message between others as it was
        given."""
        self._tokenizer, self._known, self._sees = tokenizer, known, sees
        self.native = template == "native"
        if self.native:
            if not tokenizer.chat_template:
                raise ValueError(f"the tokenizer of {tokenizer.name_or_path} has no chat template")
            self._after([_user("next")])

    def first(self, system: str, user: str) -> list[int]:
        """Returns the system prompt (empty: none) and the message of the first turn, up to where the answer begins."""
        if not self.native:
            return self._encode(system + user, special=True)
        return self._encode(self._render([*self._system(system), _user(user)]), special=False)

    def following(self, user: str, last_token: int) -> list[int]:
        """Returns the tokens between two answers: the end of the one before (unless `last_token`, the last sampled one, is that
        end already) and the message of the next turn."""
        if not self.native:
            return self._encode(user, special=False)
        return self._without_end(self._after([_user(user)]), last_token)

    def whole(self, messages: Sequence[Message], tools: Sequence[Message] = ()) -> Rendered:
        """A conversation up to where the next answer begins. Raises `TemplateRefusal`, also where tools are left out: the policy
        would not know of them."""
        text = self._render(messages, tools)
        if unshown := [name for tool in tools if (name := str(tool["function"]["name"])) not in text]:
            name = self._tokenizer.name_or_path
            raise TemplateRefusal(f"the chat template of {name} does not show tools: {', '.join(unshown)}")
        return Rendered(self._encode(text, special=False), _thinks(text))

    def text(self, messages: Sequence[Message], tools: Sequence[Message] = ()) -> str:
        """Returns a conversation as text. Raises `TemplateRefusal`."""
        return self._render(messages, tools, opens=False)

    def bridge(
        self,
        answer: Message,
        messages: Sequence[Message],
        last_token: int | None,
        tools: Sequence[Message] = (),
        added: str = "",
    ) -> Rendered | None:
        """Returns the tokens as `following` does, for any messages after an answer of a conversation; None if the template cannot
        show them behind an answer that is only marked. Templates that want tool results behind calls are shown the answer's own
        calls. `added`: text behind the answer in its message."""
        try:
            text = self._after(messages, tools)
        except TemplateRefusal:
            if not answer.get("tool_calls"):
                return None
            try:
                text = self._after_calls(answer, messages, tools)
            except TemplateRefusal:
                return None
        return Rendered(
            self._encode(added + text, special=False) if added else self._without_end(text, last_token), _thinks(text)
        )

    def spelled(self, ids: Sequence[int]) -> str:
        """Returns the tokens as text, special ones too."""
        return str(self._tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))

    def _after(self, messages: Sequence[Message], tools: Sequence[Message] = ()) -> str:
        """Returns the end of an answer and the text after it."""
        return self._marked([_user("."), {"role": "assistant", "content": MARK}, *messages], tools)

    def _after_calls(self, answer: Message, messages: Sequence[Message], tools: Sequence[Message]) -> str:
        begin = [_user("."), {"role": "assistant", "content": MARK, "tool_calls": answer["tool_calls"]}]
        head = self._render(begin, tools, opens=False)
        all_ = self._render([*begin, *messages], tools)
        if not all_.startswith(head):
            raise TemplateRefusal("the chat template writes earlier messages otherwise when later ones follow")
        end = self._marked([_user("."), {"role": "assistant", "content": MARK}], tools, opens=False)
        return end + all_[len(head) :]

    def _marked(self, messages: Sequence[Message], tools: Sequence[Message], opens: bool = True) -> str:
        _, found, after = self._render(messages, tools, opens).partition(MARK)
        if not found:
            name = self._tokenizer.name_or_path
            raise TemplateRefusal(f"the chat template of {name} does not show an earlier answer as it was")
        return after

    def _without_end(self, text: str, last_token: int | None) -> list[int]:
        """The policy ends its answer itself, with the token that the template would write."""
        ids = self._encode(text, special=False)
        return ids[1:] if ids and ids[0] == last_token else ids

    def _system(self, text: str) -> list[Message]:
        return [{"role": "system", "content": text}] if text else []

    def _render(self, messages: Sequence[Message], tools: Sequence[Message] = (), opens: bool = True) -> str:
        """Renders messages with a mark for each image. `opens`: up to the beginning of the next answer."""
        names = list[str]()
        if self._sees is not None:
            messages = [self._showing(message, names) for message in messages]
        _check("is given", sum(len(str(message["content"])) for message in messages))
        with boundary(TemplateRefusal, "the tokenizer's chat template refuses the messages", say=str):
            text = str(
                self._tokenizer.apply_chat_template(
                    list(messages), tools=list(tools) or None, tokenize=False, add_generation_prompt=opens
                )
            )
        _check("writes", len(text))
        return text if self._sees is None else _named(text, self._sees.sign, names)

    def _showing(self, message: Message, names: list[str]) -> Message:
        """The message as chat templates of models that see take it; adds the names of its images."""
        assert self._sees is not None
        if message["role"] == "assistant":
            return message
        shown, found = content(str(message["content"]), self._sees.has)
        names += found
        return {**message, "content": shown} if found else message

    def _encode(self, text: str, special: bool) -> list[int]:
        names = list[str]()
        if self._sees is not None:
            found = [*pieces(text, self._sees.has)]
            names = [name for _, name in found if name]
            text = self._sees.sign.join(before for before, _ in found)
        ids: list[int] = self._tokenizer(text, add_special_tokens=special)["input_ids"]
        if self._known is not None and (most := max(ids, default=0)) >= self._known:
            name = self._tokenizer.convert_ids_to_tokens(most)
            raise TemplateRefusal(f"the text has the token {name!r} ({most}), and the models know {self._known:,} tokens")
        return ids if self._sees is None else self._sees.expand(ids, names)


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _named(text: str, sign: str, names: Sequence[str]) -> str:
    """The text with the marks of these images in the places of the model's signs. Raises `TemplateRefusal`."""
    parts = text.split(sign)
    if len(parts) != len(names) + 1:
        why = f"the messages have {len(names)} images, and what the chat template makes of them {len(parts) - 1} signs of images"
        raise TemplateRefusal(f"{why} ({sign}): the template shows none there, or a text has the sign")
    return "".join(chain.from_iterable(zip(parts, [*map(mark, names), ""], strict=True)))


def _thinks(text: str) -> bool:
    return text.rstrip().endswith(THINK)


def _check(what: str, characters: int) -> None:
    if characters > LONGEST_TEXT:
        raise TemplateRefusal(f"the tokenizer's chat template {what} {characters:,} characters, more than {LONGEST_TEXT:,}")
