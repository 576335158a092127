"""Search over a corpus of this machine (BM25), or by a retrieval service.

The corpus is a file of JSON lines, each a text or an object with `contents` or `text`, and maybe `title`; without a title the
first line of a text with several is it. BM25 is Robertson's and Zaragoza's (2009), with their usual constants."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from roll.core.data.untrusted import open_regular
from roll.core.errors import ToolFailed
from roll.envs.tools.tool import Tool, text_argument, text_parameter

K1, B = 1.2, 0.75
_WORD = re.compile(r"\w+")


class Search(Tool):
    name = "search"
    description = "Searches a collection of documents and returns the best matches."
    parameters = text_parameter("query", "words to look for")

    def __init__(
        self, corpus: str | None = None, search_url: str | None = None, topk: int = 3, timeout: float = 5, num_workers: int = 1
    ) -> None:
        """`corpus`: the file. `search_url`: a service that speaks as ROLL's retrieval server, {query, topk, return_scores} by
        MessagePack. `topk`: documents of a result. `timeout`: seconds, of the service. `num_workers`: ROLL's; each coordinator
        searches by itself. Raises `ValueError`."""
        if (corpus is None) == (search_url is None):
            raise ValueError("give corpus, a file of JSON lines, or search_url, the address of a retrieval service")
        if topk < 1:
            raise ValueError(f"topk is {topk}; it must be >= 1")
        self._topk, self._url, self._timeout_s = topk, search_url, timeout
        self._index = None if corpus is None else Index(Path(corpus))
        self._client: httpx.AsyncClient | None = None

    @property
    def instructions(self) -> str:
        return (
            f"{self.description} Write <search> what you look for </search> to use it; they come between <information> and "
            "</information>."
        )

    async def run(self, arguments: Mapping[str, Any]) -> str:
        query = text_argument(arguments, "query")
        found = self._index.best(query, self._topk) if self._index is not None else await self._asked(query)
        if not found:
            return "<information>No document was found.</information>"
        lines = (f"Doc {i}(Title: {title}) {text}" for i, (title, text) in enumerate(found, 1))
        return "<information>" + "\n".join(lines) + "</information>"

    async def _asked(self, query: str) -> list[tuple[str, str]]:
        import msgpack

        if self._client is None:
            self._client = httpx.AsyncClient(timeout=self._timeout_s, trust_env=False)
        body = msgpack.packb({"query": query, "topk": self._topk, "return_scores": True})
        try:
            answer = await self._client.post(str(self._url), content=body)
            answer.raise_for_status()
            documents = [str(each["document"]["contents"]) for each in msgpack.unpackb(answer.content)["result"]]
        except (httpx.HTTPError, ValueError, KeyError, TypeError, msgpack.exceptions.UnpackException) as error:
            raise ToolFailed(f"the search service does not answer: {type(error).__name__}: {error}") from error
        return [_titled(each) for each in documents]

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()


class Index:
    """The words of a corpus."""

    def __init__(self, path: Path) -> None:
        """Raises `ValueError` and `OSError`."""
        self._documents: list[tuple[str, str]] = []
        self._containing: dict[str, list[tuple[int, int]]] = {}
        """Word -> the documents that have it, and how often."""
        self._lengths: list[int] = []
        with open_regular(path) as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    self._add(f"line {number} of {path}", line)
        if not self._documents:
            raise ValueError(f"{path} has no document")
        self._mean_length = sum(self._lengths) / len(self._lengths)

    def _add(self, where: str, line: bytes) -> None:
        try:
            given = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{where} is not JSON: {error}") from None
        text = given if isinstance(given, str) else None
        if isinstance(given, dict):
            text = next((given[name] for name in ("contents", "text") if isinstance(given.get(name), str)), None)
        if text is None:
            raise ValueError(f"{where} is neither a text nor an object with contents or text")
        title = given.get("title") if isinstance(given, dict) else None
        self._documents.append((str(title), text) if title is not None else _titled(text))
        words = Counter(_words(" ".join(self._documents[-1])))
        self._lengths.append(words.total())
        for word, times in words.items():
            self._containing.setdefault(word, []).append((len(self._lengths) - 1, times))

    def best(self, query: str, most: int) -> list[tuple[str, str]]:
        """Titles and texts, the best first; those without any of the words are left out."""
        scores = Counter[int]()
        for word in dict.fromkeys(_words(query)):
            has = self._containing.get(word, [])
            rarity = math.log(1 + (len(self._lengths) - len(has) + 0.5) / (len(has) + 0.5))
            for document, times in has:
                length = K1 * (1 - B + B * self._lengths[document] / self._mean_length)
                scores[document] += rarity * times * (K1 + 1) / (times + length)  # type: ignore[assignment]
        ranked = sorted(scores, key=lambda document: (-scores[document], document))
        return [self._documents[document] for document in ranked[:most]]


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _titled(text: str) -> tuple[str, str]:
    title, _, rest = text.partition("\n")
    return (title, rest) if rest else ("", text)
