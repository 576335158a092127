"""The whole loss: invariance to masked junk and to the cut into micro-batches, terms, corrections, metrics."""

import itertools
import math
import pickle
from dataclasses import replace
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.core.algorithms.correction import Correction, Filter, ImportanceWeight
from roll.core.algorithms.loss import LossSpec, compute_loss, prepare_batch, reduce_metrics
from roll.core.algorithms.pg_variants import get_policy_loss
from roll.core.algorithms.policy_loss import policy_losses, traits_of
from roll.core.configs.losses import LossAggregation, PolicyLossArgs
from roll.core.data.token_batch import TokenBatch
from roll.core.trainer.batch import totals_of

get_policy_loss()
VARIANTS = policy_losses.names
CORRECTIONS = [
    Correction(),
    Correction(weight=ImportanceWeight(level="segment", upper_bound=1.5)),
    Correction(weight=ImportanceWeight(level="sequence", mode="mask", lower_bound=0.2, upper_bound=4.0)),
    Correction(filters=(Filter(level="geometric", ratio=(0.7, 1.6)), Filter(ratio=None, difference=(-0.3, 0.1)))),
    Correction(weight=ImportanceWeight(level="geometric"), veto_threshold=0.2),
]
MODES = get_args(LossAggregation)
DOUBLE = torch.float64
"""Fields that these batches have not."""


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
        rollout_tokens=_of_pairs(torch.stack([part.sum() for part in mask.split(lengths.tolist())])),
    )


def _of_pairs(tokens):
    """Two samples each are a rollout."""
    return torch.cat([part.sum().repeat(len(part)) for part in tokens.split(2)]).float()


def totals(batch):
    found = totals_of(batch)
    return found.tokens, found.sequences, found.rollouts


def pad(flat, mask):
    """Right-pads a flat tensor, keeping its gradient."""
    return torch.zeros(mask.shape, dtype=flat.dtype).masked_scatter(mask, flat)


def run(batch, flat_logprobs, flat_entropy, spec, sizes=None):
    padded = batch.padded()
    attention = padded.attention_mask
    return compute_loss(pad(flat_logprobs, attention), pad(flat_entropy, attention), padded, spec, *(sizes or totals(batch)))


def full_spec(variant, mode, correction=CORRECTIONS[0]):
    return LossSpec(
        pg_variant=variant,
        args=PolicyLossArgs(dual_clip_c=3.0, cispo_use_unified_mask=True),
        aggregation=mode,
        norm_length=9,
        kl_loss_coef=0.3,
        entropy_coef=0.2,
        correction=correction,
    )


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    owner=st.lists(st.integers(0, 2), min_size=5, max_size=5),
    mode=st.sampled_from(MODES),
    decoupled=st.booleans(),
    correction=st.sampled_from(CORRECTIONS),
)
def test_any_cut_into_micro_batches_gives_the_loss_gradient_and_metrics_of_one_batch(
    variant, seed, owner, mode, decoupled, correction
):
    """Micro-batches and data-parallel ranks alike: `owner` says which of three parts a sample goes to."""
    spec = full_spec(variant, mode, correction)
    batch = random_batch(seed, decoupled=decoupled or traits_of(get_policy_loss(variant)).needs_proximal)
    batch = prepare_batch(batch, spec)
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
    correction=st.sampled_from(CORRECTIONS),
)
def test_masked_entries_of_any_field_change_nothing(variant, seed, junk, mode, correction):
    batch, spec = random_batch(seed), full_spec(variant, mode, correction)
    mask = batch.loss_mask
    logprobs, entropy = batch.behaviour_logprobs + 0.3, torch.ones(batch.num_tokens, dtype=DOUBLE)

    def evaluate(batch, logprobs, entropy):
        logprobs, entropy = logprobs.clone().requires_grad_(), entropy.clone().requires_grad_()
        loss, metrics = run(prepare_batch(batch, spec), logprobs, entropy, spec)
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
    assert metrics["actor/is_weight_mean"] == pytest.approx(3.5)
    assert metrics["actor/is_weight_max"] == pytest.approx(5)
    assert metrics["actor/clipfrac"] == 0


def test_the_weight_of_a_decoupled_loss_is_the_corrections_if_it_has_one():
    batch = one_sequence([-1 - math.log(50)], [1], proximal_logprobs=[-1])
    spec = LossSpec(correction=Correction(weight=ImportanceWeight(upper_bound=7.0)))
    assert evaluate(batch, [-1.0], spec)[0] == pytest.approx(-7)


@pytest.mark.parametrize("variant", ["ppo", "decoupled_ppo"])
def test_decoupled_with_proximal_equal_to_behaviour_is_ppo(variant):
    """Loss and gradient of ppo in bypass, bit for bit: w = 1."""
    batch = one_sequence([-1, -2, -0.5], [1, -2, 3])
    current = [-0.5, -2.5, -0.6]
    bypass = evaluate(batch, current, LossSpec(pg_variant="ppo"))
    decoupled = evaluate(batch.with_(proximal_logprobs=batch.behaviour_logprobs), current, LossSpec(pg_variant=variant))
    assert decoupled[:2] == bypass[:2]


@pytest.mark.parametrize("variant", VARIANTS)
def test_decoupled_with_current_equal_to_proximal_weighs_the_bypass_gradient_of_on_policy_data(variant):
    """At the step's first weights (ℓ = ℓ_p) the gradient is w times that of on-policy data, w = e^0.5 and e^-1."""
    current = [-1.0, -2.0]
    weight = [math.exp(0.5), math.exp(-1)]
    on_policy = evaluate(one_sequence(current, [1, -2]), current, LossSpec(pg_variant=variant))[1]
    batch = one_sequence([-1.5, -1.0], [1, -2], proximal_logprobs=current)
    got = evaluate(batch, current, LossSpec(pg_variant=variant))[1]
    assert got == pytest.approx([w * g for w, g in zip(weight, on_policy, strict=True)], rel=1e-12)


def test_m2po_takes_its_ratio_to_the_behaviour_policy_without_a_second_weight():
    """Current = proximal, ratios 10 and 1/8 to behaviour: −M·r·A, M = 0 on the second, whose (ln 8)² breaks the bound. The first,
    that PPO would not clip either, is not truncated at the decoupled weight's 5."""
    batch = one_sequence([-1 - math.log(10), -1 + math.log(8)], [-1, -1], proximal_logprobs=[-1, -1])
    spec = LossSpec(pg_variant="m2po")
    prepared = prepare_batch(batch, spec)
    assert prepared.advantages.tolist() == [-1, 0]
    assert evaluate(prepared, [-1.0, -1.0], spec)[1] == pytest.approx([10 / 2, 0])


def test_m2po_bounds_the_whole_batch_not_its_parts():
    """Squared log-ratios 0.01 and 0.06: together their mean is below 0.04, alone the second would go."""
    rows = [one_sequence([-1 - math.sqrt(x)], [1], proximal_logprobs=[-1]) for x in (0.01, 0.06)]
    both = TokenBatch.joined(rows)
    spec = LossSpec(pg_variant="m2po")
    assert prepare_batch(both, spec).advantages.tolist() == [1, 1]
    assert prepare_batch(rows[1], spec).advantages.tolist() == [0]


@pytest.mark.parametrize("variant", ["decoupled_ppo", "m2po"])
def test_variants_that_need_proximal_log_probs_say_so(variant):
    with pytest.raises(ValueError, match=f"{variant} needs proximal_logprobs"):
        prepare_batch(one_sequence([-1], [1]), LossSpec(pg_variant=variant))


def test_tokens_that_a_correction_leaves_out_still_count_in_the_normaliser():
    """Ratios 1 and 3 to behaviour, the second filtered: −A·ℓ of the first over two tokens."""
    batch = one_sequence([-1, -1 - math.log(3)], [1, 1])
    spec = LossSpec(pg_variant="vanilla", correction=Correction(filters=(Filter(),)))
    loss, gradient, metrics = evaluate(batch, [-1.0, -1.0], spec)
    assert loss == pytest.approx(0.5)
    assert gradient == pytest.approx([-0.5, 0])
    assert metrics["actor/train_infer_final_mask_mean"] == 0.5


def test_without_a_correction_reinforce_can_be_weighted_by_the_current_policy():
    """Bypass: the weight is current over behaviour, 3 truncated at 2, and has no gradient."""
    batch = one_sequence([-1 - math.log(3)], [1])
    spec = LossSpec(pg_variant="vanilla", correction=Correction(weight=ImportanceWeight(upper_bound=2.0)))
    loss, gradient, _ = evaluate(batch, [-1.0], spec)
    assert loss == pytest.approx(2)
    assert gradient == pytest.approx([-2])


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_a_trained_token_without_finite_behaviour_log_prob_is_left_out_and_counted(variant, broken):
    """One bad token of an engine must not poison the run: the others are trained as if it were masked, over the same totals."""
    proximal = {"proximal_logprobs": [-1.1, -1, -1.2]}
    spec = LossSpec(pg_variant=variant, aggregation="token-mean", correction=CORRECTIONS[4])
    bad = one_sequence([-1, broken, -1.5], [1, 1, -1], **proximal)
    clean = one_sequence([-1, -1, -1.5], [1, 1, -1], mask=[True, False, True], **proximal)
    flat = torch.tensor([[-1.2, -1.0, -1.3]], dtype=DOUBLE, requires_grad=True)
    results = []
    for batch in (bad, clean):
        loss, metrics = compute_loss(flat, None, prepare_batch(batch, spec).padded(), spec, 3, 1)
        results.append((loss.item(), torch.autograd.grad(loss, flat)[0].tolist()))
        share = reduce_metrics([metrics])["actor/behaviour_not_finite"]
        assert share == pytest.approx(1 / 3 if batch is bad else 0)
    assert results[0] == results[1]


def test_kl_estimator_is_a_knob():
    """k1 with d = ln 2 is -ln 2; k1+ has its value and the gradient of k2, which is -d."""
    batch = one_sequence([-1], [0], reference_logprobs=[-1 + math.log(2)])
    loss, gradient, _ = evaluate(batch, [-1.0], LossSpec(pg_variant="vanilla", kl_loss_coef=1.0, kl_estimator="k1+"))
    assert loss == pytest.approx(-math.log(2))
    assert gradient == pytest.approx([-math.log(2)])


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


def test_spec_travels():
    spec = full_spec("cispo", "seq-mean-token-mean", CORRECTIONS[3])
    assert pickle.loads(pickle.dumps(spec)) == spec


def test_engines_are_compared_on_fresh_tokens_alone_each_on_its_own():
    """|ℓ − ℓ_b| of engine 0: 0.5 and 0.1, of engine 1: 0.2; the stale token and the masked one, however far off, do not count."""
    batch = one_sequence([-1.5, -0.9, -1.2, -9.0, math.nan], [1] * 5, mask=[True] * 4 + [False])
    batch = batch.with_(fresh_from=torch.tensor([1, 1, 2, 0, 2]))
    _, _, metrics = evaluate(batch, [-1.0] * 5, LossSpec(engines=3))
    right = {"": 0.8 / 3, "_max": 0.5, "/0": 0.3, "/1": 0.2}
    assert {name: metrics[f"actor/engine_mismatch{name}"] for name in right} == pytest.approx(right)
    assert "actor/engine_mismatch/2" not in metrics


@pytest.mark.parametrize("cut", [None, 2])
def test_the_rate_follows_the_effective_sample_size_of_whole_responses(cut):
    """By hand from each response's ratio, however the batch is cut; as in VCPO with `full_rate_ess` 1."""
    batch = random_batch(3, samples=6, decoupled=False)
    logprobs = batch.behaviour_logprobs + torch.linspace(-0.3, 0.3, batch.num_tokens, dtype=DOUBLE)
    ratios, offsets = [], batch.offsets.tolist()
    for start, stop in itertools.pairwise(offsets):
        own = batch.loss_mask[start:stop]
        if own.any():
            ratios.append((logprobs - batch.behaviour_logprobs)[start:stop][own].sum().exp().item())
    ess = sum(ratios) ** 2 / (len(ratios) * sum(ratio**2 for ratio in ratios))
    assert ess < 0.9
    parts = [list(range(6))] if cut is None else [list(range(i, i + cut)) for i in range(0, 6, cut)]
    positions = torch.arange(batch.num_tokens).split(batch.lengths.tolist())
    for full, expected in ((1.0, math.sqrt(ess)), (0.9, math.sqrt(ess / 0.9)), (ess / 2, 1.0), (None, 1.0)):
        spec = LossSpec(pg_variant="ppo", full_rate_ess=full)
        metrics = []
        for part in parts:
            flat = logprobs[torch.cat([positions[i] for i in part])]
            metrics.append(run(batch.select(part), flat, flat, spec, totals(batch))[1])
        assert spec.rate_scale(reduce_metrics(metrics)) == pytest.approx(expected, rel=1e-9)
    assert LossSpec(full_rate_ess=0.5).rate_scale({}) == 1.0, "no response counts: nothing is known"
