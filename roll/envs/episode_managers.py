"""The env manager that makes one sample of an episode: the context grows from turn to turn, and everything after the first
message is the response."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from roll.chat.conversation import ChatRequest, Message, shown
from roll.chat.conversation_tree import ConversationTree, replied
from roll.chat.samples import Outcome, episode_samples
from roll.core.data.episode import AskPolicy, EpisodeTask, Response
from roll.core.data.sample import Sample
from roll.envs.env_manager import Environment, EnvManager, Record
from roll.envs.environment import Info, Observation, Results


class TrajEnvManager(EnvManager):
    """An episode that fills the context ends there, as a truncated one. Environment tokens are not trained.

    Where the environment keeps the conversation itself, or tools answer, the messages are bridged onto the sampled tokens: an
    answer that the conversation repeats unchanged keeps its sampled tokens. A rewritten conversation begins another sample; the
    common part of both is trained once."""

    reads: ClassVar[frozenset[type]] = frozenset({str, list})

    @property
    def answers_to_tools(self) -> bool:
        return self.dialogue.native

    async def play(self, env: Environment, task: EpisodeTask, ask: AskPolicy) -> list[Sample]:
        observation, info = await env.reset(task.env_seed)
        if isinstance(observation, list) or (self.config.tool_wrapper is not None and self.answers_to_tools):
            return await self._converse(env, task, ask, observation, info)
        return await self._exchange(env, task, ask, observation, info)

    async def _exchange(self, env: Environment, task: EpisodeTask, ask: AskPolicy, observation: Any, info: Info) -> list[Sample]:
        """Texts alone, with any template or none."""
        record = Record()
        text = self.message(record, observation, info)
        system = self.system()
        prompt_ids = self.dialogue.first(system, text)
        if len(prompt_ids) >= self.context:
            raise self.no_room(len(prompt_ids))
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

    async def _converse(
        self, env: Environment, task: EpisodeTask, ask: AskPolicy, observation: Observation | Results, info: Info
    ) -> list[Sample]:
        """Messages, with a chat template."""
        forest, record, messages, cut = ConversationTree(self.dialogue), Record(), list[Message](), 0.0
        while True:
            messages = self._told(messages, record, observation, info)
            tools = info.get("tools") or []
            asked = ChatRequest(messages=messages, tools=tools, reads_calls=bool(tools))
            context = forest.context(asked)
            if len(context.ids) >= self.context:
                if not forest.answers:
                    raise self.no_room(len(context.ids))
                cut = await self.cut(env, record)
                break
            sampled = await self.act(context.ids, record, ask)
            reply = replied(asked, context, sampled)
            answer = forest.record(context, asked, sampled, reply)
            observation, info = await self.react(env, record, shown(answer.news), info, sampled, reply)
            answer.reward = record.turns[-1].reward
            if record.end is not None:
                break
            messages = [*messages, answer.message]
        assert record.end is not None
        outcome = Outcome(
            reward=cut,
            success=record.success,
            end=record.end,
            generation_s=record.generation_s,
            environment_s=env.running_s,
            waiting_s=env.waiting_s,
            metrics=record.metrics,
        )
        return episode_samples(forest, task, outcome, record.turns)

    def _told(self, messages: Sequence[Message], record: Record, observation: Observation | Results, info: Info) -> list[Message]:
        """Returns the conversation after an observation."""
        if isinstance(observation, list):
            return observation
        if isinstance(observation, Results):
            return [*messages, *observation.messages]
        system = [] if messages or not (text := self.system()) else [{"role": "system", "content": text}]
        return [*messages, *system, {"role": "user", "content": self.message(record, observation, info)}]
