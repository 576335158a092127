"""What an engine says of the tokens of a response besides their log-probs, on its way from the engine into a sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from roll.data.kept_tokens import KeptTokens
from roll.data.routes import Routes


@dataclass(frozen=True, slots=True)
class Extras:
    """None where nobody asked, or nothing was said."""

    kept: KeptTokens | None = None
    """What top_p and top_k left to choose from, of each token of the response."""
    routes: Routes | None = None
    """Of the prompt's tokens, and the response's that were computed: a response's last token never is."""

    def then(self, more: Extras) -> Extras:
        """With what the next call for the same response says of its tokens, and of those that no call before has computed."""
        kept, routes = self.kept, self.routes
        if more.kept is not None:
            kept = more.kept if kept is None else kept + more.kept
        if more.routes is not None:
            routes = more.routes if routes is None else routes + more.routes
        return Extras(kept, routes)

    def answered(self, offset: int, answer: Extras, tokens: int) -> Extras:
        """With an answer of so many tokens to all that is there, a response's first `offset` tokens included. A token whose
        experts are known keeps them: it was computed again for this answer, but it is trained for what followed it first."""
        kept, routes = self.kept, answer.routes
        if answer.kept is not None:
            kept = (kept or KeptTokens.whole(offset)) + answer.kept
        elif kept is not None:
            kept += KeptTokens.whole(tokens)
        if self.routes is not None:
            routes = self.routes if routes is None else self.routes + routes.since(len(self.routes))
        return Extras(kept, routes)

    def told(self, tokens: int) -> Extras:
        """With so many tokens that were not sampled. Their experts are said with the answer to them."""
        return self if self.kept is None else replace(self, kept=self.kept + KeptTokens.whole(tokens))

    def to_json(self) -> dict[str, Any]:
        return {name: None if (value := getattr(self, name)) is None else value.to_json() for name in self.__slots__}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Extras:
        kept, routes = row["kept"], row["routes"]
        return cls(None if kept is None else KeptTokens.from_json(kept), None if routes is None else Routes.from_json(routes))


NOTHING = Extras()
