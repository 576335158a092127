"""How an episode is played: turn by turn, and recorded as it goes.

An env manager knows neither engines nor workers. It requests an answer to tokens, and gives the text of the answer to an
environment.

`StepEnvManager` makes one sample per turn: every turn begins with a fresh context, in which `{history}` describes the turns
before. `TrajEnvManager` makes one sample per episode: the context grows from turn to turn, and everything after the first message
is the response.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from roll.configs.agentic import EnvConfig
from roll.data.sample import EpisodeEnd, Prompt, Sample, Trajectory, Turn, reaches
from roll.errors import EpisodeFailed
from roll.rollout.dialogue import Dialogue
from roll.rollout.episode import AskPolicy, EpisodeTask, PolicyAnswer, Response

KNOWN_INFO = frozenset({"action_is_valid", "action_is_effective", "success", "state_key", "suffix"})
"""Keys of an environment's `info` that have a meaning here; numbers under others are its own metrics."""


class Environment(Protocol):
    """An environment as `roll.envs.host.EnvHost` opens it."""

    running_s: float
    waiting_s: float

    async def reset(self, seed: int) -> tuple[str, dict[str, Any]]: ...

    async def step(self, action_text: str) -> tuple[str, float, bool, bool, dict[str, Any]]: ...


@dataclass(slots=True)
class Record:
    """The episode so far."""

    turns: list[Turn] = field(default_factory=list)
    end: EpisodeEnd | None = None
    success: bool | None = False
    generation_s: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def score(self) -> float:
        return sum(turn.reward for turn in self.turns)

    def trajectory(self, turns: list[Turn], first_turn: int, env: Environment) -> Trajectory:
        """The trajectory of the sample that holds these turns."""
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
    """Plays episodes of one tag. Subclasses decide what the policy sees, and which samples an episode becomes."""

    def __init__(self, config: EnvConfig, dialogue: Dialogue, *, instructions: str, context: int, answer_tokens: int) -> None:
        """`instructions`: the environment's rules. `context`: most tokens of a sample. `answer_tokens`: most tokens of a turn."""
        self.config = config
        self.dialogue = dialogue
        self.context = context
        self.answer_tokens = answer_tokens
        self._instructions = instructions

    @abstractmethod
    async def play(self, env: Environment, task: EpisodeTask, ask: AskPolicy) -> list[Sample]:
        """Plays one episode, from reset to its end, and returns its samples with rewards. Raises what the environment or the
        policy raises, and `EpisodeFailed`."""

    def system(self) -> str:
        return self.config.agent_system_template.format(instructions=self._instructions)

    def message(self, record: Record, observation: str, info: dict[str, Any]) -> str:
        """The policy's message for the next turn. Raises `KeyError` for a field that templates do not have."""
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
        """The policy's turn."""
        started = time.perf_counter()
        room = self.context - len(context)
        answer = await ask(context, len(record.turns), min(self.answer_tokens, room))
        record.generation_s += time.perf_counter() - started
        return answer

    async def react(
        self, env: Environment, record: Record, observation: str, info: dict[str, object], answer: PolicyAnswer
    ) -> tuple[str, dict[str, object]]:
        """The environment's turn: takes the answer, and records the turn and, if it was the last, how the episode ended."""
        following, reward, terminated, truncated, after = await env.step(answer.text)
        record.turns.append(
            Turn(
                observation=observation,
                action=answer.text,
                reward=reward,
                state_key=str(info.get("state_key", "")),
                is_valid=bool(after.get("action_is_valid", True)),
                is_effective=bool(after.get("action_is_effective", True)),
                tokens=len(answer.token_ids),
            )
        )
        record.success = self._succeeded(record, after, terminated or truncated)
        record.metrics = {
            name: float(value)
            for name, value in after.items()
            if name not in KNOWN_INFO and isinstance(value, int | float) and not isinstance(value, bool)
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

    def prompt(self, task: EpisodeTask, input_ids: list[int], text: str) -> Prompt:
        return Prompt(task.uid, input_ids, text, task.tag, task.tag, "", {"env_seed": task.env_seed})


class StepEnvManager(EnvManager):
    """The context does not grow with the episode, and turns from equal states can be compared (gigpo). Every sample of an
    episode has the episode's score as its reward; figures count the episode once."""

    async def play(self, env: Environment, task: EpisodeTask, ask: AskPolicy) -> list[Sample]:
        observation, info = await env.reset(task.env_seed)
        record = Record()
        system = self.system()
        steps: list[tuple[Prompt, PolicyAnswer]] = []
        while record.end is None:
            text = self.message(record, observation, info)
            prompt_ids = self.dialogue.first(system, text)
            if len(prompt_ids) >= self.context:
                if not steps:
                    raise EpisodeFailed("prompt_too_long", f"{len(prompt_ids)} tokens, sequence_length is {self.context}")
                record.end = "context"
                break
            answer = await self.act(prompt_ids, record, ask)
            steps.append((self.prompt(task, prompt_ids, system + text), answer))
            observation, info = await self.react(env, record, observation, info, answer)
        return [
            Sample(
                prompt=prompt,
                index=task.index,
                response_ids=answer.token_ids,
                behaviour_logprobs=answer.logprobs,
                extras=answer.extras,
                versions=list(answer.versions),
                finish_reason="stop" if answer.stopped else "length",
                response_text=answer.text,
                reward=record.score,
                trajectory=record.trajectory([record.turns[i]], i, env),
            )
            for i, (prompt, answer) in enumerate(steps)
        ]

    def fields(self, record: Record, observation: str, info: dict[str, Any]) -> dict[str, Any]:
        first = max(0, len(record.turns) - self.config.history_length)
        shown = list(enumerate(record.turns))[first:]
        history = "\n".join(f"[Observation {i + 1}: {turn.observation!r}, action {i + 1}: {turn.action!r}]" for i, turn in shown)
        return {**super().fields(record, observation, info), "history": history, "history_length": len(shown)}


class TrajEnvManager(EnvManager):
    """An episode that fills the context ends there, as a truncated one. Environment tokens are not trained."""

    async def play(self, env: Environment, task: EpisodeTask, ask: AskPolicy) -> list[Sample]:
        observation, info = await env.reset(task.env_seed)
        record = Record()
        text = self.message(record, observation, info)
        system = self.system()
        prompt_ids = self.dialogue.first(system, text)
        if len(prompt_ids) >= self.context:
            raise EpisodeFailed("prompt_too_long", f"{len(prompt_ids)} tokens, sequence_length is {self.context}")
        response = Response()
        while True:
            answer = await self.act([*prompt_ids, *response.ids], record, ask)
            response.answered(answer)
            observation, info = await self.react(env, record, observation, info, answer)
            if record.end is not None:
                break
            more = self.dialogue.following(self.message(record, observation, info), response.ids[-1])
            if len(prompt_ids) + len(response.ids) + len(more) >= self.context:
                record.end = "context"
                break
            response.told(more)
        return [
            Sample(
                prompt=self.prompt(task, prompt_ids, system + text),
                index=task.index,
                response_ids=response.ids,
                behaviour_logprobs=response.logprobs,
                extras=response.extras,
                versions=response.versions,
                finish_reason="length" if record.end == "context" or not answer.stopped else "stop",
                response_text="\n".join(turn.action for turn in record.turns),
                reward=record.score,
                loss_mask=response.mask,
                trajectory=record.trajectory(record.turns, 0, env),
            )
        ]
