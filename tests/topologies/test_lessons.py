"""Who asks a teacher about which samples, and what becomes of the answers."""

import asyncio
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from roll.core.configs.distillation import DistillationConfig
from roll.core.configs.worker import TeacherConfig
from roll.core.data.extras import Extras
from roll.core.data.kept_tokens import KeptTokens
from roll.core.data.sample import Prompt, Sample, SampleGroup, VersionSpan
from roll.core.trainer.batch import shares, token_batch
from roll.topologies.teaching.lessons import Lessons

DIVERGES = DistillationConfig(kd_objective="reverse_kl", logits_topk=3)


def group(number, responses, tag="sums", **prompt):
    asked = Prompt(f"p{number}", [5, 6, 7 + number], "", tag, "sums", "", **prompt)
    made = SampleGroup(number, 0, asked)
    for place, ids in enumerate(responses):
        spans = [VersionSpan(0, len(ids), 0)]
        made.samples.append(Sample(asked, place, ids, [-1.0] * len(ids), spans, "stop", reward=0.0))
    return made


def config(distillation=DIVERGES, **teachers):
    teachers = teachers or {"big": TeacherConfig(opd_kl_coef=[1.0, 0.0])}
    owner = {tag: name for name, each in teachers.items() for tag in each.tag_included}
    general = next((name for name, each in teachers.items() if not each.tag_included), None)

    def teacher_of(tag):
        name = owner.get(tag, general)
        return None if name is None else f"teachers.{name}"

    sampling = SimpleNamespace(generating_args=SimpleNamespace(temperature=0.7))
    return SimpleNamespace(distillation=distillation, teachers=teachers, teacher_of=teacher_of, max_steps=3, actor_infer=sampling)


class Asked:
    """Says of each token its own id, as log-prob and as most probable tokens; notes what it was asked."""

    def __init__(self, ranks=2):
        self.batches, self._ranks = [], ranks

    async def __call__(self, method, batch, top):
        assert method == "teach"
        self.batches.append(batch)
        by_rank = shares(batch, self._ranks)
        parts = []
        for indices in by_rank:
            part = batch.select(indices)
            own = part.tokens[part.loss_mask]
            parts.append((-own.float(), own[:, None].repeat(1, top).int(), -own[:, None].float().repeat(1, top)))
        return by_rank, parts


def teach(lessons, groups, ask, role="teachers.big", number=0, trains=lambda group, sample: True):
    batch = token_batch(groups, 1.0)
    step = SimpleNamespace(lease=SimpleNamespace(groups=groups), batch=batch, number=number)
    asyncio.run(lessons(step, role, ask, trains))
    return step.batch


def test_answers_stand_at_the_tokens_of_their_samples_on_two_ranks():
    groups = [group(0, [[9, 10], [11]]), group(1, [[12, 13, 14], [9]])]
    batch = teach(Lessons(config()), groups, Asked(), number=1)
    mask = batch.loss_mask
    assert torch.equal(batch.teacher_logprobs[mask], -batch.tokens[mask].float())
    assert batch.teacher_logprobs[~mask].isnan().all()
    assert torch.equal(batch.teacher_top.known, mask)
    assert torch.equal(batch.teacher_top.ids[:, 2], batch.tokens[mask])
    assert batch.teacher_weights.tolist() == [0.5] * 4
    part = batch.select([3, 0])
    assert part.padded().teacher_top.ids[:, 0].tolist() == [9, 9, 10]


def test_a_sample_is_asked_about_once_also_after_a_checkpoint():
    lessons, ask, groups = Lessons(config()), Asked(), [group(0, [[9, 10], [11]])]
    first = teach(lessons, groups, ask)
    kept = [SampleGroup.from_json(json.loads(json.dumps(each.to_json()))) for each in groups]
    again = teach(lessons, kept, ask, number=2)
    assert len(ask.batches) == 1
    assert torch.equal(first.teacher_top.ids, again.teacher_top.ids)
    assert torch.equal(first.teacher_logprobs[first.loss_mask], again.teacher_logprobs[first.loss_mask])
    assert again.teacher_weights.tolist() == [0.0, 0.0], "the weight is that of the step"


@pytest.mark.parametrize(
    "other",
    [config(replace(DIVERGES, logits_topk=4)), config(DistillationConfig()), config(small=TeacherConfig())],
    ids=["more tokens", "none", "another teacher"],
)
def test_an_answer_to_another_question_is_not_taken(other):
    ask, groups = Asked(), [group(0, [[9, 10]])]
    teach(Lessons(config()), groups, ask)
    teach(Lessons(other), groups, ask, role=other.teacher_of("sums"))
    assert len(ask.batches) == 2


def test_a_tag_whose_teacher_is_gone_has_no_answer():
    groups = [group(0, [[9, 10]], tag="sums"), group(1, [[11]], tag="words")]
    teach(Lessons(config()), groups, Asked())
    later = config(small=TeacherConfig(tag_included=["words"]))
    batch = teach(Lessons(later), groups, Asked(), role="teachers.small")
    assert batch.teacher_top.known.tolist() == [False] * 8 + [True]
    assert batch.teacher_weights.tolist() == [0.0, 1.0]


def test_samples_that_are_not_trained_are_not_asked_about():
    ask, groups = Asked(), [group(0, [[9, 10], [11]])]
    batch = teach(Lessons(config()), groups, ask, trains=lambda group, sample: sample.index == 1)
    assert ask.batches[0].tokens.tolist() == [5, 6, 7, 11]
    assert batch.teacher_top.known.sum() == 1
    assert teach(Lessons(config()), groups, ask, trains=lambda group, sample: False).teacher_top.known.sum() == 1
    assert len(ask.batches) == 1


def test_the_prompt_of_the_teacher_may_be_another_and_kept_sets_go_along():
    ask, made = Asked(), group(0, [[9, 10]], hinted_ids=[5, 6, 7, 20, 21])
    made.samples[0].extras = Extras(KeptTokens.of([np.array([9, 3], np.int32), np.array([10], np.int32)]))
    batch = teach(Lessons(config()), [made], ask)
    (asked,) = ask.batches
    assert asked.tokens.tolist() == [5, 6, 7, 20, 21, 9, 10]
    assert asked.kept.counts.tolist() == [0] * 5 + [2, 1]
    assert asked.temperatures.tolist() == pytest.approx([0.7])
    assert batch.teacher_logprobs[batch.loss_mask].tolist() == [-9.0, -10.0]
    assert made.samples[0].kept is not None and made.samples[0].taught is not None


def test_without_a_divergence_there_are_no_tables():
    batch = teach(Lessons(config(DistillationConfig())), [group(0, [[9, 10]])], Asked())
    assert batch.teacher_top is None and batch.teacher_logprobs[batch.loss_mask].tolist() == [-9.0, -10.0]
