"""`pass_rate_mixture` in a run: what is measured decides what is played, also after a checkpoint."""

from dataclasses import replace

import pytest

from roll.plan.rules.validation import check_config

pytestmark = pytest.mark.slow
EASY = {"env_type": "agentic_worlds.Letters", "env_config": {"length": 0}, "max_steps": 1}
"""A success whatever is said."""
MIXTURE = {"custom_envs.easy": EASY, "pass_rate_mixture.least": 0.2, "pass_rate_mixture.groups": 100}


def test_a_tag_that_always_succeeds_is_played_less_and_a_resumed_run_goes_on_with_that(lab, make_config):
    config = make_config({**MIXTURE, "custom_envs.letters.env_config": {"length": 1}}, max_steps=8, save_steps=8, seed=5)
    run = lab.run(config)
    last = run.steps()[-1]
    measured = {tag: last[f"mixture/{tag}/pass_rate"] for tag in ("easy", "letters")}
    assert measured["easy"] == 1.0 and 0.0 < measured["letters"] < 1.0
    parts = {"easy": 0.2, "letters": 0.2 + 0.8 * 4 * measured["letters"] * (1 - measured["letters"])}
    for tag, part in parts.items():
        assert last[f"mixture/{tag}/share"] == pytest.approx(part / sum(parts.values()))
    tags = run.summary["tags"]
    assert tags["easy"]["episodes"] < tags["letters"]["episodes"] and tags["easy"]["success"] == [1.0, 1.0]
    assert sum(found["episodes"] for found in tags.values()) == 8 * config.rollout_batch_size

    resumed = lab.run(replace(config, max_steps=9, resume_from_checkpoint="auto"))
    assert resumed.summary["resumed_from_step"] == 8
    assert resumed.steps()[-1]["mixture/easy/pass_rate"] == 1.0
    assert sum(found["episodes"] for found in resumed.summary["tags"].values()) == 9 * config.rollout_batch_size


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({**MIXTURE, "train_env_manager.tags": ["letters"]}, "has no effect: one tag alone is played"),
        ({**MIXTURE, "groups_database": "sqlite:////tmp/none.db"}, "is not kept in a database of groups"),
        (MIXTURE, ""),
    ],
)
def test_a_mixture_that_would_decide_nothing_is_refused(make_config, changes, message):
    problems = [problem for problem in check_config(make_config(changes), 2) if problem.key == "pass_rate_mixture"]
    assert [message in problem.message for problem in problems] == ([True] if message else [])
