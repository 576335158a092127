"""A program's request for an answer, and the response: JSON, for people who look at its episode.

Programs send the whole history with each request. Kept is the new part, and the length of the part that repeats the request
whose answer it continues: so an episode's exchanges are about as long as its conversations. No header is kept, hence no key;
those of the episode are hidden wherever they stand, and so are values beside the conversation under names like `api_key`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from roll.core.configs.redact import HIDDEN, redact

CONVERSATION = ("messages", "input", "tools", "system", "instructions")
"""Fields of requests that later requests repeat."""
MOST = 1 << 16
"""Characters of a request, and of an answer."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A request, as it came."""

    path: str
    """Path of the address, without the episode."""
    body: Mapping[str, Any]


def without_images(value: Any) -> Any:
    """The same with a few words in the place of each image's content: the run's folder has it, the conversation its name."""
    if isinstance(value, Mapping):
        carried = value.get("type") == "base64" and isinstance(value.get("data"), str)
        rest = {name: without_images(item) for name, item in value.items()}
        return rest | {"data": f"({len(value['data'])} characters)"} if carried else rest
    if isinstance(value, list):
        return [without_images(item) for item in value]
    if isinstance(value, str) and value.startswith("data:image/"):
        return f"{value.partition(',')[0]},({len(value)} characters)"
    return value


class Exchange:
    def __init__(
        self, sent: Sent, answer: Mapping[str, Any], call_id: str, earlier: Exchange | None, keys: Sequence[str]
    ) -> None:
        """`answer`: whole, also where it was streamed. `earlier`: of the answer that the request goes on from. `keys`: of the
        episode."""
        self.call_id = call_id
        self._seen = {name: [_digest(item) for item in _items(sent.body[name])] for name in CONVERSATION if name in sent.body}
        repeated = {} if earlier is None else earlier.repeated_by(self)
        told: dict[str, object] = {"path": sent.path}
        if earlier is not None and repeated:
            told["repeats"] = {"of": earlier.call_id, **repeated}
        told |= {"request": _bounded(_news(sent.body, repeated), keys), "answer": _bounded(answer, keys)}
        self.text = json.dumps(told, ensure_ascii=False)
        """JSON: path, repeats (of which call, and how many items of each field), request, answer. Values too long are texts."""

    def repeated_by(self, later: Exchange) -> dict[str, int]:
        """Returns, for each field, the number of first items of a later request that repeat those of this one."""
        pairs = {name: zip(mine, later._seen.get(name, ()), strict=False) for name, mine in self._seen.items()}
        counts = {name: sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], of_both)) for name, of_both in pairs.items()}
        return {name: count for name, count in counts.items() if count}


def _news(body: Mapping[str, Any], repeated: Mapping[str, int]) -> dict[str, Any]:
    news: dict[str, Any] = {}
    for name, value in body.items():
        rest = _items(value)[repeated.get(name, 0) :]
        if name not in CONVERSATION:
            news |= redact({name: value})
        elif rest or not repeated.get(name):
            news[name] = rest if isinstance(value, list) else value
    return news


def _items(value: object) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _digest(item: object) -> int:
    return hash(json.dumps(item))


def _bounded(value: Mapping[str, Any], keys: Sequence[str]) -> Mapping[str, Any] | str:
    """The text of it where it is longer than `MOST`, cut."""
    text = json.dumps(value, ensure_ascii=False)
    if any(key in text for key in keys):
        for key in keys:
            text = text.replace(key, HIDDEN)
        value = json.loads(text)
    return value if len(text) <= MOST else f"{text[:MOST]} [{len(text) - MOST:,} more characters]"
