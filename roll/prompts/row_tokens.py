"""Tokens of training rows, and which of them are trained.

A conversation is rendered once as a whole, and for each answer up to where the assistant's turn begins and up to where it ends:
the answer is the text between the two, whatever the template. Its trained tokens end with the one that ends an answer, as the
policy would write it; what a template puts behind that is not trained.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from roll.core.configs.arguments import Template
from roll.core.configs.rows import LossOn
from roll.core.data.microbatches import common_prefix
from roll.core.errors import PromptFileError
from roll.prompts.chat_template import TemplateProcess
from roll.prompts.prompt_source import check_known
from roll.prompts.stored_rows import ANSWERS, QUESTION, LeftOut, RowFile, TokenizedRow
from roll.prompts.training_rows import Message, TrainingRow, is_trained

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

AT_ONCE = 128
"""Rows in memory at a time."""


class Tokens(NamedTuple):
    ids: list[int]
    trained: list[bool]
    text: str
    """Text of the last answer."""
    asked: int
    """Tokens before the last answer; with loss_on all they are not told apart."""


class RowTokenizer:
    """Makes tokens of rows. `ends`: the tokens that end an answer. `known`: the model knows token ids below this."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, template: Template, loss_on: LossOn, ends: Sequence[int], known: int | None
    ) -> None:
        if not tokenizer.is_fast:
            raise ValueError(f"the tokenizer of {tokenizer.name_or_path} does not say where in a text its tokens stand")
        if template == "native" and not tokenizer.chat_template:
            message = f"data_args.template: native, but the tokenizer of {tokenizer.name_or_path} has no chat template"
            raise PromptFileError(message, "data_args.template: none, for rows of a prompt and a response")
        self._tokenizer, self._template, self._loss_on = tokenizer, template, loss_on
        self._ends, self._known = frozenset(ends), known
        self._process: TemplateProcess | None = None

    def rows(self, rows: Iterable[TrainingRow], longest: int, domain: str, folder: Path | None) -> tuple[RowFile, LeftOut]:
        """The rows that can be used, in order, and the counts of the others. `longest`: most tokens of one. `domain`: that of
        all rows; empty: the name of each. `folder`: on whose disk they lie. Raises `PromptFileError`, `ValueError`."""
        usable, left_out, remaining = RowFile(folder), LeftOut(), iter(rows)
        try:
            while part := list(islice(remaining, AT_ONCE)):
                good = [row for row in part if not row.useless]
                for row in part:
                    if row.useless:
                        left_out.add(row.useless)
                for row, found in zip(good, self._tokens(good), strict=True):
                    if stored := self._stored(row, found, longest, domain, left_out):
                        usable.add(stored)
        finally:
            if self._process is not None:
                self._process.close()
        return usable, left_out

    def _stored(
        self, row: TrainingRow, found: list[Tokens] | None, longest: int, domain: str, left_out: LeftOut
    ) -> TokenizedRow | None:
        if found is None:
            left_out.add("with_earlier_turns_rewritten_by_the_template")
        elif any(not any(each.trained[1:]) for each in found):
            left_out.add("empty_answer")
        elif (length := max(len(each.ids) for each in found)) > longest:
            left_out.add("too_long")
            left_out.longest = max(left_out.longest, length)
        else:
            largest = max(max(each.ids) for each in found)
            check_known(largest, self._known, self._tokenizer, f"{row.where}: the row")
            left_out.endless += any(each.ids[-1] not in self._ends for each in found)
            asked = _asked(found)
            answers = [[each.ids[asked:], [*map(int, each.trained[asked:])], each.text] for each in found]
            question = next((str(each["content"]) for each in row.conversations[0] if each["role"] == "user"), "")
            extra = {ANSWERS: answers, QUESTION: found[0].asked - asked}
            return TokenizedRow(row.id, domain or row.name, row.name, question, found[0].ids[:asked], "", extra)
        return None

    def _tokens(self, rows: Sequence[TrainingRow]) -> Iterator[list[Tokens] | None]:
        """Yields tokens of each row's conversations; None if its template does not show an answer as it was given."""
        if self._template != "native":
            yield from ([self._plain(row, messages) for messages in row.conversations] for row in rows)
            return
        told = [_Told(row, messages, self._loss_on) for row in rows for messages in row.conversations]
        if self._process is None:
            self._process = TemplateProcess(self._tokenizer)
        answers = iter(self._process.render([item for each in told for item in each.asks]))
        whole = [each.place(answers) for each in told]
        encoded = self._tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True) if whole else {}
        parts = zip(told, encoded["input_ids"], encoded["offset_mapping"], strict=True) if whole else ()
        of_row = iter([self._of(*each) for each in parts])
        for row in rows:
            found = list(islice(of_row, len(row.conversations)))
            yield None if None in found else [each for each in found if each is not None]

    def _of(self, told: _Told, ids: list[int], places: list[tuple[int, int]]) -> Tokens | None:
        if told.spans is None:
            return None
        trained, own = [False] * len(ids), list[int]()
        for start, stop in told.spans:
            own = [i for i, (begin, end) in enumerate(places) if start <= begin < stop and end > begin]
            closing = [i for i in own if ids[i] in self._ends] if self._loss_on != "all" else []
            for i in own:
                trained[i] = not closing or i <= closing[-1]
        stop = max((i + 1 for i, each in enumerate(trained) if each), default=0)
        return Tokens(ids[:stop], trained[:stop], told.answer, own[0] if own else 0)

    def _plain(self, row: TrainingRow, messages: Sequence[Message]) -> Tokens:
        """Template none: question and answer as they stand, and the end of text."""
        *asked, answer = messages
        if len(asked) != 1 or row.tools:
            raise PromptFileError(f"{row.where}: template none needs a prompt and a response", "data_args.template: native")
        ids: list[int] = self._tokenizer(asked[0]["content"])["input_ids"]
        own: list[int] = self._tokenizer(answer["content"], add_special_tokens=False)["input_ids"]
        end = self._tokenizer.eos_token_id
        own = [*own, end] if isinstance(end, int) else own
        return Tokens([*ids, *own], [self._loss_on == "all"] * len(ids) + [True] * len(own), answer["content"], len(ids))


class _Told:
    """A conversation on its way through the template."""

    def __init__(self, row: TrainingRow, messages: list[Message], loss_on: LossOn) -> None:
        self._where = row.where
        self.spans: list[tuple[int, int]] | None = None
        """Places of its trained answers in its text; None if it does not show one as it was given."""
        turns = [i for i, each in enumerate(messages) if is_trained(each)]
        self.answer = str(messages[turns[-1]]["content"])
        if loss_on == "all" and any(each.get("weight", 1) == 0 for each in messages):
            raise PromptFileError(f"{row.where}: a message has weight 0, and loss_on all trains it", "sft.loss_on: assistant")
        self._turns = {"all": [], "last": turns[-1:], "assistant": turns}[loss_on]
        shared: dict[str, Any] = {"tools": row.tools}
        self.asks: list[dict[str, Any]] = [{"messages": messages, "whole": True} | shared]
        """Conversations for the template to render, in this order."""
        for i in self._turns:
            self.asks.append({"messages": messages[:i], "asks": True} | shared)
            if i < len(messages) - 1:
                self.asks.append({"messages": messages[: i + 1], "whole": True} | shared)
        self._count = len(messages)

    def place(self, answers: Iterator[dict[str, str]]) -> str:
        """Finds its answers; returns its text. Raises `PromptFileError`."""
        whole = self._text(next(answers, {}))
        spans, right = [], True
        for i in self._turns:
            before = self._text(next(answers, {}))
            upto = whole if i == self._count - 1 else self._text(next(answers, {}))
            right = right and whole.startswith(before) and whole.startswith(upto) and len(before) < len(upto)
            spans.append((len(before), len(upto)))
        if right:
            self.spans = spans if self._turns else [(0, len(whole))]
        return whole

    def _text(self, answer: dict[str, str]) -> str:
        if "text" not in answer:
            why = answer.get("error", "ends its process")
            raise PromptFileError(f"{self._where}: the tokenizer's chat template {why}", "mend the row, or leave it out")
        return answer["text"]


def _asked(found: Sequence[Tokens]) -> int:
    """The number of tokens before the first that is trained, or in which two conversations differ; at least one."""
    import numpy as np

    first = [max(1, each.trained.index(True)) for each in found]
    if len(found) > 1:
        first.append(common_prefix(*(np.asarray(each.ids) for each in found)))
    return max(1, min(first))
