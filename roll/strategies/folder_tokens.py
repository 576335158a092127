"""The tokens of a model folder: how many its model knows, how its tokenizer numbers them, and which of them end an answer.

An answer ends at every token that a source names: the tokenizer's end of text, those of `generation_config.json` and
`config.json`, each of which may be a list, and the padding token, at which ROLL stops, too. What engines, judges, agents and
validations stop at is `FolderTokens.ends`, unless `generating_args.eos_token_id` names other tokens.

It is read from the folder's JSON alone, or with the tokenizer that was loaded where there is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roll.core.weights.folder_files import CONFIG, read_json

GENERATION = "generation_config.json"
TOKENIZER, TOKENIZER_CONFIG, SPECIAL = "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"
PADDING = "padding token"
_WITHOUT_DEFAULTS = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Classes of tokenizers that have the special tokens of their files, and no others."""


@dataclass(frozen=True, slots=True)
class FolderTokens:
    folder: str
    rows: int | None
    """Tokens that the model knows: ids are below. None: its configuration does not say."""
    names: Mapping[str, int]
    """Token -> id, by the tokenizer; empty where only loading it tells."""
    special: frozenset[int]
    """Ids that are no ordinary text."""
    named: tuple[tuple[str, int], ...]
    """(source, id) of all that end an answer."""
    faults: tuple[str, ...]
    """Sources whose entry is no token id."""
    whole: bool
    """True if the tokenizer's end of text is known, or known to be missing."""

    @property
    def ends(self) -> tuple[int, ...]:
        """Ids that end an answer, which the model can write."""
        return tuple(dict.fromkeys(token for _, token in self.named if self.knows(token)))

    @property
    def named_ends(self) -> dict[int, list[str]]:
        """Each of `ends` with its sources, the padding token only where it is another one."""
        return {end: [source for source, token in self.named if token == end] for end in self.ends}

    @property
    def unknown_ends(self) -> list[tuple[str, int]]:
        """Those that the model cannot write. A padding token beyond its rows is common, and is never sampled."""
        return [(source, token) for source, token in self.named if source != PADDING and not self.knows(token)]

    @property
    def has_end(self) -> bool:
        return any(source != PADDING and self.knows(token) for source, token in self.named)

    def knows(self, token: int) -> bool:
        return self.rows is None or token < self.rows

    def shown(self, token: int) -> str:
        """For people: the token and its id."""
        name = next((name for name, number in self.names.items() if number == token), None)
        return str(token) if name is None else f"{name!r} ({token})"

    @property
    def unknown(self) -> list[str]:
        """Tokens that the tokenizer has and the model does not, by id; a padding token among them is never written."""
        padding = {token for source, token in self.named if source == PADDING}
        beyond = [(token, name) for name, token in self.names.items() if not self.knows(token) and token not in padding]
        return [name for _, name in sorted(beyond)]


def folder_tokens(folder: str, tokenizer: Any = None) -> FolderTokens:
    """`tokenizer`: the folder's, where it is loaded. Raises `OSError`, `ValueError` for JSON that is damaged."""
    root = Path(folder)
    config, generation = read_json(root / CONFIG), _optional(root / GENERATION)
    texts = config.get("text_config")
    inner = texts if isinstance(texts, dict) else {}
    rows = config.get("vocab_size", inner.get("vocab_size"))
    read = _of_files(root) if tokenizer is None else _loaded(tokenizer, root)
    faults: list[str] = []
    named = [("tokenizer", read.eos)] if read.eos is not None else []
    own = config.get("eos_token_id", inner.get("eos_token_id"))
    for source, value in ((GENERATION, generation.get("eos_token_id")), (CONFIG, own)):
        found, wrong = _ids(value)
        named += [(source, token) for token in found]
        faults += [f"{source} has eos_token_id {each!r}, which is no token id" for each in wrong]
    if read.pad is not None and read.pad not in {token for _, token in named}:
        named.append((PADDING, read.pad))
    known = rows if isinstance(rows, int) and not isinstance(rows, bool) else None
    return FolderTokens(folder, known, read.names, read.special, tuple(named), tuple(faults), read.whole)


def end_tokens(folder: str, tokenizer: Any) -> tuple[int, ...]:
    """Ids that end an answer of the folder's model."""
    return folder_tokens(folder, tokenizer).ends


@dataclass(frozen=True, slots=True)
class _Read:
    names: Mapping[str, int]
    special: frozenset[int]
    eos: int | None
    pad: int | None
    whole: bool


def _loaded(tokenizer: Any, root: Path) -> _Read:
    """transformers adds tokens to some that their files do not have: nobody means these."""
    added = {token for token, each in tokenizer.added_tokens_decoder.items() if each.special}
    special = frozenset({*added, *tokenizer.all_special_ids})
    names = _of_files(root).names or tokenizer.get_vocab()
    return _Read(names, special, tokenizer.eos_token_id, tokenizer.pad_token_id, True)


def _of_files(root: Path) -> _Read:
    config, map_ = _optional(root / TOKENIZER_CONFIG), _optional(root / SPECIAL)
    added = [*_entries(_optional(root / TOKENIZER).get("added_tokens")), *_decoder(config)]
    names = _vocabulary(_optional(root / TOKENIZER)) | {each["content"]: each["id"] for each in added}
    eos, pad = (_text(config.get(name, map_.get(name))) for name in ("eos_token", "pad_token"))
    special = frozenset(each["id"] for each in added if each.get("special"))
    whole = eos in names or (eos is None and config.get("tokenizer_class") in _WITHOUT_DEFAULTS)
    return _Read(names, special, names.get(eos or ""), names.get(pad or ""), whole)


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _vocabulary(tokenizer: Mapping[str, Any]) -> dict[str, int]:
    """Vocabulary of `tokenizer.json`: a mapping, or, of Unigram models, pairs of token and score in the order of their ids."""
    model = tokenizer.get("model")
    listed = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(listed, list):
        return {str(pair[0]): number for number, pair in enumerate(listed) if isinstance(pair, list) and pair}
    return {name: number for name, number in listed.items() if type(number) is int} if isinstance(listed, dict) else {}


def _entries(listed: object) -> Iterator[dict[str, Any]]:
    for each in listed if isinstance(listed, list) else ():
        if isinstance(each, dict) and isinstance(each.get("content"), str) and type(each.get("id")) is int:
            yield each


def _decoder(config: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    listed = config.get("added_tokens_decoder")
    for number, each in listed.items() if isinstance(listed, dict) else ():
        if number.isdecimal() and isinstance(each, dict) and isinstance(each.get("content"), str):
            yield {**each, "id": int(number)}


def _text(value: object) -> str | None:
    """A special token, as a text or as the mapping of an added token."""
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) else None


def _ids(value: object) -> tuple[list[int], list[object]]:
    """Token ids of an entry that is one, a list of them or null; and what of it is none. -1 stands for none."""
    listed = value if isinstance(value, list) else [] if value is None or value == -1 else [value]
    good = [each for each in listed if type(each) is int and each >= 0]
    return good, [each for each in listed if type(each) is not int or each < 0]
