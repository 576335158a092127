"""One sample an episode: the context grows from turn to turn, and everything after the first message is the response."""

from __future__ import annotations

from roll.data.sample import Sample, VersionSpan
from roll.pipeline.agentic.env_manager.base import AskPolicy, Environment, EnvManager, EpisodeTask, PromptTooLong, Record


class TrajEnvManager(EnvManager):
    """An episode that fills the context ends there, as a truncated one. Environment tokens are not trained."""

    async def play(self, env: Environment, task: EpisodeTask, ask: AskPolicy) -> list[Sample]:
        observation, info = await env.reset(task.env_seed)
        record = Record()
        text = self.message(record, observation, info)
        system = self.system()
        prompt_ids = self.dialogue.first(system, text)
        if len(prompt_ids) >= self.context:
            raise PromptTooLong(f"{len(prompt_ids)} tokens, sequence_length is {self.context}")
        response_ids: list[int] = []
        logprobs: list[float] = []
        mask: list[bool] = []
        versions: list[VersionSpan] = []
        stopped = True
        while True:
            answer = await self.act([*prompt_ids, *response_ids], record, ask)
            offset = len(response_ids)
            versions += [span._replace(start=span.start + offset, stop=span.stop + offset) for span in answer.versions]
            response_ids += answer.token_ids
            logprobs += answer.logprobs
            mask += [True] * len(answer.token_ids)
            stopped = answer.stopped
            observation, info = await self.react(env, record, observation, info, answer)
            if record.end is not None:
                break
            more = self.dialogue.following(self.message(record, observation, info), response_ids[-1])
            if len(prompt_ids) + len(response_ids) + len(more) >= self.context:
                record.end = "context"
                break
            response_ids += more
            logprobs += [0.0] * len(more)
            mask += [False] * len(more)
        return [
            Sample(
                prompt=self.prompt(task, prompt_ids, system + text),
                index=task.index,
                response_ids=response_ids,
                behaviour_logprobs=logprobs,
                versions=versions,
                finish_reason="length" if record.end == "context" or not stopped else "stop",
                response_text="\n".join(turn.action for turn in record.turns),
                reward=record.score,
                loss_mask=mask,
                trajectory=record.trajectory(record.turns, 0, env),
            )
        ]
