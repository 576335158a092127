"""The sequence of prompts of a run: infinite, deterministic, resumable.

`Prompt` number k of a domain is row `k mod n` of epoch `k div n`, in an order that (seed, domain, epoch) and a curriculum, if
there is one, decide; domains take turns so that at every moment each has had its share. The whole state is therefore one count
for each domain, plus the prompts given back.
Invariant: every row of a domain is served once in an epoch, and `restore(cursor())` continues as if nothing had happened.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from roll.configs.arguments import CurriculumConfig, Template
from roll.data.chat_template import conversation, encode, render
from roll.data.prompt_file import PromptFileError, PromptRow
from roll.data.sample import Prompt
from roll.data.seeding import derive_seed

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class TokenizedRow:
    """A row that is ready to be served."""

    id: str
    domain: str
    tag: str
    text: str
    input_ids: list[int]
    ground_truth: str
    extra: dict[str, Any] = field(default_factory=dict)
    conversation: list[dict[str, Any]] = field(default_factory=list)

    def prompt(self, epoch: int) -> Prompt:
        uid = f"{self.domain}/{epoch}/{self.id}"
        return Prompt(uid, self.input_ids, self.text, self.tag, self.domain, self.ground_truth, self.extra, self.conversation)


def tokenize_prompts(
    rows: Iterable[PromptRow],
    tokenizer: PreTrainedTokenizerBase,
    template: Template,
    prompt_length: int,
    tag_to_domain: Mapping[str, str],
    with_conversation: Collection[str] = (),
) -> tuple[list[TokenizedRow], dict[str, int]]:
    """The rows that can be used, in order, and how many cannot, by reason: "too_long" (more than `prompt_length` tokens), "empty"
    (no token). `with_conversation`: the domains whose rewards read the messages. Raises `PromptFileError` for a tag that belongs
    to no domain."""
    rows = list(rows)
    for row in rows:
        if row.tag not in tag_to_domain:
            known = ", ".join(sorted(tag_to_domain)) or "none"
            raise PromptFileError(
                f"{row.where}: tag {row.tag!r} of row {row.id!r} is in no rewards.*.tag_included; known: {known}"
            )
    texts = render(rows, tokenizer, template)
    usable: list[TokenizedRow] = []
    skipped: Counter[str] = Counter()
    for row, text, input_ids in zip(rows, texts, encode(texts, tokenizer, template), strict=True):
        if not input_ids:
            skipped["empty"] += 1
        elif len(input_ids) > prompt_length:
            skipped["too_long"] += 1
        else:
            domain = tag_to_domain[row.tag]
            told = conversation(row) if domain in with_conversation else []
            usable.append(TokenizedRow(row.id, domain, row.tag, text, input_ids, row.ground_truth, row.extra, told))
    return usable, dict(skipped)


def by_domain(rows: Iterable[TokenizedRow]) -> dict[str, list[TokenizedRow]]:
    domains: dict[str, list[TokenizedRow]] = {}
    for row in rows:
        domains.setdefault(row.domain, []).append(row)
    return domains


class PromptSource:
    def __init__(
        self,
        rows_by_domain: Mapping[str, Sequence[TokenizedRow]],
        domain_probs: Mapping[str, float],
        seed: int,
        curriculum: CurriculumConfig | None = None,
    ) -> None:
        """`domain_probs`: relative share of each domain; empty means equal shares. Raises `ValueError` if a domain has a share
        and no rows, or rows and no share, and for a row that the curriculum does not find its number in."""
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
        self._row_of = {(domain, row.id): row for domain, served in self._rows.items() for row in served}
        self._served = dict.fromkeys(self._rows, 0)
        self._returned: deque[Prompt] = deque()
        self._orders: dict[str, tuple[int, list[int]]] = {}

    def __len__(self) -> int:
        """Rows of one epoch, over all domains."""
        return sum(map(len, self._rows.values()))

    def next(self) -> Prompt:
        if self._returned:
            return self._returned.popleft()
        total = sum(self._served.values()) + 1
        domain = max(self._rows, key=lambda d: self._shares[d] * total - self._served[d])
        epoch, position = divmod(self._served[domain], len(self._rows[domain]))
        self._served[domain] += 1
        return self._rows[domain][self._order(domain, epoch)[position]].prompt(epoch)

    def cursor(self, outstanding: Sequence[Prompt] = ()) -> dict[str, Any]:
        """The position, as plain JSON. `outstanding`: prompts that were served and are to be served again after `restore`."""
        returned = [prompt.uid for prompt in (*outstanding, *self._returned)]
        return {"seed": self._seed, "data": self._data, "served": dict(self._served), "returned": returned}

    def restore(self, cursor: Mapping[str, Any]) -> None:
        """Continues from a `cursor()`. Raises `ValueError` if it speaks of another seed or other prompts."""
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
        self._served = dict(cursor["served"])
        returned = [uid.split("/", 2) for uid in cursor["returned"]]
        self._returned = deque(self._row_of[domain, row_id].prompt(int(epoch)) for domain, epoch, row_id in returned)

    def _order(self, domain: str, epoch: int) -> list[int]:
        """The order of the rows in this epoch."""
        if self._orders.get(domain, (None,))[0] != epoch:
            order = list(range(len(self._rows[domain])))
            chance = random.Random(derive_seed(self._seed, "epoch", domain, epoch))
            chance.shuffle(order)
            if self._curriculum is not None and epoch < self._curriculum.epochs:
                spread, place = self._curriculum.spread, self._places[domain]
                order.sort(key=lambda row: place[row] + spread * chance.uniform(-1, 1))
            self._orders[domain] = (epoch, order)
        return self._orders[domain][1]


def places(rows: Sequence[TokenizedRow], curriculum: CurriculumConfig) -> list[float]:
    """Where in the epoch each row belongs, from 0 to 1; equally hard rows have the same place. Raises `ValueError`."""
    hard = [_number(row, curriculum.column) for row in rows]
    in_order = sorted(hard, reverse=curriculum.easiest == "high")
    first = {number: position for position, number in reversed(list(enumerate(in_order)))}
    return [first[number] / len(rows) for number in hard]


def _number(row: TokenizedRow, column: str) -> float:
    try:
        number = float(row.extra[column])
    except (KeyError, TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        has = f"is {row.extra[column]!r}"[:60] if column in row.extra else "is missing"
        raise ValueError(f"curriculum.column: {column!r} of prompt {row.id!r} (domain {row.domain}) {has}, not a number")
    return number


def _fingerprint(rows: Sequence[TokenizedRow], place: Sequence[float] | None) -> str:
    """A hash that changes if ids, order or tokens of the rows change, or their places in a curriculum."""
    digest = hashlib.blake2b(repr(place).encode() if place is not None else b"", digest_size=8)
    for row in rows:
        digest.update(repr((row.id, row.input_ids, row.ground_truth)).encode())
    return digest.hexdigest()
