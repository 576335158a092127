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


TOKENS = {
    "episodes that live through updates": {"async_generation_ratio": 2, "max_tokens_per_step": 8},
    "in flight": {"async_generation_ratio": 2, "max_tokens_per_step": 8, "weight_update_mode": "in_flight"},
    "turns": {"custom_envs.letters.env_manager_cls": STEPS},
    "some that failed, and were played again": {"custom_envs.letters.on_env_failure": "retry"},
}


@pytest.mark.parametrize("case", TOKENS)
def test_tokens_of_episodes_come_again_each_by_the_weights_of_its_version(lab, make_config, case, tmp_path):
    fails = {"env_type": "Breaking", "custom_envs.letters.env_config": {"once": str(tmp_path / "failed")}}
    config = make_config({**RECORDED, **TOKENS[case]}, **(fails if "failed" in case else {}))
    run = lab.run(config)
    own = generating(replayed(config, run.run_dir, run.run_dir.with_name("again"), None))
    replay = lab.start(own, LocalBackend())
    assert replay.summary["status"] == "finished", replay.summary["reason"]
    counts = json.loads((replay.run_dir / "regenerated.json").read_text())
    assert counts["first"] is None and counts["equal"] == counts["tokens"] > 100
    assert counts["largest_gap"] < 1e-5  # float32, in batches of other sizes
    sampled = sum(stop - start for row in run.trained_samples() for start, stop, *_ in row["versions"])
    assert counts["tokens"] + counts["not_compared"] == sampled
    assert counts["not_compared"] == 0 or case == "in flight"
    again = [row["trajectory"]["metrics"].get("attempt") for row in run.trained_samples()]
    assert (1.0 in again) == ("failed" in case)


def test_tokens_of_programs_are_not_promised(of_programs):
    with pytest.raises(ConfigError, match="programs make requests whose seeds are not recorded"):
        generating(replace(of_programs(RECORDED), mode="replay"))


def test_a_filter_of_episodes_leaves_out_the_groups_that_it_drops(lab, make_config):
    """Of the first step: in later ones, whose policy depends on the order of arrival, it might leave none."""
    recorded = {**RECORDED, "seed": 5}  # some groups earn equally, some do not
    run = lab.run(make_config(recorded))
    trained = {row["group_id"]: row["rewards"] for row in run.rows("groups") if row["step"] == 1}
    config = make_config({**recorded, "train_env_manager.group_filter_cls": "roll.core.groups.filters.equal_rewards"})
    filtered = replayed(config, run.run_dir, run.run_dir.with_name("filtered"), None, until=1, filtered=True)
    left = {row["group_id"]: row["rewards"] for row in lab.start(filtered, LocalBackend()).rows("groups")}
    assert left == {group: rewards for group, rewards in trained.items() if len({*rewards}) > 1}
    assert 0 < len(left) < len(trained)
