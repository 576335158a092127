"""One rollout and the group it belongs to.

A `Sample` is one response to one prompt, a `SampleGroup` the `n` responses to the same prompt. Groups are atomic: admitted,
buffered, trained, resumed and dropped whole. Both are plain values that round-trip through JSON (`to_json`, `from_json`).
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Never

from roll.configs.problems import did_you_mean

if TYPE_CHECKING:
    from roll.data.extras import Extras
    from roll.data.kept_tokens import KeptTokens
    from roll.data.routes import Routes

JUDGED = "judged"
"""The part of a shaped reward that its worker has given."""

TOKENS, LOGPROBS, MASK = "i", "f", "b"
"""Type codes: int32, float32, int8."""
PER_TOKEN = {"response_ids": TOKENS, "behaviour_logprobs": LOGPROBS, "loss_mask": MASK}
"""The arrays of a sample."""

FULL_REWARD = 1.0
"""What a success earns unless something else is said."""
ROUNDING = 1e-6
"""A judgement that is less by no more than this share is still a success: 0.7 + 0.2 + 0.1 is a little less than 1."""

FinishReason = Literal["stop", "length", "abort"]


def packed(values: Iterable[Any], kind: str) -> array[Any]:
    """An array is pickled as one piece of memory, and Python's search for garbage passes it by: the work of a process that only
    hands tokens on grows with the number of responses, hardly with their length. `kind`: as in `PER_TOKEN`."""
    return values if isinstance(values, array) and values.typecode == kind else array(kind, values)


class VersionSpan(NamedTuple):
    """Response tokens `[start, stop)` were sampled by the weights of policy version `version`, on that engine of the cluster."""

    start: int
    stop: int
    version: int
    engine: int = 0


@dataclass(slots=True)
class Prompt:
    """One row of a prompt file, tokenised. `uid` names the row *and* the epoch, so it occurs once in a run."""

    uid: str
    input_ids: Sequence[int]
    """Kept as an array, whatever it is given as."""
    text: str
    tag: str
    domain: str
    ground_truth: str
    row: dict[str, Any] = field(default_factory=dict)
    """The other columns of the row (test cases, difficulty, ...), for reward workers that need them."""
    conversation: list[dict[str, Any]] = field(default_factory=list)
    """The messages that `text` was made of, for domains with a reward model, which renders them by its own template."""

    def __post_init__(self) -> None:
        self.input_ids = packed(self.input_ids, TOKENS)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"input_ids": list(self.input_ids)}


@dataclass(slots=True)
class Turn:
    """One action of an agent and what came of it."""

    observation: str
    """What it saw before."""
    action: str
    """The whole text that the agent wrote."""
    reward: float
    state_key: str
    """Equal for equal states of the environment before the action; empty if the environment does not say."""
    is_valid: bool
    is_effective: bool
    tokens: int
    """Tokens of the action."""
    exchange: str = ""
    """JSON of what a program sent for the action, and of what it was sent; empty if none asked for it."""


EpisodeEnd = Literal["terminated", "truncated", "max_steps", "context"]
"""The task has ended; the environment cut it short; so did `max_steps`; there was no room for another turn in the context."""


@dataclass(slots=True)
class Trajectory:
    """The episode that a sample belongs to: the sample holds its turns, all of them or one."""

    turns: list[Turn]
    first_turn: int
    """Position in the episode of the first of `turns`."""
    num_turns: int
    """Turns of the whole episode."""
    score: float
    """Sum of the rewards of the whole episode."""
    success: bool | None
    """None: the episode came to its end, and its environment does not say."""
    end: EpisodeEnd
    generation_s: float = 0.0
    environment_s: float = 0.0
    waiting_s: float = 0.0
    """Seconds spent waiting for a free place in an environment (`max_env_step_concurrent`)."""
    metrics: dict[str, float] = field(default_factory=dict)
    """The environment's own metrics of its last step."""


@dataclass(slots=True)
class Sample:
    """One response. Per-token values have the length of `response_ids`; they are arrays, whatever they are given as."""

    prompt: Prompt
    index: int
    """Position in the group, 0 .. n-1; the turns of an episode share that of the episode."""
    response_ids: Sequence[int]
    behaviour_logprobs: Sequence[float]
    """log-prob of each token under the policy that sampled it: `log_softmax(logits / temperature)`, over `kept` if known."""
    versions: list[VersionSpan]
    finish_reason: FinishReason
    response_text: str = ""
    reward: float | None = None
    """Verifiable reward; None until a reward worker has spoken. A failed reward is an error, never a number."""
    loss_mask: Sequence[int] | None = None
    """1 on the policy's own tokens; the others are what an environment said, with log-prob 0. None: all are the policy's."""
    trajectory: Trajectory | None = None
    """None for a response to a prompt."""
    reward_parts: dict[str, float] = field(default_factory=dict)
    """What the reward was made of, as its worker says, by name."""
    success_at: float = FULL_REWARD
    """The judgement from which on the response is a success, as its domain says."""
    extras: Extras | None = None
    """What else the engine said of the prompt's and the response's tokens."""

    def __post_init__(self) -> None:
        for name, kind in PER_TOKEN.items():
            if (values := getattr(self, name)) is not None:
                setattr(self, name, packed(values, kind))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Never:
            """Only for what is not there: says where it is."""
            raise AttributeError(_elsewhere(self, name), name=name, obj=self)

    @property
    def kept(self) -> KeptTokens | None:
        """What top_p and top_k left to choose from; None: log-probs are of the whole distribution."""
        return None if self.extras is None else self.extras.kept

    @property
    def routes(self) -> Routes | None:
        """The experts that prompt and response were computed with; None: nobody asked."""
        return None if self.extras is None else self.extras.routes

    @property
    def oldest_version(self) -> int:
        """The oldest version that sampled a token; -1 without a token. It is not the first token's version if the request moved
        to an engine that serves an older version."""
        return min([span.version for span in self.versions], default=-1)

    @property
    def own_tokens(self) -> int:
        """How many of the response's tokens are the policy's."""
        return len(self.response_ids) if self.loss_mask is None else sum(self.loss_mask)

    @property
    def begins_rollout(self) -> bool:
        """False for the later turns of an episode whose turns are samples of their own: figures count each rollout once."""
        return self.trajectory is None or self.trajectory.first_turn == 0

    @property
    def succeeded(self) -> bool:
        """Whether the judgement is a success, or what the environment says. Penalties on top of a judgement do not count."""
        if self.trajectory is not None:
            return self.trajectory.success is True
        return self.judged_success

    @property
    def judged_success(self) -> bool:
        """Whether the judgement is a success."""
        judged = self.reward_parts.get(JUDGED, self.reward)
        return judged is not None and reaches(judged, self.success_at)

    @property
    def policy_mask(self) -> list[bool]:
        """For each response token, whether the policy sampled it."""
        return [True] * len(self.response_ids) if self.loss_mask is None else [bool(own) for own in self.loss_mask]


@dataclass(slots=True)
class SampleGroup:
    """The `n` samples of one prompt, as the trainer consumes them."""

    group_id: int
    """Number of the admission, counted over the run."""
    start_version: int
    """Policy version published when the group was admitted: no token of it is older."""
    prompt: Prompt
    samples: list[Sample] = field(default_factory=list)
    baseline: Sample | None = None
    """The greedy response, whose reward others are compared with (`adv_estimator: remax`). It is not trained."""

    @property
    def label(self) -> str:
        return f"group {self.group_id}"

    @property
    def rewards(self) -> list[float]:
        """[n]. Raises `ValueError` if a sample has none: a missing reward is never a number."""
        rewards = [sample.reward for sample in self.samples if sample.reward is not None]
        if len(rewards) != len(self.samples):
            raise ValueError(f"group {self.group_id} has samples without a reward")
        return rewards

    @property
    def outcomes(self) -> list[float]:
        """The reward of each rollout; raises as `rewards` does."""
        return [reward for sample, reward in zip(self.samples, self.rewards, strict=True) if sample.begins_rollout]

    @property
    def tokens_by_version(self) -> Counter[int]:
        tokens = Counter[int]()
        for sample in self.samples:
            for span in sample.versions:
                tokens[span.version] += span.stop - span.start
        return tokens

    def to_json(self, per_token: bool = True) -> dict[str, Any]:
        """`per_token=False`: without the arrays of the samples (`PER_TOKEN`), for callers that store them separately."""
        return {
            "group_id": self.group_id,
            "start_version": self.start_version,
            "prompt": self.prompt.to_json(),
            "samples": [_sample_to_json(self.prompt, sample, per_token) for sample in self.samples],
            "baseline": None if self.baseline is None else _sample_to_json(self.prompt, self.baseline, per_token),
        }

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> SampleGroup:
        prompt = Prompt(**row["prompt"])
        samples = [_sample_from_json(prompt, sample) for sample in row["samples"]]
        baseline = None if row["baseline"] is None else _sample_from_json(prompt, row["baseline"])
        return cls(row["group_id"], row["start_version"], prompt, samples, baseline)


def _elsewhere(sample: Sample, name: str) -> str:
    """For users whose reward looks for something in the wrong place."""
    missing = f"a Sample has no {name}"
    if name.startswith("_") or name in Sample.__slots__:
        return missing
    if name in Prompt.__slots__:
        return f"{missing}; it is sample.prompt.{name}"
    if name in sample.prompt.row:
        return f"{missing}; it is a column of the prompt: sample.prompt.row[{name!r}]"
    nearest = did_you_mean(name, Sample.__slots__)
    return f"{missing}; {nearest or 'the answer is sample.response_text, what it is held against sample.prompt.ground_truth'}"


def reaches(value: float, success_at: float) -> bool:
    """Whether a judgement, or the score of an episode, is a success."""
    return value >= success_at or math.isclose(value, success_at, rel_tol=ROUNDING, abs_tol=ROUNDING)


def _sample_to_json(shared: Prompt, sample: Sample, per_token: bool) -> dict[str, object]:
    row = {name: getattr(sample, name) for name in Sample.__slots__ if per_token or name not in PER_TOKEN}
    row |= {name: list(row[name]) for name in PER_TOKEN if row.get(name) is not None}
    row["versions"] = [list(span) for span in sample.versions]
    row["extras"] = None if sample.extras is None else sample.extras.to_json()
    row["trajectory"] = None if sample.trajectory is None else asdict(sample.trajectory)
    # A turn has a prompt of its own, responses to one prompt share it.
    row["prompt"] = None if sample.prompt == shared else sample.prompt.to_json()
    return row


def _sample_from_json(shared: Prompt, row: dict[str, Any]) -> Sample:
    values = dict(row)
    values["prompt"] = shared if row["prompt"] is None else Prompt(**row["prompt"])
    values["versions"] = [VersionSpan(*span) for span in row["versions"]]
    if row.get("extras") is not None:
        from roll.data.extras import Extras

        values["extras"] = Extras.from_json(row["extras"])
    if (trajectory := row["trajectory"]) is not None:
        values["trajectory"] = Trajectory(**{**trajectory, "turns": [Turn(**turn) for turn in trajectory["turns"]]})
    return Sample(**values)
