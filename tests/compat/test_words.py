"""What is wrong with a file of Trinity-RFT's, or with verl's keys, is told in the words of who wrote it."""

from pathlib import Path

import pytest

from roll.core.configs.problems import ConfigError, Problem
from roll.plan.rules.validation import check_config
from roll.prepare.compose import load

ROOT = Path(__file__).parents[2]
GSM8K = ROOT / "tests/configs/trinity_examples"


def located(report, key, value, message="", fix=""):
    (problem,) = report.located([Problem(key, value, message, fix)])
    return problem


@pytest.fixture(scope="module")
def trinity():
    return load(GSM8K, "trainer", fetch=False)[1]


@pytest.mark.parametrize(
    ("key", "theirs"),
    [
        ("groups_database", "buffer.trainer_input.experience_buffer.path"),
        ("exp_name", "name"),
        ("resume_from_checkpoint", "continue_from_checkpoint"),
        ("pretrain", "model.model_path"),
        ("actor_train.training_args.learning_rate", "algorithm.optimizer.lr"),
        ("async_generation_ratio", "async_generation_ratio (of synchronizer.sync_interval)"),
        ("rollout_log_per_step", "rollout_log_per_step"),
    ],
)
def test_trinitys_keys_are_named(trinity, key, theirs):
    assert located(trinity, key, 1).key == theirs


def test_trinitys_words_stand_in_message_and_fix(trinity):
    """As a second experiment on the first one's database is refused."""
    fix = "a database of its own for this run (groups_database), or go on with that one: output_dir /a, exp_name first, "
    found = located(trinity, "groups_database", "sqlite:///a.db", "it is full", fix + "resume_from_checkpoint: auto")
    assert found.fix == (
        "a database of its own for this run (buffer.trainer_input.experience_buffer.path), or go on with that one: "
        "checkpoint_root_dir/project /a, name first, continue_from_checkpoint: true"
    )
    assert located(trinity, "x", 1, "my_exp_name, exp_name.x and exp_names").message == "my_exp_name, exp_name.x and exp_names"
    assert located(trinity, "x", 1, fix="write auto or false").fix == "write true or false"


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("algorithm.optimizer.lr=-1", "algorithm.optimizer.lr = -1.0: must be "),
        ("trainer.max_checkpoints_to_keep=-1", "trainer.max_checkpoints_to_keep = -1: must be "),
    ],
)
def test_ranges_are_told_of_their_keys(override, told):
    with pytest.raises(ConfigError) as caught:
        load(GSM8K, "trainer", [f"++{override}"])
    assert told in str(caught.value)


def test_verls_keys_stand_beside_ours_where_the_number_is_another():
    folder = ROOT / "examples/config"
    config, report = load(
        folder, "rlvr_config", ["+trainer.generate_ahead_steps=3", "~async_generation_ratio", "async_pipeline_depth=9"]
    )
    assert config.async_generation_ratio == 2
    found = located(report, "async_generation_ratio", 2, "async_generation_ratio is small")
    assert found.key == "async_generation_ratio (of trainer.generate_ahead_steps)"
    assert check_config(config, 2) is not None


def test_a_file_of_rolls_or_of_this_project_has_its_own_words():
    _, report = load(ROOT / "examples/config", "rlvr_config")
    assert report.words == {} and located(report, "exp_name", "x", "exp_name").message == "exp_name"
    assert load(ROOT / "tests/configs/roll_examples/rlvr", "multi_domain_megatron", compat=True)[1].words == {}


@pytest.mark.parametrize(
    ("value", "told"), [("batch", True), ("group", True), ("running", True), ("null", False), ("None", False)]
)
@pytest.mark.parametrize("compat", [True, False])
def test_a_run_says_that_it_normalises_rewards_where_roll_does_not(value, told, compat):
    overrides = [f"+reward_norm={value}", "adv_estimator=reinforce", "~num_return_sequences_in_group"]
    _, report = load(ROOT / "examples/config", "rlvr_embedded", overrides, compat=compat)
    assert any(note.key == "reward_norm" and "raw rewards" in note.message for note in report.told) == told


def test_who_never_saw_roll_is_told_nothing_of_its_meaning(tmp_path):
    text = (
        "pretrain: m\nsequence_length: 64\nrollout_batch_size: 8\nadv_estimator: grpo\nactor_train: {device_mapping: [0]}\n"
        "actor_infer: {device_mapping: [1]}\ncustom_envs: {t: {env_type: frozen_lake}}\ntrain_env_manager: {group_size: 2}\n"
    )
    (tmp_path / "mine.yaml").write_text(text)
    _, report = load(tmp_path, "mine")
    assert report.told == [] and report.summary == ""
    (tmp_path / "theirs.yaml").write_text(text + "save_logging_board_dir: logs\n")
    assert [note.key for note in load(tmp_path, "theirs")[1].told] == ["adv_estimator"]
