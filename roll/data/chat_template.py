"""From a row of a prompt file to the text, and the tokens, that the policy continues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from roll.configs.arguments import Template
from roll.data.prompt_file import PromptFileError, PromptRow

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def render(row: PromptRow, tokenizer: PreTrainedTokenizerBase, template: Template) -> str:
    """The prompt's text. `native`: the tokenizer's chat template, applied to the row's messages (or to its prompt as the one
    message of a user), ending where the assistant's turn begins. `none`: the row's prompt as it stands. Raises
    `PromptFileError`."""
    if template == "none":
        if row.prompt is None:
            raise PromptFileError(f"{row.where}: template none needs a prompt column, and the row has messages only")
        return row.prompt
    if not tokenizer.chat_template:
        raise PromptFileError(
            f"data_args.template: native, but the tokenizer of {tokenizer.name_or_path} has no chat template; use template: none"
        )
    messages: list[dict[str, Any]] = row.messages or [{"role": "user", "content": row.prompt}]
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # boundary: templates raise what they like
        raise PromptFileError(f"{row.where}: the tokenizer's chat template refuses the messages: {error}") from error
    assert isinstance(text, str)
    return text


def encode(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, template: Template) -> list[list[int]]:
    """Token ids of each text. A chat template writes its special tokens itself; a raw prompt gets those that the tokenizer adds
    (such as BOS)."""
    if not texts:
        return []
    ids: list[list[int]] = tokenizer(list(texts), add_special_tokens=template == "none")["input_ids"]
    return ids
