"""An episode's tokens as they come: its index in the group, the policy's answer to a context, and the response made of answers
and messages."""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from roll.core.data.extras import NOTHING, Extras
from roll.core.data.sample import LOGPROBS, MASK, TOKENS, VersionSpan


@dataclass(frozen=True, slots=True)
class PolicyAnswer:
    """The policy's answer in one turn."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    versions: list[VersionSpan]
    """Version spans from the first token of the answer."""
    text: str
    stopped: bool
    """False if it was cut off at the length limit."""
    extras: Extras = NOTHING

    def within(self, most: int) -> PolicyAnswer:
        """Returns the answer of a policy that may write so many tokens a turn: a single one, a move, is whole."""
        return replace(self, stopped=True) if most == 1 else self


AskPolicy = Callable[[Sequence[int], int, int], Awaitable[PolicyAnswer]]
"""(context tokens, turn from 0, most new tokens) -> the answer, complete."""
Ask = Callable[[Sequence[int], int, int, tuple[str, ...]], Awaitable[PolicyAnswer]]
"""(context tokens, number of the call, most new tokens, strings that end the answer) -> the answer, complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeTask:
    uid: str
    """The group's id: the tag and the number of its environment."""
    tag: str
    index: int
    """Number of the episode in its group."""
    env_seed: int


@dataclass
class Response:
    """An episode after its first message: answers of the policy, and between them messages, which are not trained."""

    ids: array[int] = field(default_factory=lambda: array(TOKENS))
    logprobs: array[float] = field(default_factory=lambda: array(LOGPROBS))
    mask: array[int] = field(default_factory=lambda: array(MASK))
    versions: list[VersionSpan] = field(default_factory=list)
    extras: Extras = NOTHING

    def answered(self, answer: PolicyAnswer) -> None:
        offset = len(self.ids)
        self.versions += [span._replace(start=span.start + offset, stop=span.stop + offset) for span in answer.versions]
        self.extras = self.extras.answered(offset, answer.extras, len(answer.token_ids))
        self.ids.extend(answer.token_ids)
        self.logprobs.extend(answer.logprobs)
        self.mask.extend([1] * len(answer.token_ids))

    def told(self, tokens: Sequence[int]) -> None:
        self.ids.extend(tokens)
        self.logprobs.extend([0.0] * len(tokens))
        self.mask.extend([0] * len(tokens))
        self.extras = self.extras.told(len(tokens))
