"""Whole runs in this process: real engine, real trainer, small environments."""

import itertools
import shutil
from dataclasses import replace

import pytest
from mortal_workers import MortalBackend
from run_files import loads_of_an_engine

from roll.cli.verify import read_run, violations
from roll.core.configs.problems import ConfigError
from roll.core.distributed.devices import Inventory
from roll.platform.local_backend import LocalBackend
from roll.prepare.agentic_run import environment_workers, prepare

pytestmark = pytest.mark.slow
VALIDATION = {"val_env_manager": {"num_env_groups": 2, "group_size": 2}, "val_batch_size": 8, "eval_steps": 1}


def check(run, config):
    """What holds for every finished run."""
    groups, statuses = run.summary["groups"], run.rows("groups")
    trained = [row for row in statuses if row["status"] == "trained"]
    assert groups["trained"] == len(trained) == config.max_steps * config.groups_per_step
    assert groups["admitted"] == groups["trained"] + sum(groups["dropped"].values())
    assert sorted(row["group_id"] for row in statuses) == list(range(groups["admitted"])), (
        "each group has exactly one terminal status"
    )
    assert all(0 <= row["lag"] <= run.summary["staleness"]["bound"] for row in trained)
    for sample in run.trained_samples():
        own = [i for start, stop, *_ in sample["versions"] for i in range(start, stop)]
        assert own == [i for i, is_own in enumerate(sample["loss_mask"]) if is_own]
        assert all(one[2] <= other[2] for one, other in itertools.pairwise(sample["versions"]))


@pytest.mark.parametrize(("ratio", "on_arrival"), [(0, False), (1, False), (0, True), (1, True)])
def test_a_run_plays_trains_evaluates_and_accounts_for_every_group(lab, make_config, ratio, on_arrival):
    config = make_config(VALIDATION, async_generation_ratio=ratio, train_on_arrival=on_arrival, max_steps=3)
    run = lab.run(config)
    check(run, config)
    step = run.steps()[-1]
    assert step["actor_train/optimiser_steps"] == 1
    assert step["env/letters/num_actions"] == 3 and 0 <= step["env/letters/success"] <= 1
    assert step["env/letters/score"] == step["critic/score/mean"]
    validations = [row for row in run.rows("metrics") if "val_correct/all/mean" in row]
    assert [row["step"] for row in validations] == [0, 1, 2, 3]
    assert all(row["val/errors"] == 0 and row["val/env/letters/num_actions"] == 3 for row in validations)


@pytest.mark.parametrize("kept", [True, False])
def test_an_agent_that_is_not_understood_is_told_whether_its_groups_are_trained_or_dropped(lab, make_config, kept):
    changes = {} if kept else {"train_env_manager.group_filter_cls": "roll.core.groups.filters.equal_rewards"}
    run = lab.start(make_config(changes, env_type="Deaf", max_steps=3), LocalBackend())
    (told,) = [line for line in run.summary["warnings"] if line.startswith("custom_envs.letters: 0 of the first ")]
    assert "wanted: As a number." in told
    if kept:
        assert run.steps()[-1]["env/least_valid"] == 0 and run.summary["verdict"]["kind"] in ("invalid", "cut off")
    else:
        assert "equal_rewards (the last one: mean reward 0, train/letters/" in run.summary["reason"]


@pytest.mark.parametrize(("module", "manager"), [("traj_env_manager", "TrajEnvManager"), ("step_env_manager", "StepEnvManager")])
def test_where_top_p_cuts_what_an_agent_samples_the_trainer_speaks_of_what_was_kept(lab, make_config, module, manager):
    changes = {"actor_infer.generating_args.top_p": 0.6, "rollout_log_per_step": 64}
    changes["custom_envs.letters.env_manager_cls"] = f"roll.pipeline.agentic.env_manager.{module}.{manager}"
    run = lab.run(make_config(changes, max_steps=2))
    compared = [row["actor/engine_mismatch_max"] for row in run.steps() if "actor/engine_mismatch_max" in row]
    assert compared and max(compared) < 1e-4
    assert {0.0} < {value for sample in run.trained_samples() for value in sample["behaviour_logprobs"]}


@pytest.mark.parametrize(("batch", "steps"), [(64, 1), (6, 2)])
def test_all_turns_are_trained_where_episodes_make_no_whole_optimiser_batches(lab, make_config, batch, steps):
    changes = {"actor_train.training_args.per_device_train_batch_size": batch, "rollout_log_per_step": 64}
    changes["custom_envs.letters.env_manager_cls"] = "roll.pipeline.agentic.env_manager.step_env_manager.StepEnvManager"
    run = lab.run(make_config(changes, max_steps=2))
    assert [row["actor_train/optimiser_steps"] for row in run.steps()] == [steps, steps]
    turns = [sample for sample in run.trained_samples() if sample["step"] == 1]
    assert len(turns) == 8 * 3 and all(any(sample["loss_mask"]) for sample in turns), "eight episodes of three turns"


def test_a_stage_of_the_users_own_changes_what_episodes_earn_and_is_there_again_after_a_resume(lab, make_config):
    stage = {"after": "episodes", "name": "turns", "worker": f"{lab.worlds}.turns_cost", "args": {"each": 0.125}}
    changes = {"flow.stages": [stage], "rollout_log_per_step": 64, "async_generation_ratio": 1, "save_steps": 1}
    lab.run(make_config(changes, max_steps=1))
    config = make_config(changes, max_steps=2, resume_from_checkpoint=True)
    run = lab.run(config)
    check(run, config)
    samples = run.trained_samples()
    assert len(samples) == 16
    for sample in samples:
        turns = sample["trajectory"]["turns"]
        assert sample["reward_parts"]["turns"] == -0.125 * len(turns)
        assert sample["reward"] == pytest.approx(sum(turn["reward"] for turn in turns) - 0.125 * len(turns))
    for row in run.steps():
        assert row["rewards/letters/turns/mean"] < 0
        learned = row["critic/rewards/mean"]
        assert learned == pytest.approx(row["critic/score/mean"]) and learned < row["env/letters/score"]


def test_an_evaluation_plays_what_the_run_played_and_further_sets(lab, make_config):
    """The checkpoint of a run is worth what its version was; a second set has its own environments and sampling."""
    config = make_config(VALIDATION, max_steps=2, save_steps=1)
    trained = lab.run(config)
    greedy = {"env_manager": {"num_env_groups": 4, "group_size": 1}, "generating_args": {"temperature": 0.0}}
    sets = make_config({**VALIDATION, "validation_sets": {"greedy": greedy}})
    bench = replace(sets, mode="bench", bench_checkpoints=["pretrain", str(trained.run_dir)])
    run = lab.start(bench, LocalBackend())
    assert run.summary["status"] == "finished", run.summary["reason"]
    assert [row["model"] for row in run.summary["evaluation"]] == ["pretrain", "step-1", "step-2"]

    def figures(run):
        rows = [row for row in run.rows("metrics") if "val_correct/all/mean" in row]
        names = ("val/score/mean", "val_correct/letters/mean", "eval/validation/all/avg@2", "eval/validation/all/pass@2")
        return [[row[name] for name in names] for row in rows]

    assert figures(run) == figures(trained)
    for row, metrics in zip(run.summary["evaluation"], run.rows("metrics"), strict=True):
        assert row["sets"]["validation"]["all"]["avg@2"]["prompts"] == 4
        assert row["sets"]["greedy"]["all"]["avg@1"]["prompts"] == 8
        assert metrics["val/env/letters/num_actions"] == metrics["eval/greedy/env/letters/num_actions"] == 3
    uids = {sample["prompt_uid"] for sample in run.rows("samples")}
    assert {uid.split("/")[0] for uid in uids} == {"validation", "greedy"}


def test_the_same_seed_plays_the_same_run(lab, make_config):
    def told(exp_name, **changes):
        config = make_config(VALIDATION, max_steps=2, deterministic=True, exp_name=exp_name, **changes)
        run = lab.run(config)
        rows = [(s["prompt_uid"], s["index"], s["response_ids"], s["reward"]) for s in run.trained_samples()]
        scores = [row["val/score/mean"] for row in run.rows("metrics") if "val/score/mean" in row]
        return rows, scores

    first = told("one")
    assert told("two") == first
    assert told("three", seed=7)[0] != first[0]


def test_an_episode_that_is_interrupted_by_new_weights_goes_on(lab, make_config):
    """Environments that wait let several updates pass during an episode: its turns are of several versions, none too old."""
    config = make_config(
        {
            "custom_envs.letters": {
                "env_type": "latency.LatencyEnv",
                "env_config": {"env_type": "agentic_worlds.Letters", "env_config": {"length": 4}, "mean_s": 0.1, "sigma": 0.0},
                "max_steps": 5,
            },
            "train_env_manager.num_env_groups": 12,
            "rollout_log_per_step": 8,
        },
        async_generation_ratio=2,
        async_pipeline_depth=2,
        max_steps=6,
    )
    run = lab.run(config)
    check(run, config)
    versions = [{version for _, _, version, _ in sample["versions"]} for sample in run.trained_samples()]
    assert any(len(seen) > 1 for seen in versions), "some episode was played by more than one version"


@pytest.mark.parametrize(("policy", "size"), [("drop_sample", {1, 2}), ("drop_group", {2}), ("retry", {2})])
def test_failing_environments_cost_what_the_policy_says(lab, make_config, tmp_path, policy, size):
    """`Breaking` fails wherever the seed is odd; with `retry`, the first time only. Every episode of a group fails alike here, so
    a group is whole or gone."""
    env = {"once": str(tmp_path / "mark")} if policy == "retry" else {}
    config = make_config(
        {"custom_envs.letters.on_env_failure": policy, "custom_envs.letters.env_config": env, "rollout_log_per_step": 100},
        env_type="Breaking",
        max_steps=3,
    )
    run = lab.run(config)
    check(run, config)
    failures, dropped = run.summary["environment_failures"], run.summary["groups"]["dropped"]
    assert failures["exception"] > 0
    if policy == "retry":
        assert "environment_failure" not in dropped, "each failed once, and was played again"
    else:
        assert dropped["environment_failure"] > 0
    sizes = {(s["step"], s["group_id"]) for s in run.trained_samples()}
    counts = {key: sum((s["step"], s["group_id"]) == key for s in run.trained_samples()) for key in sizes}
    assert set(counts.values()) <= size
    assert run.steps()[-1]["env/failures/exception"] == failures["exception"]


def test_whatever_an_environment_does_it_costs_its_episodes_alone(lab, make_config):
    """A seed is a group's, so of a group all episodes fail, or none."""
    limits = {"execution": "process", "memory_mb": 512, "step_timeout_s": 5.0, "on_env_failure": "drop_group"}
    changes = {f"custom_envs.letters.{key}": value for key, value in limits.items()}
    config = make_config({**changes, "rollout_log_per_step": 100}, env_type="Hostile", max_steps=4)
    run = lab.run(config)
    check(run, config)
    failures = run.summary["environment_failures"]
    assert failures.keys() == {"exception", "memory", "died", "timeout"}
    assert run.summary["groups"]["dropped"]["environment_failure"] > 4
    assert all(sample["trajectory"]["num_turns"] == 3 for sample in run.trained_samples())


def test_a_chat_template_that_refuses_a_later_message_costs_an_episode(lab, make_config, model_folder, tokenizer, tmp_path):
    refusing = "{% if messages | length > 2 and messages[-1]['content'] == 'c=' %}{{ raise_exception('no c') }}{% endif %}"
    folder = shutil.copytree(model_folder, tmp_path / "model")
    tokenizer(refusing + lab.chat_template).save_pretrained(folder)
    config = make_config(
        {"actor_train.data_args.template": "native", "custom_envs.letters.on_env_failure": "drop_group"},
        pretrain=str(folder),
        sequence_length=128,
    )
    run = lab.run(config)
    check(run, config)
    assert run.summary["environment_failures"].keys() == {"chat_template"}
    dropped = [row["prompt_uid"] for row in run.rows("groups") if row["reason"] == "environment_failure"]
    assert dropped and run.steps()[-1]["env/failures/chat_template"] > 0


def test_environments_that_all_fail_end_the_run_with_the_reason(lab, make_config, monkeypatch):
    monkeypatch.setattr("roll.core.groups.progress.FAILURES_IN_A_ROW", 5)
    config = make_config(
        {"custom_envs.letters.env_type": "latency.LatencyEnv", "custom_envs.letters.on_env_failure": "drop_group"},
        **{"custom_envs.letters.env_config": {"env_type": "agentic_worlds.Letters", "mean_s": 0.0, "raise_share": 1.0}},
    )

    summary = lab.start(config, LocalBackend()).summary
    assert summary["status"] == "failed"
    assert "5 groups in a row failed: 100 % environment_failure" in summary["reason"]
    assert "this step was chosen to fail" in summary["reason"]


def test_redundant_episodes_are_ended_when_enough_have_finished(lab, make_config):
    config = make_config({"train_env_manager.group_size_redundancy": 2, "rollout_log_per_step": 100}, max_steps=2)
    run = lab.run(config)
    check(run, config)
    assert run.summary["redundant_episodes_aborted"] >= 2 * 4 * 2, "two of four in each of four groups of two steps"
    assert len(run.trained_samples()) == 2 * config.rollout_batch_size


def test_engines_that_load_every_m_groups_load_less_often_and_nothing_is_too_old(lab, make_config):
    """Two engines, four groups a step; an episode's turns may be of engines with different versions."""
    three = Inventory("cpu", nodes=1, per_node=3, cpus_per_node=3)
    config = make_config(
        VALIDATION | {"actor_infer.device_mapping": "1-2", "eval_steps": 6},
        max_steps=8,
        async_generation_ratio=4,
        async_pipeline_depth=2.0,
        weight_pull_interval=8,
    )
    run = lab.start(config, LocalBackend(), three)
    assert run.summary["status"] == "finished", run.summary["reason"]
    assert run.summary["weight_updates"]["published"] == 8
    assert 2 <= loads_of_an_engine(run.summary, config.pretrain, 2) < 8
    groups = run.summary["groups"]
    assert groups["trained"] == 8 * config.groups_per_step
    assert groups["admitted"] == groups["trained"] + sum(groups["dropped"].values())
    assert run.summary["staleness"]["max"] <= 4
    validations = [row for row in run.rows("metrics") if "val_correct/all/mean" in row]
    assert [row["step"] for row in validations] == [0, 6, 8]


def test_turns_as_samples_keep_the_number_of_optimiser_steps(lab, make_config):
    """16 episodes of 3 turns are 48 samples a step; two optimiser steps all the same, and each sample in one of them."""
    config = make_config(
        {
            "custom_envs.letters.env_manager_cls": "roll.pipeline.agentic.env_manager.step_env_manager.StepEnvManager",
            "train_env_manager": {"num_env_groups": 4, "group_size": 4},
        },
        rollout_batch_size=16,
        adv_estimator="gigpo",
        max_steps=2,
    )
    run = lab.run(config)
    assert [step["actor_train/optimiser_steps"] for step in run.steps()] == [2.0, 2.0]
    assert all(step["env/letters/num_actions"] == 3 for step in run.steps())
    assert sum(run.summary["staleness"]["histogram"].values()) == 2 * 16 * 3


@pytest.mark.parametrize(("ratio", "deaths"), [(0, 1), (1, 2)])
def test_a_trainer_that_dies_goes_on_from_the_checkpoint_with_the_coordinators_that_live(lab, make_config, ratio, deaths):
    """At ratio 0 it trains what it would have trained."""
    config = make_config(max_steps=5, save_steps=2, async_generation_ratio=ratio, deterministic=not ratio)
    run = lab.start(config, MortalBackend({("actor_train-0", "train"): {4, 7} if deaths == 2 else {4}}))
    assert run.summary["status"] == "finished", run.summary["reason"]
    assert list(violations(read_run(run.run_dir))) == []
    assert len(run.summary["trainer_recovery_s"]) == deaths and run.summary["environment_worker_deaths"] == 0
    assert [row["step"] for row in run.steps()] == [1, 2, 3, 4, 5]
    if not ratio:
        whole = lab.run(replace(config, exp_name="whole"))
        assert [row["critic/score/mean"] for row in run.steps()] == [row["critic/score/mean"] for row in whole.steps()]
        assert run.rows("groups") == whole.rows("groups")


@pytest.mark.parametrize("policy", ["retry", "drop_group"])
def test_a_coordinator_that_dies_is_replaced_and_its_groups_are_played_again_or_dropped(lab, make_config, policy):
    config = make_config({"custom_envs.letters.on_env_failure": policy}, max_steps=3, async_generation_ratio=1)
    run = lab.start(config, MortalBackend({("environments-0", "play_group"): {3}}))
    assert run.summary["status"] == "finished", run.summary["reason"]
    assert run.summary["environment_worker_deaths"] == 1
    assert list(violations(read_run(run.run_dir))) == []
    assert ("environment_worker_died" in run.summary["groups"]["dropped"]) == (policy == "drop_group")


def test_a_run_goes_on_where_its_checkpoint_was_written(lab, make_config):
    whole = lab.run(make_config(VALIDATION, max_steps=4, save_steps=2, deterministic=True, exp_name="whole"))
    lab.run(make_config(VALIDATION, max_steps=2, save_steps=2, deterministic=True, exp_name="parts"))
    config = make_config(VALIDATION, max_steps=4, save_steps=2, deterministic=True, exp_name="parts", resume_from_checkpoint=True)
    resumed = lab.run(config)
    assert [row["prompt_uid"] for row in resumed.rows("groups")] == [row["prompt_uid"] for row in whole.rows("groups")]
    assert resumed.trained_samples()[-1]["response_ids"] == whole.trained_samples()[-1]["response_ids"]


def test_groups_whose_episodes_all_end_alike_can_be_filtered(lab, make_config):
    config = make_config({"train_env_manager.group_filter_cls": "roll.core.groups.filters.equal_rewards"}, max_steps=2)
    run = lab.run(config)
    check(run, config)
    scores = {}
    for sample in run.trained_samples():
        scores.setdefault((sample["step"], sample["group_id"]), set()).add(sample["reward"])
    assert run.summary["groups"]["dropped"].get("equal_rewards", 0) > 0


@pytest.mark.parametrize(
    ("changes", "key", "message"),
    [
        ({"custom_envs.letters.env_type": "frozn_lake"}, "custom_envs.letters.env_type", "did you mean frozen_lake?"),
        ({"custom_envs.letters.env_config": {"lenght": 3}}, "custom_envs.letters.env_config.lenght", "did you mean length?"),
        (
            {"custom_envs.letters.agent_template": "{observation}{turns}"},
            "custom_envs.letters.agent_template",
            "no field 'turns'",
        ),
        ({"custom_envs.letters.agent_template": "look!"}, "custom_envs.letters.agent_template", "lacks {observation}"),
        ({"actor_train.data_args.template": "native"}, "actor_train.data_args.template", "no chat template"),
        ({"train_env_manager.group_filter_cls": "math.fsum"}, "train_env_manager.group_filter_cls", "the reason to drop"),
        (
            {"train_env_manager.group_filter_cls": "roll.core.groups.filters.equal_rewards", "train_env_manager.group_size": 1},
            "train_env_manager.group_filter_cls",
            "every group is dropped",
        ),
        ({"sequence_length": 4}, "sequence_length", "no room for a prompt"),
        ({"rollout_batch_size": 9}, "rollout_batch_size", "not a whole number of groups of 2"),
        ({"train_env_manager.tags": ["words"]}, "train_env_manager.tags[0]", "there is no custom_envs.words (known: letters)"),
        ({"train_env_manager.num_groups_partition": [3]}, "train_env_manager.num_groups_partition", "num_env_groups is 4"),
        ({"adv_estimator": "gigpo", "gamma": 0.9}, "gamma", "gigpo gives every turn its own advantage"),
        ({"reward_normalization.grouping": "tags"}, "reward_normalization.grouping", "compares the episodes of a group"),
        ({"actor_train.data_args.file_name": "x.jsonl"}, "actor_train.data_args.file_name", "not from a file"),
    ],
)
def test_bad_input_is_refused_before_any_worker_starts(lab, make_config, changes, key, message):
    with pytest.raises(ConfigError) as refused:
        prepare(make_config(changes), lab.inventory)
    problems = {problem.key: str(problem) for problem in refused.value.problems}
    assert key in problems and message in problems[key]


def test_there_are_as_many_coordinators_as_environments_need_and_cores_allow(lab, make_config):
    many = make_config({"train_env_manager": {"num_env_groups": 64, "group_size": 4, "max_env_num_per_worker": 128}})
    assert environment_workers(many, lab.inventory) == 2
    assert environment_workers(make_config(), lab.inventory) == 1
