"""Per-token data of a response besides its log-probs, on the way from the engine into a sample."""

from __future__ import annotations

from dataclasses import dataclass, replace

from roll.core.configs.plain import JsonMapping, JsonObject
from roll.core.data.kept_tokens import KeptTokens
from roll.core.data.routes import Routes
from roll.core.data.taught import TeacherAnswer


@dataclass(frozen=True, slots=True)
class Extras:
    """Kept sets, expert routes and a teacher's answer; a field is None if it was not requested or nothing was reported."""

    kept: KeptTokens | None = None
    """The set that top_p and top_k kept, for each token of the response."""
    routes: Routes | None = None
    """Experts of the prompt's tokens and of the computed response tokens; the last response token is never computed."""
    taught: TeacherAnswer | None = None
    """The answer of the sample's teacher, which is asked once."""

    def then(self, more: Extras) -> Extras:
        """Appends the extras of the next call for the same response: its own tokens, and earlier ones not computed before."""
        kept, routes = self.kept, self.routes
        if more.kept is not None:
            kept = more.kept if kept is None else kept + more.kept
        if more.routes is not None:
            routes = more.routes if routes is None else routes + more.routes
        return Extras(kept, routes)

    def answered(self, offset: int, answer: Extras, tokens: int) -> Extras:
        """Appends an answer of `tokens` tokens to an episode whose response has `offset` tokens so far. A token whose experts
        are known keeps them: the answer recomputed it, but it is trained for the continuation sampled first."""
        kept, routes = self.kept, answer.routes
        if answer.kept is not None:
            kept = (kept or KeptTokens.whole(offset)) + answer.kept
        elif kept is not None:
            kept += KeptTokens.whole(tokens)
        if self.routes is not None:
            routes = self.routes if routes is None else self.routes + routes.since(len(self.routes))
        return Extras(kept, routes)

    def told(self, tokens: int) -> Extras:
        """Appends `tokens` tokens that were not sampled. Their experts arrive with the next answer."""
        return self if self.kept is None else replace(self, kept=self.kept + KeptTokens.whole(tokens))

    def to_json(self) -> JsonObject:
        return {name: None if (value := getattr(self, name)) is None else value.to_json() for name in self.__slots__}

    @classmethod
    def from_json(cls, row: JsonMapping) -> Extras:
        kept, routes, taught = row["kept"], row["routes"], row.get("taught")
        return cls(
            None if kept is None else KeptTokens.from_json(kept),
            None if routes is None else Routes.from_json(routes),
            None if taught is None else TeacherAnswer.from_json(taught),
        )


NOTHING = Extras()
