"""Train/infer correction: weights, filters and veto by hand at each level, and the metrics of the mismatch."""

import math
from math import exp, log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from roll.core.algorithms.correction import Correction, Filter, ImportanceWeight, correct, mismatch_metrics
from roll.core.algorithms.loss_metrics import reduce_metrics

DOUBLE = torch.float64
LEVELS = ["token", "segment", "geometric", "sequence"]

# Two turns of trained tokens with ratios 2, 1/4 and 3, between them a masked token.
RHO = torch.tensor([[2.0, 0.25, 99.0, 3.0]], dtype=DOUBLE)
MASK = torch.tensor([[True, True, False, True]])
BEHAVIOUR = torch.tensor([[-3.0, -0.5, -1.0, -2.0]], dtype=DOUBLE)
TRAINED = BEHAVIOUR + RHO.log()
BY_LEVEL = {
    "token": [2, 0.25, 3],
    "segment": [0.5**0.5, 0.5**0.5, 3],
    "geometric": [1.5 ** (1 / 3)] * 3,
    "sequence": [1.5] * 3,
}


def trained_values(values):
    return values[MASK].tolist()


@pytest.mark.parametrize("level", LEVELS)
def test_weight_of_each_level(level):
    corrected = correct(TRAINED, BEHAVIOUR, MASK, Correction(weight=ImportanceWeight(level=level, upper_bound=math.inf)))
    assert trained_values(corrected.weight) == pytest.approx(BY_LEVEL[level], rel=1e-12)
    assert corrected.weight[0, 2] == 0
    assert trained_values(corrected.kept) == [True] * 3


def test_truncation_keeps_what_masking_drops():
    """Upper bound 2.5 against ratios 2, 1/4, 3: truncated to 2, 1/4, 2.5; masked (lower bound 1/2) to 2, 0, 0."""
    truncated = correct(TRAINED, BEHAVIOUR, MASK, Correction(weight=ImportanceWeight(upper_bound=2.5)))
    assert trained_values(truncated.weight) == pytest.approx([2, 0.25, 2.5])
    assert trained_values(truncated.kept) == [True] * 3
    masked = correct(TRAINED, BEHAVIOUR, MASK, Correction(weight=ImportanceWeight(upper_bound=2.5, mode="mask")))
    assert trained_values(masked.weight) == pytest.approx([2, 0, 0])
    assert trained_values(masked.kept) == [True, False, False]


@pytest.mark.parametrize(
    ("bounds", "kept"),
    [((0.2, 2.5), [True, True, False]), ((0.5, 5.0), [True, False, True]), ((0.25, 2.0), [True, True, False])],
)
def test_filter_bounds_are_of_the_ratio_as_written_and_inclusive(bounds, kept):
    """Asymmetric bounds show whether trained/sampling or its inverse is tested: [0.5, 5] keeps 3 and drops 1/4."""
    rule = Filter(ratio=tuple(log_exp(bound) for bound in bounds))
    corrected = correct(TRAINED, BEHAVIOUR, MASK, Correction(filters=(rule,)))
    assert trained_values(corrected.kept) == kept
    assert trained_values(corrected.weight) == [float(keep) for keep in kept]


def log_exp(bound):
    """The bound rounded as the ratios are: through a log and an exponential."""
    return float(torch.tensor([bound], dtype=DOUBLE).log().exp()) * (1 + 1e-12 * (1 if bound >= 1 else -1))


@pytest.mark.parametrize(
    ("level", "bounds", "kept"),
    [
        ("segment", (0.8, 4.0), [False, False, True]),
        ("geometric", (1.0, 1.2), [True] * 3),
        ("geometric", (0.9, 1.1), [False] * 3),
        ("sequence", (1.4, 1.6), [True] * 3),
        ("sequence", (0.5, 1.2), [False] * 3),
    ],
)
def test_filters_of_other_levels_drop_whole_segments_and_sequences(level, bounds, kept):
    corrected = correct(TRAINED, BEHAVIOUR, MASK, Correction(filters=(Filter(level=level, ratio=bounds),)))
    assert trained_values(corrected.kept) == kept


def test_filter_by_difference_of_probabilities():
    """p − p_b: (2 − 1)e^-3 = 0.05, (1/4 − 1)e^-0.5 = −0.45, (3 − 1)e^-2 = 0.27: −0.13 in sum, −0.04 in the mean."""

    def kept(level, low, high):
        rule = Filter(level=level, ratio=None, difference=(low, high))
        return trained_values(correct(TRAINED, BEHAVIOUR, MASK, Correction(filters=(rule,))).kept)

    total = exp(-3) - 0.75 * exp(-0.5) + 2 * exp(-2)
    assert kept("token", -0.2, 0.3) == [True, False, True]
    assert kept("token", -0.5, 0.2) == [True, True, False]
    for level, value in (("geometric", total / 3), ("sequence", total)):
        assert kept(level, value - 0.01, value + 0.01) == [True] * 3
        assert kept(level, value + 0.01, 1.0) == [False] * 3


def test_every_filter_must_be_passed():
    filters = (Filter(ratio=(0.2, 2.5)), Filter(ratio=(0.5, 5.0)))
    assert trained_values(correct(TRAINED, BEHAVIOUR, MASK, Correction(filters=filters)).kept) == [True, False, False]


def test_veto_drops_the_sequence_of_a_token_that_the_policy_would_not_have_sampled():
    rows = TRAINED.repeat(2, 1)
    rows[1, 1] = BEHAVIOUR[0, 1]
    corrected = correct(rows, BEHAVIOUR.repeat(2, 1), MASK.repeat(2, 1), Correction(veto_threshold=0.3))
    assert corrected.kept[0].tolist() == [False] * 4
    assert corrected.kept[1].tolist() == MASK[0].tolist()


def test_without_any_correction_nothing_changes():
    corrected = correct(TRAINED, BEHAVIOUR, MASK, Correction())
    assert corrected.weight.tolist() == MASK.double().tolist()


def test_weights_carry_no_gradient():
    trained = TRAINED.clone().requires_grad_()
    assert not correct(trained, BEHAVIOUR, MASK, Correction(weight=ImportanceWeight())).weight.requires_grad


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("gap", [1e4, -1e4])
def test_extreme_ratios_stay_finite(level, gap):
    correction = Correction(weight=ImportanceWeight(level=level, upper_bound=math.inf))
    trained = BEHAVIOUR.float() + gap
    assert torch.isfinite(correct(trained, BEHAVIOUR.float(), MASK, correction).weight).all()
    assert all(math.isfinite(v) for v in reduce_metrics([mismatch_metrics(trained, BEHAVIOUR.float(), MASK)]).values())


@given(
    values=st.lists(st.lists(st.floats(-3, 0), min_size=6, max_size=6), min_size=2, max_size=2),
    mask=st.lists(st.booleans(), min_size=6, max_size=6),
)
def test_segments_are_the_runs_of_trained_tokens(values, mask):
    """Against a plain loop over the tokens."""
    trained, behaviour = (torch.tensor([row], dtype=DOUBLE) for row in values)
    correction = Correction(weight=ImportanceWeight(level="segment", upper_bound=math.inf))
    weight = correct(trained, behaviour, torch.tensor([mask]), correction).weight[0].tolist()
    right, start = [0.0] * 6, 0
    while start < 6:
        stop = start
        while stop < 6 and mask[stop]:
            stop += 1
        mean = sum(values[0][i] - values[1][i] for i in range(start, stop)) / max(stop - start, 1)
        right[start:stop] = [exp(mean)] * (stop - start)
        start = stop + 1
    assert weight == pytest.approx(right, rel=1e-9)


def test_mismatch_metrics_by_hand():
    metrics = reduce_metrics([mismatch_metrics(TRAINED, BEHAVIOUR, MASK)])
    p_b, rho = [exp(-3), exp(-0.5), exp(-2)], [2, 0.25, 3]
    p = [x * r for x, r in zip(p_b, rho, strict=True)]
    mean_p, mean_b = sum(p) / 3, sum(p_b) / 3
    covariance = sum((x - mean_p) * (y - mean_b) for x, y in zip(p, p_b, strict=True))
    spread = math.sqrt(sum((x - mean_p) ** 2 for x in p) * sum((y - mean_b) ** 2 for y in p_b))
    right = {
        "kl": -log(1.5) / 3,
        "k3": sum(r - 1 - log(r) for r in rho) / 3,
        "chi2_token": (4 + 0.0625 + 9) / 3 - 1,
        "chi2_sequence": 1.5**2 - 1,
        "ppl_ratio": 1.5 ** (-1 / 3),
        "prob_diff_mean": sum(abs(x - y) for x, y in zip(p, p_b, strict=True)) / 3,
        "prob_diff_max": 0.75 * exp(-0.5),
        "pearson": covariance / spread,
        "ratio_token_mean": 5.25 / 3,
        "ess_token": 5.25**2 / (3 * (4 + 0.0625 + 9)),
        "ess_sequence": 1,
    }
    assert metrics == pytest.approx({f"actor/train_infer_{name}": value for name, value in right.items()}, rel=1e-9)


def test_effective_sample_size_of_sequences():
    """Weights 1.5 and 1 of two sequences: 2.5² / (2 · 3.25)."""
    both = mismatch_metrics(torch.cat([TRAINED, BEHAVIOUR]), BEHAVIOUR.repeat(2, 1), MASK.repeat(2, 1))
    assert reduce_metrics([both])["actor/train_infer_ess_sequence"] == pytest.approx(6.25 / 6.5)


def test_equal_policies_have_no_mismatch_and_constant_probabilities_no_correlation():
    metrics = reduce_metrics([mismatch_metrics(BEHAVIOUR, BEHAVIOUR, MASK)])
    assert metrics["actor/train_infer_pearson"] == pytest.approx(1, rel=1e-9)
    for name in ("kl", "k3", "chi2_token", "chi2_sequence", "prob_diff_max"):
        assert metrics[f"actor/train_infer_{name}"] == 0
    flat = torch.full((1, 4), -1.0)
    assert "actor/train_infer_pearson" not in reduce_metrics([mismatch_metrics(flat, flat, MASK)])


@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf, 1e38])
def test_masked_entries_change_nothing(junk):
    correction = Correction(
        weight=ImportanceWeight(level="segment"), filters=(Filter(ratio=(0.1, 9), difference=(-0.9, 0.9)),), veto_threshold=1e-3
    )
    soiled = [tensor.masked_fill(~MASK, junk) for tensor in (TRAINED, BEHAVIOUR)]
    for one, other in zip(correct(*soiled, MASK, correction), correct(TRAINED, BEHAVIOUR, MASK, correction), strict=True):
        assert torch.equal(one, other)
    assert reduce_metrics([mismatch_metrics(*soiled, MASK)]) == reduce_metrics([mismatch_metrics(TRAINED, BEHAVIOUR, MASK)])


@pytest.mark.parametrize(
    "wish",
    [
        lambda: ImportanceWeight(level="tokens"),
        lambda: ImportanceWeight(mode="clip"),
        lambda: ImportanceWeight(mode="mask", lower_bound=2.0, upper_bound=1.0),
        lambda: ImportanceWeight(upper_bound=0.0),
        lambda: Filter(level="sentence"),
    ],
)
def test_senseless_wishes_are_refused(wish):
    with pytest.raises(ValueError, match=r"unknown|need"):
        wish()
