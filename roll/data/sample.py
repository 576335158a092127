"""One rollout and the group it belongs to.

A `Sample` is one response to one prompt, a `SampleGroup` the `n` responses to the same prompt. Groups are atomic: admitted,
buffered, trained, resumed and dropped whole. Both are plain values that round-trip through JSON (`to_json`, `from_json`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

FinishReason = Literal["stop", "length", "abort"]


class VersionSpan(NamedTuple):
    """Response tokens `[start, stop)` were sampled by the weights of policy version `version`."""

    start: int
    stop: int
    version: int


@dataclass(slots=True)
class Prompt:
    """One row of a prompt file, tokenised. `uid` names the row *and* the epoch, so it occurs once in a run."""

    uid: str
    input_ids: list[int]
    text: str
    tag: str
    domain: str
    ground_truth: str
    row: dict[str, Any] = field(default_factory=dict)
    """The other columns of the row (test cases, difficulty, ...), for reward workers that need them."""


@dataclass(slots=True)
class Sample:
    """One response. All per-token lists have the length of `response_ids`."""

    prompt: Prompt
    index: int
    """Position in the group, 0 .. n-1."""
    response_ids: list[int]
    behaviour_logprobs: list[float]
    """log-prob of each token under the policy that sampled it, `log_softmax(logits / temperature)`."""
    versions: list[VersionSpan]
    finish_reason: FinishReason
    response_text: str = ""
    reward: float | None = None
    """Verifiable reward; None until a reward worker has spoken. A failed reward is an error, never a number."""

    @property
    def first_version(self) -> int:
        return self.versions[0].version if self.versions else -1


@dataclass(slots=True)
class SampleGroup:
    """The `n` samples of one prompt, as the trainer consumes them."""

    group_id: int
    """Number of the admission, counted over the run."""
    start_version: int
    """Policy version published when the group was admitted: no token of it is older."""
    prompt: Prompt
    samples: list[Sample] = field(default_factory=list)

    @property
    def rewards(self) -> list[float]:
        """[n]. Raises `ValueError` if a sample has none: a missing reward is never a number."""
        rewards = [sample.reward for sample in self.samples if sample.reward is not None]
        if len(rewards) != len(self.samples):
            raise ValueError(f"group {self.group_id} has samples without a reward")
        return rewards

    def to_json(self) -> dict[str, Any]:
        samples = []
        for sample in self.samples:
            row = {name: getattr(sample, name) for name in Sample.__slots__ if name != "prompt"}
            row["versions"] = [list(span) for span in sample.versions]
            samples.append(row)
        return {
            "group_id": self.group_id,
            "start_version": self.start_version,
            "prompt": asdict(self.prompt),
            "samples": samples,
        }

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> SampleGroup:
        prompt = Prompt(**row["prompt"])
        samples = [
            Sample(prompt=prompt, **{**sample, "versions": [VersionSpan(*span) for span in sample["versions"]]})
            for sample in row["samples"]
        ]
        return cls(row["group_id"], row["start_version"], prompt, samples)
