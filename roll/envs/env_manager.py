"""Plays an episode turn by turn and records it.

An env manager knows neither engines nor workers. It requests an answer to tokens, and gives the text of the answer to an
environment. Subclasses turn an episode into samples: `turn_managers` one per turn, `episode_managers` one for all turns.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from roll.chat.conversation import Reply
from roll.chat.dialogue import Dialogue
from roll.core.configs.agentic import EnvConfig
from roll.core.data.episode import AskPolicy, EpisodeTask, PolicyAnswer
from roll.core.data.numbers import plain_number
from roll.core.data.sample import EpisodeEnd, Prompt, Sample, Trajectory, Turn, reaches
from roll.core.distributed.clock import monotonic
from roll.core.errors import EpisodeFailed
from roll.envs.environment import Info, Observation, Results

KNOWN_INFO = frozenset({"action_is_valid", "action_is_effective", "success", "state_key", "suffix"})
"""Keys of an environment's `info` that have a meaning here; numbers under others are its own metrics."""


class Environment(Protocol):
    """An environment as `roll.envs.host.EnvHost` opens it."""

    @property
    def running_s(self) -> float: ...

    @property
    def waiting_s(self) -> float: ...

    async def reset(self, seed: int) -> tuple[Observation, Info]: ...

    async def step(
        self, action_text: str, reply: Reply | None = None
    ) -> tuple[Observation | Results, float, bool, bool, Info]: ...

    async def cut_off(self) -> float: ...


@dataclass(slots=True)
class Record:
    """The episode so far."""

    turns: list[Turn] = field(default_factory=list)
    end: EpisodeEnd | None = None
    success: bool | None = False
    generation_s: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    asked_at: float = 0.0

    @property
    def score(self) -> float:
        return sum(turn.reward for turn in self.turns)

    def trajectory(self, turns: list[Turn], first_turn: int, env: Environment) -> Trajectory:
        """Returns the trajectory of the sample that holds these turns."""
        assert self.end is not None
        return Trajectory(
            turns=turns,
            first_turn=first_turn,
            num_turns=len(self.turns),
            score=self.score,
            success=self.success,
            end=self.end,
            generation_s=self.generation_s,
            environment_s=env.running_s,
            waiting_s=env.waiting_s,
            metrics=self.metrics,
        )


class EnvManager(ABC):
    """Plays episodes of one tag. Subclasses decide the policy's observations and the samples of an episode."""

    reads: ClassVar[frozenset[type]] = frozenset({str})
    """Types of observation that it plays: texts, lists of messages or both."""
    by_template = True
    """True if `agent_template` renders the texts."""

    def __init__(self, config: EnvConfig, dialogue: Dialogue, *, instructions: str, context: int, answer_tokens: int) -> None:
        """`instructions`: the environment's rules. `context`: most tokens of a sample. `answer_tokens`: most tokens of a turn."""
        self.config = config
        self.dialogue = dialogue
        self.context = context
        self.answer_tokens = answer_tokens
        self._instructions = instructions

    @abstractmethod
    async def play(self, env: Environment, task: EpisodeTask, ask: AskPolicy) -> list[Sample]:
        """Plays one episode, from reset to its end, and returns its samples with rewards. Raises errors of the environment and of
        the policy, and `EpisodeFailed`."""

    def system(self) -> str:
        """Returns the rules if no template is written, unless the turns' template has them."""
        if (template := self.config.agent_system_template) is not None:
            return template.format(instructions=self._instructions)
        if not self._instructions or "{instructions}" in self.config.agent_template:
            return ""
        return self._instructions if self.dialogue.native else f"{self._instructions}\n"

    def message(self, record: Record, observation: str, info: dict[str, Any]) -> str:
        """Returns the policy's message for the next turn. Raises `KeyError` for a field that templates do not have."""
        return self.config.agent_template.format(**self.fields(record, observation, info))

    def fields(self, record: Record, observation: str, info: dict[str, Any]) -> dict[str, Any]:
        return {
            "observation": observation,
            "turn_idx": len(record.turns) + 1,
            "step_count": len(record.turns),
            "actions_left": self.config.max_steps - len(record.turns),
            "max_response_length": self.answer_tokens,
            "suffix": info.get("suffix", ""),
            "instructions": self._instructions,
        }

    async def act(self, context: Sequence[int], record: Record, ask: AskPolicy) -> PolicyAnswer:
        """Plays the policy's turn. Raises `EpisodeFailed` if the context is empty."""
        if not context:
            raise EpisodeFailed("empty_prompt", "what is seen has no token")
        started, record.asked_at = monotonic(), time.time()
        room = self.context - len(context)
        answer = await ask(context, len(record.turns), min(self.answer_tokens, room))
        record.generation_s += monotonic() - started
        return answer.within(self.answer_tokens)

    async def react(
        self,
        env: Environment,
        record: Record,
        observation: str,
        info: dict[str, object],
        answer: PolicyAnswer,
        reply: Reply | None = None,
    ) -> tuple[Observation | Results, dict[str, object]]:
        """Passes the answer to the environment and records the turn and, if it was the last, the end of the episode.
        `observation`: the text that the answer responds to. `reply`: the parsed answer, if known."""
        answered_at = time.time()
        following, reward, terminated, truncated, after = await (
            env.step(answer.text) if reply is None else env.step(answer.text, reply)
        )
        record.turns.append(
            Turn(
                observation=observation,
                action=answer.text,
                reward=reward,
                state_key=str(info.get("state_key", "")),
                is_valid=bool(after.get("action_is_valid", True)),
                is_effective=bool(after.get("action_is_effective", True)),
                tokens=len(answer.token_ids),
                times=(record.asked_at, answered_at, time.time()),
            )
        )
        after = {"tools": info.get("tools"), **after}
        record.success = self._succeeded(record, after, terminated or truncated)
        record.metrics = {
            name: number
            for name, value in after.items()
            if name not in KNOWN_INFO and (number := plain_number(value)) is not None
        }
        if terminated or truncated:
            record.end = "terminated" if terminated else "truncated"
        elif len(record.turns) >= self.config.max_steps:
            record.end = "max_steps"
        return following, after

    def _succeeded(self, record: Record, after: Mapping[str, object], over: bool) -> bool | None:
        if self.config.success_at is not None:
            return reaches(record.score, self.config.success_at)
        said = after.get("success")
        return None if over and said is None else bool(said)

    @property
    def answers_to_tools(self) -> bool:
        """True if answers of tools are shown as messages of their own, False if as observations."""
        return False

    async def cut(self, env: Environment, record: Record) -> float:
        """Ends an episode that has no room for another answer. Returns the environment's reward for the turns so far."""
        record.end = "context"
        reward = await env.cut_off()
        if self.config.success_at is not None:
            record.success = reaches(record.score + reward, self.config.success_at)
        return reward

    def no_room(self, tokens: int) -> EpisodeFailed:
        """Error of a first message that leaves no room for an answer."""
        return EpisodeFailed("prompt_too_long", f"{tokens} tokens, sequence_length is {self.context}")

    def prompt(self, task: EpisodeTask, input_ids: list[int], text: str) -> Prompt:
        return Prompt(task.uid, input_ids, text, task.tag, task.tag, "", {"env_seed": task.env_seed})
