"""The teachers of a run: which samples each is asked about, and where its answers go.

A teacher is asked once about a sample. The answer stays with the sample, in memory and in checkpoints: a group that is trained
again is not asked about again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from roll.core.configs.ppo import PPOConfig
from roll.core.configs.worker import TEACHERS
from roll.core.data.extras import NOTHING, Extras
from roll.core.data.sample import Sample, SampleGroup
from roll.core.data.taught import TeacherAnswer, TopTokens
from roll.core.data.token_batch import TokenBatch
from roll.core.trainer.batch import Keep, token_batch
from roll.core.trainer.trainer import Asks, Step, Teaching


def teaching(config: PPOConfig) -> Teaching | None:
    return Lessons(config) if config.teachers else None


class Lessons:
    def __init__(self, config: PPOConfig) -> None:
        self._config, self._top = config, config.distillation.top
        self._temperature = config.actor_infer.generating_args.temperature

    async def __call__(self, step: Step, role: str, ask: Asks, trains: Keep) -> None:
        """Asks a teacher about the samples that it teaches and that are trained, and gives the batch all answers so far."""
        config, groups = self._config, step.lease.groups
        of_role = [group for group in groups if config.teacher_of(group.prompt.tag) == role]
        trained = [each for group in of_role for each in group.samples if trains(group, each)]
        unknown = {id(each): each for each in trained if self._answer(each, role) is None}
        if unknown:
            batch = await asyncio.to_thread(question, of_role, lambda each: id(each) in unknown, self._temperature)
            for sample, answer in zip(unknown.values(), await self._ask(role, ask, batch), strict=True):
                sample.extras = replace(sample.extras or NOTHING, taught=answer)
        samples = [(sample, config.teacher_of(group.prompt.tag)) for group in groups for sample in group.samples]
        known = [(sample, self._answer(sample, teacher)) for sample, teacher in samples]
        weights = {f"{TEACHERS}{name}": each.weight(step.number, config.max_steps) for name, each in config.teachers.items()}
        found = await asyncio.to_thread(taught, step.batch, known, weights, self._top)
        step.batch = step.batch.with_(**found)

    def _answer(self, sample: Sample, teacher: str | None) -> TeacherAnswer | None:
        """Returns the answer of the sample's teacher, if it is one to what is asked now."""
        answer = sample.taught
        return answer if answer is not None and answer.teacher == teacher and answer.ids.shape[1] == self._top else None

    async def _ask(self, role: str, ask: Asks, batch: TokenBatch) -> list[TeacherAnswer]:
        """Returns the answer for each sample of the batch."""
        counts = batch.sums_per_sample(batch.loss_mask.long()).tolist()
        answers = dict[int, TeacherAnswer]()
        for indices, part in zip(*await ask("teach", batch, self._top), strict=True):
            of_samples = (each.split([counts[i] for i in indices]) for each in part)
            for i, *answer in zip(indices, *of_samples, strict=True):
                answers[i] = TeacherAnswer(role, *(each.numpy().copy() for each in answer))
        return [answers[i] for i in range(len(batch))]


def question(groups: Sequence[SampleGroup], asked: Callable[[Sample], bool], temperature: float) -> TokenBatch:
    """Returns the samples that a teacher is asked about, after the prompts that it is given. A teacher has experts of its own."""

    def given(sample: Sample) -> Sample:
        hinted, kept = sample.prompt.hinted_ids, sample.kept
        prompt = sample.prompt if hinted is None else replace(sample.prompt, input_ids=hinted)
        return replace(sample, prompt=prompt, extras=None if kept is None else Extras(kept))

    parts = [replace(group, samples=[given(each) for each in group.samples if asked(each)]) for group in groups]
    return token_batch(parts, temperature)


def taught(
    batch: TokenBatch, known: Sequence[tuple[Sample, TeacherAnswer | None]], weights: Mapping[str, float], top: int
) -> dict[str, object]:
    """Returns the fields of the batch that say what is known of its samples. `weights`: of each teacher. `top`: the number of
    most probable tokens."""
    offsets = batch.offsets.tolist()
    logprobs, of_samples = torch.full((batch.num_tokens,), torch.nan), torch.zeros(len(batch))
    told = torch.zeros(batch.num_tokens, dtype=torch.bool)
    ids, most = [np.zeros((0, top), np.int32)], [np.zeros((0, top), np.float32)]
    for place, (sample, answer) in enumerate(known):
        if answer is not None:
            own = torch.tensor(sample.policy_mask).nonzero().squeeze(1) + offsets[place] + len(sample.prompt.input_ids)
            logprobs[own], told[own], of_samples[place] = torch.tensor(answer.logprobs), True, weights[answer.teacher]
            ids.append(answer.ids)
            most.append(answer.top)
    tokens = TopTokens(told, torch.from_numpy(np.concatenate(ids)).long(), torch.from_numpy(np.concatenate(most)))
    return {"teacher_logprobs": logprobs, "teacher_weights": of_samples, "teacher_top": tokens if top else None}
