"""Where top_p or top_k cut what is sampled, engine and trainer speak of the same cut distribution."""

import pytest

CUT = {"actor_infer.generating_args": {"temperature": 1.0, "top_p": 0.7}, "max_steps": 3}


@pytest.mark.parametrize("more", [{}, {"async_generation_ratio": 1, "old_logprobs": "recompute"}], ids=["bypass", "recompute"])
def test_engine_and_trainer_agree_over_what_was_kept(lab, make_config, more):
    """To the rounding of float32, for the weights that sampled."""
    run = lab.run(make_config(CUT | more))
    compared = [row["actor/engine_mismatch_max"] for row in run.steps() if "actor/engine_mismatch_max" in row]
    assert compared and max(compared) < 1e-4
    assert all(1 <= row["tokens/kept_set/mean"] < 30 for row in run.steps())


def test_samples_are_those_of_the_whole_distribution_with_other_log_probs(lab, make_config):
    """The first step's: 0.7 is the least that a kept set may have of the probability."""
    changes = CUT | {"max_steps": 1}
    kept, whole = (lab.run(make_config(changes | {"keep_sampling_mask": choice})).trained_samples() for choice in (None, False))
    pairs = list(zip(kept, whole, strict=True))
    assert [ours["response_ids"] for ours, _ in pairs] == [theirs["response_ids"] for _, theirs in pairs]
    gaps = [gap for ours, theirs in pairs for gap in map(float.__sub__, ours["behaviour_logprobs"], theirs["behaviour_logprobs"])]
    # log-probs are written with six decimals
    assert min(gaps) >= -2e-6 and max(gaps) <= 0.3567 + 2e-6 and max(gaps) > 0.1
