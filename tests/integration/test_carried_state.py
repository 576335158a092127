"""What is carried from step to step outside the model (running reward moments, the KL coefficient) is in a checkpoint."""

import pytest


def test_a_resumed_run_is_the_run_that_was_not_interrupted(lab, make_config):
    whole = lab.run(make_config(lab.carried, exp_name="whole", max_steps=4))
    lab.run(make_config(lab.carried, exp_name="parts", max_steps=2))
    config = make_config(lab.carried, exp_name="parts", max_steps=4, resume_from_checkpoint=True)
    parts = lab.run_local(config)
    assert parts.summary["status"] == "finished", parts.summary["reason"]
    assert parts.summary["resumed_from_step"] == 2
    expected, found = lab.weights(whole, 4), lab.weights(parts, 4)
    assert all(found[name].equal(tensor) for name, tensor in expected.items())
    coefficients = [row["critic/kl_coef"] for row in whole.steps()]
    assert coefficients == [row["critic/kl_coef"] for row in parts.steps()]
    assert coefficients[0] == 0.1 and len(set(coefficients)) == 4, "it has to move, or the comparison means nothing"


@pytest.mark.parametrize("change", [{"norm_mean_type": None}, {"add_token_level_kl": False, "target_kl": None}])
def test_each_of_them_changes_what_is_learnt(lab, make_config, change):
    """So the run above depends on both."""
    base = lab.run(make_config(lab.carried, exp_name="base", max_steps=2))
    other = lab.run(make_config({**lab.carried, **change}, exp_name="other", max_steps=2))
    assert any(not lab.weights(base, 2)[name].equal(tensor) for name, tensor in lab.weights(other, 2).items())
