"""What a loss leaves of the gradient, by length and sign: against the definition, and what is expected against samples."""

import math
from pathlib import Path
from statistics import NormalDist

import pytest
import torch

from roll.core.algorithms.correction import Correction, Filter, ImportanceWeight
from roll.core.algorithms.loss import LossSpec, compute_loss
from roll.core.algorithms.loss_metrics import LEFT, gradient_left, reduce_metrics
from roll.core.configs.losses import CorrectionFilterConfig, ISWeightConfig, PolicyLossArgs, TrainInferCorrectionConfig
from roll.core.data.token_batch import Padded
from roll.plan.expected_left import expected, fix_of, weight_of
from roll.reports.table import Table
from roll.reports.warnings import vanishing_gradient

PLAIN = TrainInferCorrectionConfig()
OF_SEQUENCE = TrainInferCorrectionConfig(
    is_weight=ISWeightConfig(enabled=True, weight_type="sequence", mode="mask", lower_bound=0.5, upper_bound=2.0)
)
KEPT = TrainInferCorrectionConfig(
    filters=[CorrectionFilterConfig(enabled=True, agg_type="sequence", ratio_low=0.5, ratio_high=2.0)]
)
MASK = Correction(weight=ImportanceWeight(level="sequence", mode="mask", lower_bound=0.5, upper_bound=2.0))
SEQUENCES = Correction(filters=(Filter(level="sequence", ratio=(0.5, 2.0)),))


def noisy(lengths, advantage, noise, seed=0):
    """Responses whose log-probs differ from the sampler's by noise that averages to ratios of 1."""
    generator = torch.Generator().manual_seed(seed)
    longest, rows = max(lengths), len(lengths)
    logprobs = torch.full((rows, longest), -1.0, dtype=torch.float64, requires_grad=True)
    delta = torch.randn(rows, longest, generator=generator, dtype=torch.float64) * noise - noise**2 / 2
    mask = torch.arange(longest)[None] < torch.tensor(lengths)[:, None]
    batch = Padded(
        attention_mask=mask,
        lengths=torch.tensor(lengths),
        scores=torch.full((rows,), float(advantage > 0)),
        temperatures=torch.ones(rows),
        tokens=torch.zeros(rows, longest, dtype=torch.long),
        loss_mask=mask,
        behaviour_logprobs=logprobs.detach() - delta,
        advantages=torch.full((rows, longest), float(advantage), dtype=torch.float64),
    )
    return logprobs, batch


def left_by(spec, logprobs, batch):
    mask = batch.loss_mask
    _, metrics = compute_loss(logprobs, None, batch, spec, int(mask.sum()), len(mask))
    found = reduce_metrics([metrics])
    return {name.removeprefix(f"{LEFT}/"): value for name, value in found.items() if name.startswith(LEFT)}


@pytest.mark.parametrize("variant", ["ppo", "gspo", "topr", "vespo", "vanilla", "tis", "cispo", "sapo", "gmpo"])
@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_all_is_left_on_fresh_samples(variant, advantage):
    left = left_by(LossSpec(pg_variant=variant), *noisy([5, 2000], advantage, 0.0))
    sign = "good" if advantage > 0 else "bad"
    assert left == pytest.approx({f"{sign}_1k": 1.0, f"{sign}_8k": 1.0})


def test_it_is_the_gradient_over_the_advantage():
    """By hand: PPO leaves a token that is clipped nothing, one that is not its ratio; a masked one is not counted."""
    logprobs = torch.tensor([[-1.0, -1.0, -1.0, -1.0]], dtype=torch.float64, requires_grad=True)
    ratios = torch.tensor([[2.0, 0.5, 1.1, 9.0]], dtype=torch.float64)
    per_token = torch.minimum(ratios * (logprobs + 1).exp(), (ratios * (logprobs + 1).exp()).clamp(0.8, 1.2)) * -3.0
    advantages = torch.full((1, 4), 3.0, dtype=torch.float64)
    mask = torch.tensor([[True, True, True, False]])
    metrics = gradient_left(torch.where(mask, per_token, 0.0), logprobs, advantages, mask)
    assert reduce_metrics([metrics]) == pytest.approx({f"{LEFT}/good_1k": (0 + 0.5 + 1.1) / 3})
    assert gradient_left(per_token.detach(), logprobs, advantages, mask) == {}


def test_the_loss_and_its_gradient_are_what_they_were():
    """The metric asks the same graph once more."""
    logprobs, batch = noisy([5, 7], -1.0, 0.3)
    loss, _ = compute_loss(logprobs, None, batch, LossSpec(), 12, 2)
    first = torch.autograd.grad(loss, logprobs, retain_graph=True)[0]
    assert torch.equal(first, torch.autograd.grad(loss, logprobs)[0]) and first.abs().sum() > 0


@pytest.mark.parametrize(
    ("variant", "configured", "correction", "advantage", "lengths"),
    [
        ("topr", PLAIN, Correction(), -1.0, (1000, 4000)),
        ("topr", PLAIN, Correction(), 1.0, (1000,)),
        ("vespo", PLAIN, Correction(), -1.0, (1000, 4000)),
        ("vespo", PLAIN, Correction(), 1.0, (1000,)),
        ("gspo", PLAIN, Correction(), -1.0, (1000, 4000)),
        ("gspo", PLAIN, Correction(), 1.0, (4000,)),
        ("vanilla", OF_SEQUENCE, MASK, -1.0, (1000, 4000)),
        ("vanilla", KEPT, SEQUENCES, -1.0, (1000,)),
    ],
)
def test_what_is_expected_is_what_samples_have(variant, configured, correction, advantage, lengths):
    args = PolicyLossArgs()
    spec = LossSpec(pg_variant=variant, args=args, correction=correction)
    sign = "good" if advantage > 0 else "bad"
    for tokens in lengths:
        weight = weight_of(variant, args, configured, tokens, good=advantage > 0, own_ratio=True)
        found = list(left_by(spec, *noisy([tokens] * 300, advantage, 0.02)).items())
        assert [name[: len(sign)] for name, _ in found] == [sign]
        assert found[0][1] == pytest.approx(expected(weight, tokens, 0.02), abs=0.08), (tokens, found)


@pytest.mark.parametrize("tokens", [1000, 8000, 32000])
def test_the_closed_form_of_topr(tokens):
    """2·Φ(−√v/2), v = n·σ²."""
    weight = weight_of("topr", PolicyLossArgs(), PLAIN, tokens, good=False, own_ratio=True)
    closed = 2 * NormalDist().cdf(-math.sqrt(tokens) * 0.02 / 2)
    assert expected(weight, tokens, 0.02) == pytest.approx(closed, abs=2e-3)


def test_ratios_of_tokens_and_recomputed_ones_do_not_fade():
    args = PolicyLossArgs(topr_ratio_level="token")
    for variant, given, own in (("topr", args, True), ("ppo", args, True), ("gspo", PolicyLossArgs(), False)):
        weight = weight_of(variant, given, PLAIN, 32000, good=False, own_ratio=own)
        assert expected(weight, 32000, 0.05) == 1.0


def test_engine_noise_on_long_responses_is_warned_of_with_the_variant_and_its_fix():
    """Short and long wrong responses of one batch under `topr`, whose engine differs from the trainer by 0.03 a token."""
    spec = LossSpec(pg_variant="topr")
    left = left_by(spec, *noisy([200] * 60 + [6000] * 60, -1.0, 0.03))
    metrics = {f"{LEFT}/{name}": value for name, value in left.items()}
    ((_, _, said),) = Table([vanishing_gradient("topr", "bad", fix_of("topr", spec.args, PLAIN))]).judge(metrics)
    assert said.startswith("pg_variant topr leaves responses with A < 0 of more than 1,024 tokens ")
    assert said.endswith("fix: actor_train.topr_ratio_level: token")
    by_token = LossSpec(pg_variant="topr", args=PolicyLossArgs(topr_ratio_level="token"))
    assert min(left_by(by_token, *noisy([200] * 60 + [6000] * 60, -1.0, 0.03)).values()) > 0.95


@pytest.mark.parametrize(
    ("variant", "correction", "fix"),
    [
        ("vespo", PLAIN, "a pg_variant that weighs tokens, such as ppo"),
        ("gspo", PLAIN, "old_logprobs: recompute, or a wider actor_train.gspo_clip_low and gspo_clip_high"),
        ("topr", OF_SEQUENCE, "train_infer_correction.is_weight.weight_type: geometric or token"),
        ("ppo", KEPT, "train_infer_correction.filters with agg_type: geometric or token"),
        ("ppo", PLAIN, "fresher samples, or wider clips"),
    ],
)
def test_the_fix_is_that_of_what_fades(variant, correction, fix):
    assert fix_of(variant, PolicyLossArgs(), correction) == fix


def test_the_table_of_the_page_is_what_is_expected():
    page = (Path(__file__).parents[2] / "docs_roll" / "pg_variants" / "index.md").read_text()
    settings = {
        ("`ppo` and other ratios of tokens", ""): ("ppo", PLAIN, False),
        ("`topr`", "A < 0"): ("topr", PLAIN, False),
        ("`vespo`", "A < 0"): ("vespo", PLAIN, False),
        ("`vespo`", "A > 0"): ("vespo", PLAIN, True),
        ("`is_weight` by sequence, mask 0.5 to 2", ""): ("ppo", OF_SEQUENCE, False),
        ("`gspo`", "A < 0"): ("gspo", PLAIN, False),
        ("`gspo`", "A > 0"): ("gspo", PLAIN, True),
    }
    for (name, sign), (variant, correction, good) in settings.items():
        shares = [
            expected(weight_of(variant, PolicyLossArgs(), correction, tokens, good=good, own_ratio=True), tokens, noise)
            for noise in (0.02, 0.05)
            for tokens in (1000, 8000, 32000)
        ]
        row = " | ".join([name, sign, *(f"{share:.2f}" for share in shares)]).replace("|  |", "| |")
        assert f"| {row} |" in page
