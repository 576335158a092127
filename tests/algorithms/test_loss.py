"""The whole loss: invariance to masked junk and to the cut into micro-batches, terms, corrections, metrics."""

import math
import pickle
from dataclasses import replace
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.algorithms.aggregation import AggregationMode
from roll.algorithms.loss import LossSpec, compute_loss, reduce_metrics
from roll.algorithms.policy_loss import PolicyLossArgs
from roll.data.token_batch import TokenBatch

VARIANTS = ["vanilla", "ppo", "tis", "topr", "cispo", "kimi15"]
MODES = get_args(AggregationMode)
DOUBLE = torch.float64


def random_batch(seed, samples=5, decoupled=True):
    """Samples of 2 to 7 tokens with random masks; every optional field is there."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, 8, (samples,), generator=generator)
    tokens = int(lengths.sum())
    mask = torch.rand(tokens, generator=generator) < 0.7

    def normal(scale=0.4):
        return torch.randn(tokens, dtype=DOUBLE, generator=generator) * scale

    behaviour = normal() - 2
    return TokenBatch(
        lengths=lengths,
        scores=torch.randint(0, 2, (samples,), generator=generator).double(),
        temperatures=torch.ones(samples),
        tokens=torch.zeros(tokens, dtype=torch.int64),
        loss_mask=mask,
        behaviour_logprobs=behaviour,
        advantages=normal(1.0),
        proximal_logprobs=behaviour + normal(1.0) if decoupled else None,
        reference_logprobs=behaviour + normal(),
    )


def totals(batch):
    per_sample = batch.sums_per_sample(batch.loss_mask.long())
    return int(per_sample.sum()), int((per_sample > 0).sum())


def pad(flat, mask):
    """Right-pads a flat tensor, keeping its gradient."""
    return torch.zeros(mask.shape, dtype=flat.dtype).masked_scatter(mask, flat)


def run(batch, flat_logprobs, flat_entropy, spec, sizes=None):
    padded = batch.padded()
    attention = padded.attention_mask
    return compute_loss(pad(flat_logprobs, attention), pad(flat_entropy, attention), padded, spec, *(sizes or totals(batch)))


def full_spec(variant, mode):
    args = PolicyLossArgs(dual_clip_c=3.0, cispo_use_unified_mask=True)
    return LossSpec(pg_variant=variant, args=args, aggregation=mode, norm_length=9, kl_loss_coef=0.3, entropy_coef=0.2)


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    owner=st.lists(st.integers(0, 2), min_size=5, max_size=5),
    mode=st.sampled_from(MODES),
    decoupled=st.booleans(),
)
def test_any_cut_into_micro_batches_gives_the_loss_gradient_and_metrics_of_one_batch(variant, seed, owner, mode, decoupled):
    batch, spec = random_batch(seed, decoupled=decoupled), full_spec(variant, mode)
    generator = torch.Generator().manual_seed(seed + 1)
    logprobs = (batch.behaviour_logprobs + torch.randn(batch.num_tokens, dtype=DOUBLE, generator=generator)).requires_grad_()
    entropy = torch.rand(batch.num_tokens, dtype=DOUBLE, generator=generator).requires_grad_()

    whole, whole_metrics = run(batch, logprobs, entropy, spec)
    right = torch.autograd.grad(whole, (logprobs, entropy))

    loss, metrics = torch.zeros((), dtype=DOUBLE), []
    sample_ids = batch.sample_ids
    for part in range(3):
        indices = [i for i, who in enumerate(owner) if who == part]
        if indices:
            chosen = torch.isin(sample_ids, torch.tensor(indices))
            share, share_metrics = run(batch.select(indices), logprobs[chosen], entropy[chosen], spec, totals(batch))
            loss = loss + share
            metrics.append(share_metrics)
    gradients = torch.autograd.grad(loss, (logprobs, entropy))

    torch.testing.assert_close(loss, whole, rtol=1e-10, atol=1e-12)
    for got, expected in zip(gradients, right, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)
    assert reduce_metrics(metrics) == pytest.approx(reduce_metrics([whole_metrics]), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    junk=st.lists(st.sampled_from([math.nan, math.inf, -math.inf, 1e38, -1e4, 0.0]), min_size=6, max_size=6),
    mode=st.sampled_from(MODES),
)
def test_masked_entries_of_any_field_change_nothing(variant, seed, junk, mode):
    batch, spec = random_batch(seed), full_spec(variant, mode)
    mask = batch.loss_mask
    logprobs, entropy = batch.behaviour_logprobs + 0.3, torch.ones(batch.num_tokens, dtype=DOUBLE)

    def evaluate(batch, logprobs, entropy):
        logprobs, entropy = logprobs.clone().requires_grad_(), entropy.clone().requires_grad_()
        loss, metrics = run(batch, logprobs, entropy, spec)
        return loss, *torch.autograd.grad(loss, (logprobs, entropy)), reduce_metrics([metrics])

    clean = evaluate(batch, logprobs, entropy)
    names = ("behaviour_logprobs", "advantages", "proximal_logprobs", "reference_logprobs")
    soiled = replace(batch, **{name: getattr(batch, name).masked_fill(~mask, x) for name, x in zip(names, junk, strict=False)})
    dirty = evaluate(soiled, logprobs.masked_fill(~mask, junk[4]), entropy.masked_fill(~mask, junk[5]))

    for got, expected in zip(dirty[:3], clean[:3], strict=True):
        assert torch.equal(got, expected)
    assert (dirty[1][~mask] == 0).all()
    assert dirty[3] == clean[3]


def one_sequence(behaviour, advantages, mask=None, **fields):
    """A batch of one sample; [N] lists."""
    size = len(behaviour)
    return TokenBatch(
        lengths=torch.tensor([size]),
        scores=torch.tensor([1.0]),
        temperatures=torch.ones(1),
        tokens=torch.zeros(size, dtype=torch.int64),
        loss_mask=torch.tensor(mask or [True] * size),
        behaviour_logprobs=torch.tensor(behaviour, dtype=DOUBLE),
        advantages=torch.tensor(advantages, dtype=DOUBLE),
        **{name: torch.tensor(values, dtype=DOUBLE) for name, values in fields.items()},
    )


def evaluate(batch, logprobs, spec, entropy=None):
    flat = torch.tensor([logprobs], dtype=DOUBLE, requires_grad=True)
    entropy = None if entropy is None else torch.tensor([entropy], dtype=DOUBLE)
    loss, metrics = compute_loss(flat, entropy, batch.padded(), spec, *totals(batch))
    return loss.item(), torch.autograd.grad(loss, flat)[0][0].tolist(), reduce_metrics([metrics])


def test_terms_add_up():
    """-A·ℓ = 1 and 3; k3 with d = ln 2 is 1 - ln 2; entropy 0.5 and 1.5: (1 + 3)/2 + 0.1·(1 - ln 2) - 0.2·1."""
    batch = one_sequence([-1, -1], [1, 3], reference_logprobs=[-1 + math.log(2)] * 2)
    spec = LossSpec(pg_variant="vanilla", kl_loss_coef=0.1, entropy_coef=0.2)
    loss, gradient, metrics = evaluate(batch, [-1.0, -1.0], spec, entropy=[0.5, 1.5])
    kl = 1 - math.log(2)
    assert loss == pytest.approx(2 + 0.1 * kl - 0.2, rel=1e-12)
    assert gradient == pytest.approx([(-1 - 0.1) / 2, (-3 - 0.1) / 2], rel=1e-12)  # dk3/dℓ = 1 - e^d = -1
    right = {"actor/pg_loss": 2, "actor/kl_loss": kl, "actor/entropy": 1, "actor/total_loss": loss}
    assert {name: metrics[name] for name in right} == pytest.approx(right, rel=1e-12)


def test_a_reference_without_coefficient_is_measured_but_not_trained_on():
    batch = one_sequence([-1, -1], [1, 3], reference_logprobs=[-2, -2])
    loss, _, metrics = evaluate(batch, [-1.0, -1.0], LossSpec(pg_variant="vanilla"))
    assert loss == 2
    assert metrics["actor/kl_loss"] > 0


def test_bypass_takes_the_ratio_to_the_behaviour_policy():
    """Current over behaviour is 2, clipped by PPO at 1.2."""
    loss, gradient, metrics = evaluate(one_sequence([-1 - math.log(2)], [1]), [-1.0], LossSpec())
    assert loss == pytest.approx(-1.2)
    assert gradient == [0.0]
    assert metrics["actor/clipfrac"] == 1


def test_decoupled_takes_the_ratio_to_the_proximal_policy_and_weights_by_proximal_over_behaviour():
    """Ratio 1 (no clip), weight e^{ln 2} = 2 and, capped, 5. The weight has no gradient of its own."""
    batch = one_sequence([-1 - math.log(2), -1 - math.log(50)], [1, 1], proximal_logprobs=[-1, -1])
    loss, gradient, metrics = evaluate(batch, [-1.0, -1.0], LossSpec())
    assert loss == pytest.approx(-(2 + 5) / 2)
    assert gradient == pytest.approx([-1.0, -2.5])
    assert metrics["actor/behaviour_weight_mean"] == pytest.approx(3.5)
    assert metrics["actor/clipfrac"] == 0


def test_behaviour_weight_cap_is_a_knob():
    batch = one_sequence([-1 - math.log(50)], [1], proximal_logprobs=[-1])
    assert evaluate(batch, [-1.0], LossSpec(behaviour_weight_cap=7.0))[0] == pytest.approx(-7)


def test_off_policy_metrics():
    """Ratios 2 and 4 on trained tokens (a third, masked one has ratio e^9)."""
    ln2 = math.log(2)
    batch = one_sequence([-1 - ln2, -1 - 2 * ln2, -10], [1, 1, 1], mask=[True, True, False])
    _, _, metrics = evaluate(batch, [-1.0, -1.0, -1.0], LossSpec())
    assert metrics["actor/ratio_mean"] == pytest.approx(3)
    assert metrics["actor/ratio_max"] == pytest.approx(4)
    assert metrics["actor/approxkl"] == pytest.approx(((2 - 1 - ln2) + (4 - 1 - 2 * ln2)) / 2)
    assert metrics["actor/behaviour_kl"] == pytest.approx(-1.5 * ln2)
    assert metrics["actor/ess"] == pytest.approx(6**2 / (2 * 20))


def test_on_policy_metrics():
    _, _, metrics = evaluate(one_sequence([-1, -2], [1, 1]), [-1.0, -2.0], LossSpec())
    right = {"actor/ratio_mean": 1, "actor/ratio_max": 1, "actor/approxkl": 0, "actor/behaviour_kl": 0, "actor/ess": 1}
    assert {name: metrics[name] for name in right} == right


def test_topr_trains_with_nothing_but_its_name_set():
    batch = one_sequence([-1, -1], [1, 1])
    loss, gradient, _ = evaluate(batch, [-1.0, -1.0], LossSpec(pg_variant="topr"))
    assert loss == 1
    assert gradient == [-0.5, -0.5]


def test_an_all_masked_micro_batch_has_loss_and_gradient_zero_and_adds_nothing_to_metrics():
    """A rank with fewer micro-batches than others runs one of these."""
    idle = one_sequence([-9], [7], mask=[False], reference_logprobs=[-1])
    busy = one_sequence([-1.5], [1], reference_logprobs=[-1])
    spec = LossSpec(kl_loss_coef=0.1)
    flat = torch.tensor([[-1.0]], dtype=DOUBLE, requires_grad=True)
    loss, nothing = compute_loss(flat, None, idle.padded(), spec, 1, 1)
    assert loss.item() == 0
    assert torch.autograd.grad(loss, flat)[0].item() == 0
    _, something = compute_loss(flat, None, busy.padded(), spec, 1, 1)
    assert reduce_metrics([nothing, something]) == reduce_metrics([something])


def test_metrics_across_ranks_equal_those_of_one_rank():
    """Rank 1's vectors are recorded, then added (or maximised) into rank 0's, as a collective would."""
    batch, spec = random_batch(5), full_spec("ppo", "token-mean")
    entropy = torch.ones(batch.num_tokens, dtype=DOUBLE)
    logprobs = batch.behaviour_logprobs + 0.1 * torch.arange(batch.num_tokens)
    parts = []
    for indices in ([0, 1, 2], [3, 4]):
        chosen = torch.isin(batch.sample_ids, torch.tensor(indices))
        parts.append(run(batch.select(indices), logprobs[chosen], entropy[chosen], spec, totals(batch))[1])
    recorded = {}
    reduce_metrics(parts[1:], lambda flat, operation: recorded.update({operation: flat.clone()}))

    def all_reduce(flat, operation):
        flat.copy_(flat + recorded[operation] if operation == "sum" else torch.maximum(flat, recorded[operation]))

    assert reduce_metrics(parts[:1], all_reduce) == pytest.approx(reduce_metrics(parts), rel=1e-12)


def test_a_mean_of_nothing_is_left_out():
    _, metrics = compute_loss(torch.zeros(1, 1), None, one_sequence([-1], [1], mask=[False]).padded(), LossSpec(), 0, 0)
    values = reduce_metrics([metrics])
    assert "actor/ratio_mean" not in values
    assert values["actor/pg_loss"] == 0


def test_a_users_loss_runs_with_correction_and_aggregation_around_it(tmp_path, monkeypatch):
    (tmp_path / "my_loss_module.py").write_text(
        "def flat(inputs, args):\n    return inputs.logprobs * 3, {'flat_share': inputs.count(inputs.advantages > 1)}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    loss, _, metrics = evaluate(one_sequence([-1, -1], [1, 3]), [-1.0, -1.0], LossSpec(pg_variant="my_loss_module.flat"))
    assert loss == -3
    assert metrics["actor/flat_share"] == 0.5


def test_missing_fields_are_named():
    batch = one_sequence([-1], [1])
    with pytest.raises(ValueError, match="reference_logprobs"):
        evaluate(batch, [-1.0], LossSpec(kl_loss_coef=0.1))
    with pytest.raises(ValueError, match="entropy"):
        evaluate(batch, [-1.0], LossSpec(entropy_coef=0.1))


def test_spec_refuses_what_cannot_be_computed():
    with pytest.raises(ValueError, match="did you mean"):
        LossSpec(aggregation="seq-mean-token-means")
    with pytest.raises(ValueError, match="norm_length"):
        LossSpec(aggregation="seq-mean-token-sum-norm")
    with pytest.raises(ValueError, match="behaviour_weight_cap"):
        LossSpec(behaviour_weight_cap=0)


def test_spec_travels():
    spec = full_spec("cispo", "seq-mean-token-mean")
    assert pickle.loads(pickle.dumps(spec)) == spec
