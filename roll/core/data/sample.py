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

from roll.core.configs.plain import JsonMapping, JsonObject
from roll.core.configs.problems import did_you_mean

if TYPE_CHECKING:
    from roll.core.data.extras import Extras
    from roll.core.data.kept_tokens import KeptTokens
    from roll.core.data.routes import Routes
    from roll.core.data.taught import TeacherAnswer

JUDGED = "judged"
"""Name of the reward part that is the reward worker's judgement, before shaping."""

TOKENS, LOGPROBS, MASK = "i", "f", "b"
"""Type codes: int32, float32, int8."""
PER_TOKEN = {"response_ids": TOKENS, "behaviour_logprobs": LOGPROBS, "loss_mask": MASK}
"""The arrays of a sample."""

FULL_REWARD = 1.0
"""Reward of a success unless the domain sets another."""
ROUNDING = 1e-6
"""Relative tolerance below the threshold of a success: 0.7 + 0.2 + 0.1 is a little less than 1."""

FinishReason = Literal["stop", "length", "abort"]


def packed(values: Iterable[Any], kind: str) -> array[Any]:
    """Packs values into an array, which is pickled as one piece of memory and skipped by Python's garbage collector: the work of
    a process that only forwards tokens grows with the number of responses, hardly with their length. `kind`: see `PER_TOKEN`."""
    return values if isinstance(values, array) and values.typecode == kind else array(kind, values)


class VersionSpan(NamedTuple):
    """Response tokens `[start, stop)`, sampled with the weights of policy version `version` on engine `engine` of the cluster."""

    start: int
    stop: int
    version: int
    engine: int = 0


@dataclass(slots=True)
class Prompt:
    """One row of a prompt file, tokenised. `uid` names the row *and* the epoch, so it occurs once in a run."""

    uid: str
    input_ids: Sequence[int]
    """Token ids of the prompt, stored as an array."""
    text: str
    tag: str
    domain: str
    ground_truth: str
    row: JsonObject = field(default_factory=dict)
    """The other columns of the row (test cases, difficulty, ...), for reward workers that need them."""
    conversation: list[JsonObject] = field(default_factory=list)
    """The messages that `text` was rendered from, for domains with a reward model, which renders them by its own template."""
    hinted_ids: Sequence[int] | None = None
    """Token ids of the prompt that the teacher is given in its place, which has a hint."""

    def __post_init__(self) -> None:
        self.input_ids = packed(self.input_ids, TOKENS)

    def to_json(self) -> JsonObject:
        hinted = None if self.hinted_ids is None else list(self.hinted_ids)
        return asdict(self) | {"input_ids": list(self.input_ids), "hinted_ids": hinted}


def begun_answer(messages: Sequence[JsonMapping]) -> str:
    """Returns the beginning of the answer to a conversation; mostly empty."""
    return str(messages[-1]["content"]) if messages and messages[-1]["role"] == "assistant" else ""


@dataclass(slots=True)
class Turn:
    """One action of an agent and its result."""

    observation: str
    """The observation before the action."""
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
    """JSON of a program's request for the action and of the answer to it; empty if no program asked for the action."""
    times: Sequence[float] = field(default=(), compare=False)
    """Seconds of the day: the action was asked for, it was there, and the environment, if there is one, had done it."""


EpisodeEnd = Literal["terminated", "truncated", "max_steps", "context"]
"""The task ended; the environment cut it short; `max_steps` did; the context had no room for another turn."""


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
    """None: the episode came to its end, and its environment reports no success or failure."""
    end: EpisodeEnd
    generation_s: float = 0.0
    environment_s: float = 0.0
    waiting_s: float = 0.0
    """Seconds spent waiting for a free place in an environment (`max_env_step_concurrent`)."""
    metrics: dict[str, float] = field(default_factory=dict)
    """The environment's own metrics of its last step."""


@dataclass(slots=True)
class Sample:
    """One response. Per-token values have the length of `response_ids` and are stored as arrays."""

    prompt: Prompt
    index: int
    """Position in the group, 0 .. n-1; all turns of an episode have the position of the episode."""
    response_ids: Sequence[int]
    behaviour_logprobs: Sequence[float]
    """log-prob of each token under the policy that sampled it: `log_softmax(logits / temperature)`, over `kept` if known."""
    versions: list[VersionSpan]
    finish_reason: FinishReason
    response_text: str = ""
    reward: float | None = None
    """Verifiable reward; None until a reward worker has returned it. A failed reward is an error, never a number."""
    loss_mask: Sequence[int] | None = None
    """1 on the policy's own tokens, 0 on an environment's, whose log-prob is 0. None: all are the policy's."""
    trajectory: Trajectory | None = None
    """None for a response to a prompt."""
    reward_parts: dict[str, float] = field(default_factory=dict)
    """The parts of the reward by name, as its worker reports them."""
    success_at: float = FULL_REWARD
    """The lowest judgement that is a success, set by the domain."""
    extras: Extras | None = None
    """The engine's further per-token data of prompt and response."""

    def __post_init__(self) -> None:
        for name, kind in PER_TOKEN.items():
            if (values := getattr(self, name)) is not None:
                setattr(self, name, packed(values, kind))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Never:
            """Called for missing attributes only; the error names their place."""
            raise AttributeError(_elsewhere(self, name), name=name, obj=self)

    @property
    def kept(self) -> KeptTokens | None:
        """The sets that top_p and top_k kept; None: log-probs are of the whole distribution."""
        return None if self.extras is None else self.extras.kept

    @property
    def routes(self) -> Routes | None:
        """The experts that prompt and response were computed with; None: not requested."""
        return None if self.extras is None else self.extras.routes

    @property
    def taught(self) -> TeacherAnswer | None:
        return None if self.extras is None else self.extras.taught

    @property
    def oldest_version(self) -> int:
        """The oldest version that sampled a token; -1 without a token. It is not the first token's version if the request moved
        to an engine that serves an older version."""
        return min([span.version for span in self.versions], default=-1)

    @property
    def own_tokens(self) -> int:
        """Number of response tokens sampled by the policy."""
        return len(self.response_ids) if self.loss_mask is None else sum(self.loss_mask)

    @property
    def begins_rollout(self) -> bool:
        """False for later turns of an episode whose turns are separate samples, so that metrics count each rollout once."""
        return self.trajectory is None or self.trajectory.first_turn == 0

    @property
    def succeeded(self) -> bool:
        """True if the environment reports success or, without an episode, the judgement is one. Shaping does not count."""
        if self.trajectory is not None:
            return self.trajectory.success is True
        return self.judged_success

    @property
    def judged_success(self) -> bool:
        """True if the judgement is a success."""
        judged = self.reward_parts.get(JUDGED, self.reward)
        return judged is not None and reaches(judged, self.success_at)

    @property
    def policy_mask(self) -> list[bool]:
        """True for each response token that the policy sampled."""
        return [True] * len(self.response_ids) if self.loss_mask is None else [bool(own) for own in self.loss_mask]


@dataclass(slots=True)
class SampleGroup:
    """The `n` samples of one prompt, as the trainer consumes them."""

    group_id: int
    """Sequence number of the admission, counted over the run."""
    start_version: int
    """Policy version published when the group was admitted: no token of it is older."""
    prompt: Prompt
    samples: list[Sample] = field(default_factory=list)
    baseline: Sample | None = None
    """The greedy response, whose reward is the baseline of the others (`adv_estimator: remax`). It is not trained."""

    @property
    def label(self) -> str:
        return f"group {self.group_id}"

    @property
    def rewards(self) -> list[float]:
        """[n] rewards. Raises `ValueError` if a sample has none: a missing reward is never a number."""
        rewards = [sample.reward for sample in self.samples if sample.reward is not None]
        if len(rewards) != len(self.samples):
            raise ValueError(f"group {self.group_id} has samples without a reward")
        return rewards

    @property
    def outcomes(self) -> list[float]:
        """The reward of each rollout. Raises the errors of `rewards`."""
        return [reward for sample, reward in zip(self.samples, self.rewards, strict=True) if sample.begins_rollout]

    @property
    def tokens_by_version(self) -> Counter[int]:
        tokens = Counter[int]()
        for sample in self.samples:
            for span in sample.versions:
                tokens[span.version] += span.stop - span.start
        return tokens

    def to_json(self, per_token: bool = True) -> JsonObject:
        """`per_token=False`: without the arrays of the samples (`PER_TOKEN`), for callers that store them separately."""
        return {
            "group_id": self.group_id,
            "start_version": self.start_version,
            "prompt": self.prompt.to_json(),
            "samples": [_sample_to_json(self.prompt, sample, per_token) for sample in self.samples],
            "baseline": None if self.baseline is None else _sample_to_json(self.prompt, self.baseline, per_token),
        }

    @classmethod
    def from_json(cls, row: JsonObject) -> SampleGroup:
        prompt = Prompt(**row["prompt"])
        samples = [_sample_from_json(prompt, sample) for sample in row["samples"]]
        baseline = None if row["baseline"] is None else _sample_from_json(prompt, row["baseline"])
        return cls(row["group_id"], row["start_version"], prompt, samples, baseline)


def _elsewhere(sample: Sample, name: str) -> str:
    """Returns the error message for an attribute that a user's reward expects in the wrong place."""
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
    """True if a judgement, or the score of an episode, is a success."""
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


def _sample_from_json(shared: Prompt, row: JsonObject) -> Sample:
    values = dict(row)
    values["prompt"] = shared if row["prompt"] is None else Prompt(**row["prompt"])
    values["versions"] = [VersionSpan(*span) for span in row["versions"]]
    if row.get("extras") is not None:
        from roll.core.data.extras import Extras

        values["extras"] = Extras.from_json(row["extras"])
    if (trajectory := row["trajectory"]) is not None:
        values["trajectory"] = Trajectory(**{**trajectory, "turns": [Turn(**turn) for turn in trajectory["turns"]]})
    return Sample(**values)
