"""The sequence of prompts of a run: infinite, deterministic, resumable.

`Prompt` number k of a domain is row `k mod n` of epoch `k div n`, in an order given by (seed, domain, epoch) and the curriculum,
if any; domains take turns so that each has had its share at every moment. The whole state is therefore one count per domain, plus
the returned prompts. With pass rates, an epoch leaves rows out when it begins; the pass rates and the rows left out of each
domain's epoch are then part of the state.
Invariant: every row of a domain is served once per epoch (at most once with pass rates), and `restore(cursor())` continues as if
nothing had happened.
"""

from __future__ import annotations

import hashlib
import random
from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from roll.core.configs.arguments import CurriculumConfig, Template
from roll.core.data.numbers import read_number
from roll.core.data.pass_rates import PassRates
from roll.core.data.sample import Prompt, SampleGroup, begun_answer
from roll.core.data.seeding import derive_seed
from roll.core.data.untrusted import described
from roll.core.errors import PromptFileError
from roll.prompts.chat_template import Renderer, conversation, encode
from roll.prompts.hints import Hint
from roll.prompts.image_marks import marked
from roll.prompts.image_reader import StoredImage
from roll.prompts.prompt_file import PromptRow
from roll.prompts.stored_rows import ANSWERS, Positions, RowFile, TokenizedRow, digest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


TOKENIZED_AT_ONCE = 128
"""Rows in memory at a time during tokenisation."""


class LeftOut(dict[str, int]):
    """Counts of unusable rows, by reason: "too_long" (more than `prompt_length` tokens), "empty" (no token)."""

    longest = 0
    """Tokens of the longest row that is too long."""
    hinted = 0
    """Tokens of the longest prompt with a hint."""

    def told(self, prompt_length: int) -> str:
        """Returns the counts in words; empty if no row is left out."""
        said = [f"{count:,} {reason.replace('_', ' ')}" for reason, count in self.items()]
        do = f" (prompt_length is {prompt_length}, {self.longest} would do)" if self.longest else ""
        return ", ".join(said) + do

    def check(self, usable: int, prompt_length: int) -> None:
        """Raises `PromptFileError` if no row is left."""
        if not usable:
            why = f"none of {sum(self.values())} prompts can be used: {self.told(prompt_length)}"
            raise PromptFileError(why, "a larger prompt_length, or shorter prompts")


class Expands(Protocol):
    mark: int
    """The token that stands for an image."""

    def __call__(self, ids: Sequence[int], images: Sequence[StoredImage], where: str) -> list[int]: ...


def tokenize_prompts(
    rows: Iterable[PromptRow],
    tokenizer: PreTrainedTokenizerBase,
    template: Template,
    prompt_length: int,
    tag_to_domain: Mapping[str, str],
    with_conversation: Collection[str] = (),
    folder: Path | None = None,
    known: int | None = None,
    expand: Expands | None = None,
    hints: Mapping[str, Hint] = MappingProxyType({}),
) -> tuple[RowFile, LeftOut]:
    """Returns the usable rows, in order, and the counts of the others. `with_conversation`: domains whose rewards read the
    messages; a row whose answer is begun always keeps them. `folder`: its disk stores the rows. `known`: the models of the
    run know token ids below this. `expand`: puts images in the place of their marks. `hints`: by tag. Raises `PromptFileError`
    for a tag that belongs to no domain, for an unknown token, and for a row that lacks its hint."""
    usable, skipped = RowFile(folder), LeftOut()
    with Renderer(tokenizer, template) as renderer:
        for part in _parts(rows, TOKENIZED_AT_ONCE):
            _check_tags(part, tag_to_domain)
            texts = renderer.texts(part)
            hinted = iter(_hinted(part, hints, renderer, partial(encode, tokenizer=tokenizer, template=template)))
            for row, text, input_ids in zip(part, texts, encode(texts, tokenizer, template), strict=True):
                ids = next(hinted) if row.tag in hints else None
                asked = conversation(row)
                if known is not None and max(input_ids, default=0) >= known:
                    raise PromptFileError(*_unknown_token(row, max(input_ids), known, tokenizer))
                if expand is not None:
                    input_ids, text = expand(input_ids, row.images, row.where), _named(text, row, expand.mark, tokenizer)
                if not input_ids or not any(str(each["content"]).strip() for each in asked if each["role"] != "system"):
                    skipped["empty"] = skipped.get("empty", 0) + 1
                elif len(input_ids) > prompt_length:
                    skipped["too_long"] = skipped.get("too_long", 0) + 1
                    skipped.longest = max(skipped.longest, len(input_ids))
                else:
                    domain = tag_to_domain[row.tag]
                    told = asked if domain in with_conversation or begun_answer(asked) else []
                    usable.add(TokenizedRow(row.id, domain, row.tag, text, input_ids, row.ground_truth, row.extra, told, ids))
                    skipped.hinted = max(skipped.hinted, len(ids or ()))
    return usable, skipped


def _named(text: str, row: PromptRow, token: int, tokenizer: PreTrainedTokenizerBase) -> str:
    """With the names of its images where they stand. `token`: stands for an image."""
    return marked(text, str(tokenizer.convert_ids_to_tokens(token)), [image.name for image in row.images])


def _hinted(
    rows: Sequence[PromptRow], hints: Mapping[str, Hint], renderer: Renderer, encoded: Callable[[list[str]], list[list[int]]]
) -> list[list[int]]:
    """Returns the token ids of the prompts with hints, of the rows that have one."""
    given = [hints[row.tag].given(row) for row in rows if row.tag in hints]
    return encoded(renderer.texts(given)) if given else []


def _unknown_token(row: PromptRow, token: int, known: int, tokenizer: PreTrainedTokenizerBase) -> tuple[str, str]:
    """Returns the error message and its fix."""
    name = tokenizer.convert_ids_to_tokens(token)
    message = f"{row.where}: the prompt has the token {name!r} ({token}), and the models know {known:,} tokens"
    return message, "model.resize_token_embeddings(len(tokenizer)) before the folder is saved, or leave the row out"


def _parts(rows: Iterable[PromptRow], size: int) -> Iterator[list[PromptRow]]:
    remaining = iter(rows)
    while part := list(islice(remaining, size)):
        yield part


def _check_tags(rows: Iterable[PromptRow], tag_to_domain: Mapping[str, str]) -> None:
    for row in rows:
        if row.tag not in tag_to_domain:
            known = ", ".join(sorted(tag_to_domain)) or "none"
            message = f"{row.where}: tag {row.tag!r} of row {row.id!r} is in no rewards.*.tag_included; known: {known}"
            raise PromptFileError(message, f"{row.tag} into the list rewards.<domain>.tag_included of the reward that judges it")


class PromptSource:
    def __init__(
        self,
        rows_by_domain: Mapping[str, Sequence[TokenizedRow]],
        domain_probs: Mapping[str, float],
        seed: int,
        curriculum: CurriculumConfig | None = None,
        pass_rates: PassRates | None = None,
    ) -> None:
        """`domain_probs`: relative share of each domain; empty means equal shares. `pass_rates`: leave rows out of an epoch.
        Raises `ValueError` if a domain has a share and no rows, or rows and no share, and for a row without the curriculum's
        number."""
        shares = dict(domain_probs) or dict.fromkeys(rows_by_domain, 1.0)
        if any("/" in domain for domain in shares):
            raise ValueError(f"a domain's name has no '/': {sorted(shares)}")
        empty = [domain for domain in shares if not rows_by_domain.get(domain)]
        if empty or not shares:
            raise ValueError(f"no usable prompts for the domains {empty}: is their file, tag or prompt_length right?")
        without = sorted(set(rows_by_domain) - set(shares))
        if without:
            raise ValueError(f"data_args.domain_interleave_probs: the prompts' domains {without} have no share in {shares}")
        self._rows = {domain: rows_by_domain[domain] for domain in sorted(shares)}
        self._shares = {domain: shares[domain] / sum(shares.values()) for domain in self._rows}
        self._seed = seed
        self._curriculum = curriculum
        self._places = {domain: places(rows, curriculum) for domain, rows in self._rows.items()} if curriculum else {}
        self._data = {domain: _fingerprint(rows, self._places.get(domain)) for domain, rows in self._rows.items()}
        self._positions = {domain: Positions(digest(row.id) for row in rows) for domain, rows in self._rows.items()}
        self._served = dict.fromkeys(self._rows, 0)
        self._returned: deque[Prompt] = deque()
        self._orders: dict[str, tuple[int, Sequence[int]]] = {}
        self._pass_rates = pass_rates
        self._epochs = {domain: Epoch(0, 0, ()) for domain in self._rows}
        self.unserved: dict[str, dict[str, int]] = {domain: {} for domain in self._rows}
        """Domain -> epoch -> number of rows left out by pass rates; complete epochs have no entry."""

    def __len__(self) -> int:
        """Rows of one epoch, over all domains."""
        return sum(map(len, self._rows.values()))

    def next(self) -> Prompt:
        if self._returned:
            return self._returned.popleft()
        total = sum(self._served.values()) + 1
        domain = max(self._rows, key=lambda d: self._shares[d] * total - self._served[d])
        epoch, position = self._place(domain)
        self._served[domain] += 1
        return self._rows[domain][self._order(domain, epoch)[position]].prompt(epoch)

    def ended(self, group: SampleGroup) -> None:
        """Records the end of a prompt's group, whose samples may have rewards."""
        rewarded = [sample for sample in group.samples if sample.reward is not None]
        if self._pass_rates is not None and rewarded:
            domain, _, row_id = group.prompt.uid.split("/", 2)
            self._pass_rates.visited(domain, self._position(domain, row_id), sum(s.succeeded for s in rewarded), len(rewarded))

    def settle(self) -> None:
        """Called after each trained step: the pass rates measured so far count for epochs that begin later."""
        if self._pass_rates is not None:
            self._pass_rates.settle()

    def metrics(self) -> dict[str, float]:
        """With pass rates: prompts by difficulty class, and the number of rows left out of each domain's current epoch."""
        if self._pass_rates is None:
            return {}
        left_out = {f"pass_rate/left_out/{domain}": float(len(epoch.left_out)) for domain, epoch in self._epochs.items()}
        return self._pass_rates.metrics(len(self)) | left_out

    def cursor(self, outstanding: Sequence[Prompt] = ()) -> dict[str, Any]:
        """The position as plain JSON. `outstanding`: prompts that were served and are to be served again after `restore`."""
        returned = [prompt.uid for prompt in (*outstanding, *self._returned)]
        position = {"seed": self._seed, "data": self._data, "served": dict(self._served), "returned": returned}
        if self._pass_rates is None:
            return position
        epochs = {domain: [epoch.number, epoch.begun, list(epoch.left_out)] for domain, epoch in self._epochs.items()}
        left_out = {domain: dict(counts) for domain, counts in self.unserved.items()}
        return {**position, "epochs": epochs, "left_out": left_out, "pass_rates": self._pass_rates.state()}

    def restore(self, cursor: Mapping[str, Any]) -> None:
        """Continues from a `cursor()`. Raises `ValueError` if it belongs to another seed or other prompts."""
        mine = self.cursor()
        if cursor["seed"] != mine["seed"]:
            raise ValueError(
                f"the checkpoint was made with seed {cursor['seed']}, not {mine['seed']}: its order of prompts is lost"
            )
        changed = sorted(d for d in {*cursor["data"], *mine["data"]} if cursor["data"].get(d) != mine["data"].get(d))
        if changed:
            raise ValueError(
                f"the prompts of the domains {changed} are not those of the checkpoint (rows, template, tokenizer or curriculum)"
            )
        if ("pass_rates" in cursor) != (self._pass_rates is not None):
            how = "without" if self._pass_rates is not None else "with"
            raise ValueError(f"the checkpoint was made {how} pass_rate_curriculum")
        self._served = dict(cursor["served"])
        returned = [uid.split("/", 2) for uid in cursor["returned"]]
        self._returned = deque(
            self._rows[domain][self._position(domain, row_id)].prompt(int(epoch)) for domain, epoch, row_id in returned
        )
        if self._pass_rates is not None:
            self._epochs = {domain: Epoch(*epoch) for domain, epoch in cursor["epochs"].items()}
            self.unserved = {domain: dict(epochs) for domain, epochs in cursor["left_out"].items()}
            self._orders.clear()
            self._pass_rates.restore(cursor["pass_rates"])

    def _position(self, domain: str, row_id: str) -> int:
        rows = self._rows[domain]
        for position in self._positions[domain].of(row_id):
            if rows[position].id == row_id:
                return position
        raise LookupError(f"there is no prompt {row_id!r} in domain {domain}")

    def _place(self, domain: str) -> tuple[int, int]:
        """Returns the epoch of the domain's next prompt, and the position in it."""
        served, rows = self._served[domain], len(self._rows[domain])
        if self._pass_rates is None:
            return divmod(served, rows)
        epoch = self._epochs[domain]
        if served - epoch.begun == rows - len(epoch.left_out):
            left_out = self._pass_rates.left_out(domain, epoch.number + 1, rows)
            epoch = self._epochs[domain] = Epoch(epoch.number + 1, served, left_out)
            self.unserved[domain] |= {str(epoch.number): len(left_out)} if left_out else {}
        return epoch.number, served - epoch.begun

    def _order(self, domain: str, epoch: int) -> Sequence[int]:
        """Returns the order of the rows in this epoch."""
        if self._orders.get(domain, (None,))[0] != epoch:
            order = array("I", range(len(self._rows[domain])))
            chance = random.Random(derive_seed(self._seed, "epoch", domain, epoch))
            chance.shuffle(order)
            if self._curriculum is not None and epoch < self._curriculum.epochs:
                spread, place = self._curriculum.spread, self._places[domain]
                keys = array("d", (place[row] + spread * chance.uniform(-1, 1) for row in order))
                order = array("I", np.asarray(order)[np.argsort(np.asarray(keys), kind="stable")].tobytes())
            if left_out := set(self._epochs[domain].left_out):
                order = array("I", (row for row in order if row not in left_out))
            self._orders[domain] = (epoch, order)
        return self._orders[domain][1]


class Epoch(NamedTuple):
    """The current epoch of a domain, with pass rates."""

    number: int
    begun: int
    """Prompts of the domain served before this epoch."""
    left_out: Sequence[int]
    """Rows left out, ascending."""


def places(rows: Sequence[TokenizedRow], curriculum: CurriculumConfig) -> array[float]:
    """Returns the place of each row in the epoch, from 0 to 1; equally hard rows share a place. Raises `ValueError`."""
    hard = np.asarray(array("d", (_number(row, curriculum.column) for row in rows)))
    hard = -hard if curriculum.easiest == "high" else hard
    return array("d", (np.searchsorted(np.sort(hard), hard, "left") / len(hard)).tobytes())


def _number(row: TokenizedRow, column: str) -> float:
    try:
        value: object = row.extra[column]
        return read_number(float(value) if isinstance(value, str) else value)
    except (KeyError, ValueError):
        has = f"is {described(row.extra[column])}"[:60] if column in row.extra else "is missing"
        raise ValueError(
            f"curriculum.column: {column!r} of prompt {row.id!r} (domain {row.domain}) {has}, not a number"
        ) from None


def _fingerprint(rows: Sequence[TokenizedRow], place: Sequence[float] | None) -> str:
    """Returns a hash that changes with the ids, order or tokens of the rows, or their places in a curriculum."""
    found = hashlib.blake2b(digest_size=8)
    if place is not None:
        found.update(b"[")
        for position, number in enumerate(place):
            found.update(f"{', ' if position else ''}{number!r}".encode())
        found.update(b"]")
    for row in rows:
        found.update(repr((row.id, row.input_ids, row.ground_truth, *row.extra.get(ANSWERS, ()))).encode())
    return found.hexdigest()
