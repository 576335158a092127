"""A recorded agentic run is trained again: episodes and their turns lead to the same weights."""

import json
from dataclasses import replace

import pytest

from roll.core.configs.problems import ConfigError
from roll.core.record.manifest import read_manifest
from roll.platform.local_backend import LocalBackend
from roll.prepare.replayed import beginning_of, generating, replayed

RECORDED = {
    "async_generation_ratio": 1,
    "rollout_log_per_step": "all",
    "deterministic": "training",
    "max_steps": 3,
    "save_steps": 1,
}
STEPS = "roll.pipeline.agentic.env_manager.step_env_manager.StepEnvManager"
CASES = {
    "episodes": {"async_generation_ratio": 2},
    "turns, compared state by state": {"custom_envs.letters.env_manager_cls": STEPS, "adv_estimator": "gigpo"},
    "a critic, a cut distribution": {
        "adv_estimator": "gae",
        "critic.device_mapping": "0",
        "critic.training_args.per_device_train_batch_size": 8,
        "actor_infer.generating_args.top_p": 0.6,
    },
    "a stage of the user's own before, and one after the groups": {
        "flow.stages": [{"after": "episodes", "name": "turns", "worker": "agentic_worlds.turns_cost", "args": {"each": 0.125}}],
    },
}


def files(folder, step):
    found = read_manifest(folder / "checkpoints" / f"step-{step}").files
    return {name: digest for name, digest in found.items() if name.startswith(("trainer/", "critic/"))}


@pytest.mark.parametrize("case", CASES)
def test_episodes_lead_to_the_same_weights(lab, make_config, case):
    config = make_config({**RECORDED, **CASES[case]})
    run = lab.run(config)
    for first, name in ((None, "again"), (3, "later")):
        begin, done = beginning_of(run.run_dir, config, first)
        replay = lab.start(replayed(config, run.run_dir, run.run_dir.with_name(name), begin), LocalBackend())
        assert replay.summary["status"] == "finished", replay.summary["reason"]
        found = json.loads((replay.run_dir / "replay.json").read_text())
        assert (found["equal"], found["different"]) == ([*range(done + 1, 4)], [])
        assert all(files(replay.run_dir, step) == files(run.run_dir, step) for step in range(done + 1, 4))


def test_tokens_of_episodes_are_not_promised(make_config):
    config = replace(make_config(RECORDED), mode="replay")
    with pytest.raises(ConfigError, match="episodes have requests whose seeds are not recorded"):
        generating(config)


def test_a_filter_of_episodes_leaves_out_the_groups_that_it_drops(lab, make_config):
    """Of the first step: in later ones, whose policy depends on the order of arrival, it might leave none."""
    run = lab.run(make_config(RECORDED))
    trained = {row["group_id"]: row["rewards"] for row in run.rows("groups") if row["step"] == 1}
    config = make_config({**RECORDED, "train_env_manager.group_filter_cls": "roll.core.groups.filters.equal_rewards"})
    filtered = replayed(config, run.run_dir, run.run_dir.with_name("filtered"), None, until=1, filtered=True)
    left = {row["group_id"]: row["rewards"] for row in lab.start(filtered, LocalBackend()).rows("groups")}
    assert left == {group: rewards for group, rewards in trained.items() if len({*rewards}) > 1}
    assert 0 < len(left) < len(trained)
