"""The teachers' part of advantages, against numbers by hand and against the divergence whose gradient it estimates."""

import pytest
import torch

from roll.core.algorithms.distillation import with_teachers
from roll.core.algorithms.loss import LossSpec, compute_loss
from roll.core.configs.losses import POLICY_LOSSES
from roll.core.configs.worker import TeacherConfig
from roll.core.data.token_batch import TokenBatch

NONE = float("nan")


def batch_of(behaviour, teacher, weights, lengths, **more):
    mask = torch.tensor([value is not None for value in behaviour])
    return TokenBatch(
        lengths=torch.tensor(lengths),
        scores=torch.zeros(len(lengths)),
        temperatures=torch.ones(len(lengths)),
        tokens=torch.zeros(len(behaviour), dtype=torch.int64),
        loss_mask=mask,
        behaviour_logprobs=torch.tensor([value or 0.0 for value in behaviour]),
        advantages=torch.zeros(len(behaviour)),
        teacher_logprobs=torch.tensor(teacher),
        teacher_weights=torch.tensor(weights),
        **more,
    )


def test_each_token_has_its_own_advantage_and_the_prompt_has_none():
    batch = batch_of([None, -1.0, -2.0, None, -3.0], [-9.0, -1.5, -0.5, NONE, NONE], [0.5, 0.0], [3, 2])
    advantages, metrics = with_teachers(batch, torch.tensor([0.0, 1.0, 1.0, 0.0, -1.0]))
    assert advantages.tolist() == pytest.approx([0.0, 1 - 0.25, 1 + 0.75, 0.0, -1.0])
    assert metrics == pytest.approx({"teacher/token_share": 2 / 3, "teacher/kl": -(-0.5 + 1.5) / 2, "teacher/weight": 0.5})


def test_recomputed_log_probs_are_those_of_the_policy():
    batch = batch_of([None, -1.0], [0.0, -2.0], [1.0], [2], proximal_logprobs=torch.tensor([0.0, -1.25]))
    assert with_teachers(batch, torch.zeros(2))[0].tolist() == [0.0, -0.75]


@pytest.mark.parametrize("junk", [NONE, -float("inf")])
def test_what_is_no_number_teaches_nothing(junk):
    advantages, metrics = with_teachers(batch_of([None, -1.0, -1.0], [junk, junk, -2.0], [1.0], [3]), torch.zeros(3))
    assert advantages.tolist() == [0.0, 0.0, -1.0]
    assert metrics["teacher/token_share"] == 0.5


def test_without_trained_tokens_there_is_nothing_to_say():
    advantages, metrics = with_teachers(batch_of([None, None], [0.0, 0.0], [1.0], [2]), torch.zeros(2))
    assert (advantages.tolist(), metrics) == ([0.0, 0.0], {})


@pytest.mark.parametrize("variant", [name for name, each in POLICY_LOSSES.items() if each.by_token and name != "asymre"])
def test_in_expectation_the_gradient_is_that_of_the_reverse_divergence(variant):
    """Over all 11 tokens, each weighed by its probability: Σ p·∇L = ∇KL(p ‖ teacher), to rounding (float64). asymre shifts its
    baseline, m2po leaves out nothing here, opmd divides by 2."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(11, generator=generator, dtype=torch.float64).requires_grad_()
    teacher = torch.randn(11, generator=generator, dtype=torch.float64).log_softmax(0)
    log_p = logits.log_softmax(0)
    (wanted,) = torch.autograd.grad((log_p.exp() * (log_p - teacher)).sum(), logits)
    found = torch.zeros_like(logits)
    for token in range(11):
        sampled = log_p.detach()[token].reshape(1)
        batch = batch_of([None, 0.0], [0.0, 0.0], [1.0], [2]).with_(
            loss_mask=torch.tensor([False, True]),
            behaviour_logprobs=torch.cat([sampled.new_zeros(1), sampled]),
            teacher_logprobs=torch.cat([sampled.new_zeros(1), teacher[token].reshape(1)]),
        )
        advantages, _ = with_teachers(batch, torch.zeros(2))
        padded = batch.with_(advantages=advantages, proximal_logprobs=batch.behaviour_logprobs).padded()
        log_probs = torch.stack([torch.zeros((), dtype=torch.float64), logits.log_softmax(0)[token]])[None]
        loss, _ = compute_loss(log_probs, None, padded, LossSpec(pg_variant=variant), 1, 1)
        (gradient,) = torch.autograd.grad(loss, logits)
        found += sampled.exp() * gradient
    factor = 0.5 if variant == "opmd" else 4 * 0.25 if variant == "sapo" else 1.0
    torch.testing.assert_close(found, factor * wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("weight", "expected"), [(0.5, [0.5] * 3), ([1.0, 0.0], [1.0, 0.5, 0.0]), ([0.0, 2.0], [0.0, 1.0, 2.0])])
def test_the_weight_goes_in_a_line_from_the_first_to_the_last_step(weight, expected):
    assert [TeacherConfig(opd_kl_coef=weight).weight(step, 3) for step in range(3)] == expected
    assert TeacherConfig(opd_kl_coef=[1.0, 0.0]).weight(0, 1) == 1.0
