"""One sample a turn: every turn begins with a fresh context, in which `{history}` describes the turns before."""

from __future__ import annotations

from typing import Any

from roll.data.sample import Prompt, Sample
from roll.errors import EpisodeFailed
from roll.explorer.env_manager import AskPolicy, Environment, EnvManager, EpisodeTask, PolicyAnswer, Record


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
                kept=answer.kept,
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
