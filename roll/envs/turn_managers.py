"""Env managers that make a sample of each turn: every turn begins with a context of its own.

Every sample of an episode has the episode's score as its reward; figures count the episode once, and turns from equal states can
be compared (gigpo). `StepEnvManager` and `StepConcatEnvManager` show the turns before as `{history}` of their template.
`AgentNativeStepEnvManager` shows the messages of an environment that keeps the conversation."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from roll.chat.conversation import Message, digests, shown
from roll.core.data.episode import AskPolicy, EpisodeTask, PolicyAnswer
from roll.core.data.sample import Prompt, Sample
from roll.envs.env_manager import Environment, EnvManager, Record
from roll.envs.environment import Info, Observation, Results


class TurnManager(EnvManager):
    @abstractmethod
    def context_of(self, record: Record, observation: Any, info: Info) -> tuple[list[int], str, str]:
        """Returns the tokens of a turn's prompt, its text, and the new part of it."""

    def state_key(self, observation: Any, info: Info) -> str:
        """Equal for equal states."""
        return str(info.get("state_key", ""))

    async def play(self, env: Environment, task: EpisodeTask, ask: AskPolicy) -> list[Sample]:
        observation: Observation | Results
        observation, info = await env.reset(task.env_seed)
        record = Record()
        steps: list[tuple[Prompt, PolicyAnswer]] = []
        while record.end is None:
            prompt_ids, text, news = self.context_of(record, observation, info)
            if len(prompt_ids) >= self.context:
                if not steps:
                    raise self.no_room(len(prompt_ids))
                record.turns[-1].reward += await self.cut(env, record)
                break
            answer = await self.act(prompt_ids, record, ask)
            steps.append((self.prompt(task, prompt_ids, text), answer))
            info = {**info, "state_key": self.state_key(observation, info)}
            observation, info = await self.react(env, record, news, info, answer)
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


class StepEnvManager(TurnManager):
    """The context does not grow with the episode."""

    def context_of(self, record: Record, observation: Any, info: Info) -> tuple[list[int], str, str]:
        system, text = self.system(), self.message(record, observation, info)
        return self.dialogue.first(system, text), system + text, observation

    def fields(self, record: Record, observation: str, info: dict[str, Any]) -> dict[str, Any]:
        first = max(0, len(record.turns) - self.config.history_length)
        history = [self.remembered(i, turn.observation, turn.action) for i, turn in enumerate(record.turns[first:], first + 1)]
        more = {"history": "\n".join(history), "history_length": len(history)}
        return {**super().fields(record, observation, info), **more}

    def remembered(self, number: int, observation: str, action: str) -> str:
        """Returns the text of a turn for {history}; turns are numbered from 1."""
        return f"[Observation {number}: {observation!r}, action {number}: {action!r}]"


class StepConcatEnvManager(StepEnvManager):
    """{history} holds the observations of the turns before, unchanged and without the answers. {observation} ends with the
    suffix."""

    def fields(self, record: Record, observation: str, info: dict[str, Any]) -> dict[str, Any]:
        fields = super().fields(record, observation, info)
        return {**fields, "observation": f"{observation}\n{fields['suffix']}"}

    def remembered(self, number: int, observation: str, action: str) -> str:
        return observation


class AgentNativeStepEnvManager(TurnManager):
    """The observation is the whole conversation: the environment's messages, with the tools that its `reset` names. The chat
    template renders it again for each turn, so the environment may leave out or rewrite messages; neither `agent_template` nor
    `agent_system_template` is used. The environment gets the text of the answer. Turns with equal messages are equal."""

    reads: ClassVar[frozenset[type]] = frozenset({list})
    by_template = False

    def context_of(self, record: Record, observation: Any, info: Info) -> tuple[list[int], str, str]:
        messages: list[Message] = observation
        tools = info.get("tools") or ()
        answered = max((i for i, message in enumerate(messages) if message["role"] == "assistant"), default=-1)
        return self.dialogue.whole(messages, tools).ids, shown(messages), shown(messages[answered + 1 :])

    def state_key(self, observation: Any, info: Info) -> str:
        return super().state_key(observation, info) or digests(info.get("tools") or (), observation)[-1].hex()
