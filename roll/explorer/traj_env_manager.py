"""One sample an episode: the context grows from turn to turn, and everything after the first message is the response."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from roll.data.kept_tokens import KeptTokens
from roll.data.sample import Sample, VersionSpan
from roll.errors import EpisodeFailed
from roll.explorer.env_manager import AskPolicy, Environment, EnvManager, EpisodeTask, PolicyAnswer, Record


@dataclass
class Response:
    """What follows an episode's first message: answers of the policy, and between them messages, which are not trained."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    versions: list[VersionSpan] = field(default_factory=list)
    kept: KeptTokens | None = None

    def answered(self, answer: PolicyAnswer) -> None:
        offset = len(self.ids)
        self.versions += [span._replace(start=span.start + offset, stop=span.stop + offset) for span in answer.versions]
        if answer.kept is not None:
            self.kept = (self.kept or KeptTokens.whole(offset)) + answer.kept
        self.ids += answer.token_ids
        self.logprobs += answer.logprobs
        self.mask += [True] * len(answer.token_ids)

    def told(self, tokens: Sequence[int]) -> None:
        self.ids += tokens
        self.logprobs += [0.0] * len(tokens)
        self.mask += [False] * len(tokens)
        if self.kept is not None:
            self.kept += KeptTokens.whole(len(tokens))


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
                kept=response.kept,
                versions=response.versions,
                finish_reason="length" if record.end == "context" or not answer.stopped else "stop",
                response_text="\n".join(turn.action for turn in record.turns),
                reward=record.score,
                loss_mask=response.mask,
                trajectory=record.trajectory(record.turns, 0, env),
            )
        ]
