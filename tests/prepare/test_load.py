"""Files as ROLL's users write them (tests/configs/roll_examples: own text, real shapes), loaded strictly and with `compat`."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from roll.compat.roll.readings import DETECTION, ROWS
from roll.core.configs.agentic import AgenticConfig
from roll.core.configs.derived import derive
from roll.core.configs.plain import to_mapping
from roll.core.configs.problems import ConfigError
from roll.core.configs.rlvr import RLVRConfig
from roll.plan.rules.loading import load_config
from roll.plan.rules.validation import check_config
from roll.prepare.compose import load, load_to_start

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "config"
PURE = "on_policy_distillation"
ROLL = ROOT / "tests" / "configs" / "roll_examples"
RLVR = sorted((ROLL / "rlvr").glob("*.yaml"))
AGENTIC = sorted((ROLL / "agentic").glob("*.yaml"))
ENVIRONMENT = {"MODEL_PATH": "models/m", "RL_DATA": "data/d.jsonl", "WANDB_API_KEY": "secret"}
# Keys that ROLL does not know either: no dataclass has them, and nothing refers to them.
UNKNOWN_TO_BOTH = {"swe_agent": {"model_name"}, "public_training": {"max_actions_per_traj"}}


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


def name_of(path):
    return path.stem


def compat(path, *overrides):
    return load(path.parent, path.stem, overrides, compat=True)


def problems_of(*arguments, **options):
    with pytest.raises(ConfigError) as caught:
        load(*arguments, **options)
    return caught.value.problems


@pytest.mark.parametrize("path", RLVR + AGENTIC, ids=name_of)
def test_every_shape_of_rolls_files_loads_with_a_complete_report(path):
    config, report = compat(path)
    assert type(config) is (RLVRConfig if path in RLVR else AgenticConfig)
    assert {note.key for note in report.unknown} == UNKNOWN_TO_BOTH.get(path.stem, set())
    assert report.used > 25
    for note in [*report.aliased, *report.without_effect, *report.lacking, *report.unknown]:
        assert note.where.rpartition(":")[2].isdigit() and ".yaml:" in note.where, note
        assert len(note.message) > 3
    assert load_config(type(config), to_mapping(config)) == config


@pytest.mark.parametrize("path", RLVR + AGENTIC, ids=name_of)
def test_strictly_what_is_lacking_is_refused_and_nothing_else(path):
    _, report = compat(path)
    expected = {note.key for note in [*report.lacking, *report.unknown]}
    try:
        _, strict = load(path.parent, path.stem)
    except ConfigError as error:
        # A null that needs a value is one more problem to a strict loading.
        assert expected <= {problem.key for problem in error.problems}
        assert all(problem.where for problem in error.problems)
    else:
        assert expected == set()
        assert (strict.lacking, strict.unknown, strict.defaults) == ([], [], [])


def test_files_of_models_that_see_mean_what_they_mean_in_roll():
    (prompts, _), (agents, _) = (compat(ROLL / kind / "vision.yaml") for kind in ("rlvr", "agentic"))
    assert prompts.actor_train.model_args.freeze_vision and prompts.actor_train.data_args.images.max_pixels == 262144
    assert prompts.validation.data_args.images is not None and prompts.actor_train.data_args.template == "native"
    assert agents.actor_train.data_args.images is not None and not agents.actor_train.model_args.freeze_vision
    assert agents.custom_envs["Sokoban"].env_type == "sokoban_drawn"
    assert agents.custom_envs["Sokoban"].agent_template == "turn {turn_idx}{observation}"
    assert (prompts.actor_train.data_args.tag, prompts.validation.data_args.ground_truth) == tuple(ROWS.values())
    named = prompts.rewards["found"]
    assert named.worker_cls == DETECTION and named.reward_args == {"total_steps": 100}, "for a threshold that is dynamic"


@pytest.mark.parametrize("path", sorted((ROLL / "refused").glob("*.yaml")), ids=name_of)
@pytest.mark.parametrize("compat", [False, True])
def test_other_pipelines_are_refused_by_name(path, compat):
    (problem,) = problems_of(path.parent, path.stem, compat=compat)
    named = {"hearing": "models that hear", "self_distillation": "self-distillation"}
    assert named.get(path.stem, path.stem.replace("_", " ")) in problem.message
    assert problem.where.startswith(f"{path.name}:")


@pytest.mark.parametrize("kind", ["sft", "dpo"])
def test_rolls_files_of_rows_are_read(kind):
    assert load(ROLL / "rows", kind, compat=True)[0].kind == kind


def written(folder, text):
    (folder / "run.yaml").write_text(text)
    return folder, "run"


def test_rolls_on_policy_distillation_is_read_as_teachers():
    config, report = load(ROLL / "rlvr", "on_policy_distillation")
    assert (config.adv_estimator, config.actor_train.world_size, config.actor_infer.world_size) == (PURE, 4, 2)
    (teacher,) = config.teachers.values()
    assert (teacher.opd_kl_coef, teacher.tag_included, teacher.devices) == (0.5, ["math"], (6,))
    assert teacher.strategy_args.strategy_name == "fsdp2_infer" and teacher.model_args.attn_implementation == "sdpa"
    assert "teachers.math.infer_batch_size" in {note.key for note in report.without_effect} and report.lacking == []
    assert [problem.key for problem in check_config(config, 8)] == []


@pytest.mark.parametrize(
    "mixed", ["use_opd: true\nadv_estimator: grpo", "is_pure_opd: true\nadv_estimator: on_policy_distillation"]
)
def test_one_teacher_without_a_name_is_called_teacher(tmp_path, mixed):
    file = (
        f"{mixed}\nteacher: {{model_args: {{model_name_or_path: x/y}}, device_mapping: 1}}\nrewards: {{m: {{worker_cls: a.B}}}}\n"
    )
    config, report = load(*written(tmp_path, file))
    assert config.teachers["teacher"].devices == (1,) and report.lacking == []


@pytest.mark.parametrize(
    ("text", "key", "told"),
    [
        ("is_pure_opd: true\nadv_estimator: gae\n", "is_pure_opd", "adv_estimator says it here"),
        ("teacher: {device_mapping: 1}\n", "teacher", "it is `teachers` here"),
    ],
)
def test_what_of_distillation_would_mean_something_else_is_refused(tmp_path, text, key, told):
    problems = problems_of(*written(tmp_path, text + "rewards: {m: {worker_cls: a.B}}\n"))
    assert [told in str(problem) for problem in problems if problem.key == key] == [True]


def test_more_samples_in_an_optimiser_batch_than_episodes_in_a_step_keep_no_file_from_starting():
    """ROLL copies samples until the batch is full; turns make more samples than there are episodes."""
    config, report = compat(ROLL / "agentic" / "sokoban_native.yaml")
    assert report.lacking == report.unknown == [] and check_config(config, 24) == []
    derived = derive(config)
    assert (derived.samples_per_step, derived.optimizer_steps_per_epoch, derived.total_optimizer_steps) == (1024, 1, 102400)
    assert "a begun one included" in {note.key: note.message for note in report.differences}["batch_adjust_mode"]


def test_an_agentic_file_without_environments_is_agentic(tmp_path):
    config, _ = load(*written(tmp_path, "reward_normalization: {method: mean}\nrollout_batch_size: 16\n"), compat=True)
    assert type(config) is AgenticConfig


def test_rewards_and_environments_exclude_each_other(tmp_path):
    text = "rewards: {m: {worker_cls: a.B}}\ncustom_envs: {L: {env_type: frozen_lake}}\n"
    (problem,) = problems_of(*written(tmp_path, text))
    assert problem.where == "run.yaml:1" and "they exclude each other" in problem.message and "whiten" not in str(problem)


def test_what_roll_reads_is_lacking_and_what_nobody_reads_unknown(tmp_path):
    text = (
        "train_env_manager: {tags: [L]}\ncustom_envs:\n  L: {env_type: gem, user_prompt_format: x, else: 1}\nnobody: 1\n"
        "actor_train: {strategy_args: {strategy_name: megatron_train, strategy_config: {moe_aux_loss_coeff: 0.1, other: 1}}}\n"
    )
    _, report = load(*written(tmp_path, text), compat=True)
    config = "actor_train.strategy_args.strategy_config"
    assert {note.key for note in report.lacking} == {"custom_envs.L.user_prompt_format", f"{config}.moe_aux_loss_coeff"}
    told = {note.key: note.message for note in report.unknown}
    assert told["nobody"] == "neither ROLL nor this project has such a key"
    assert told.keys() == {"nobody", "custom_envs.L.else", f"{config}.other"}
    assert not any("remove" in message for message in told.values())


def test_an_option_of_another_back_end_is_told_as_such(tmp_path):
    """As where only `strategy_name` is overridden."""
    text = "actor_train: {strategy_args: {strategy_name: fsdp2_train, strategy_config: {tensor_model_parallel_size: 2}}}"
    (problem,) = problems_of(*written(tmp_path, text))
    assert problem.key.endswith("tensor_model_parallel_size")
    assert problem.fix == "remove it: an option of megatron_train, megatron_infer"
    _, report = load(*written(tmp_path, text), compat=True)
    assert report.unknown[0].message == f"unknown key; {problem.fix}"


def test_machines_are_counted_as_roll_does(tmp_path):
    roles = "actor_train: {device_mapping: 'list(range(0,16))'}\nactor_infer: {device_mapping: '16-23'}\n"
    config, report = load(*written(tmp_path, roles), compat=True)
    assert (config.num_nodes, config.num_gpus_per_node) == (3, 8)
    said = {note.key: note.message for note in report.aliased}
    assert said["actor_infer.device_mapping"] == "read as num_nodes: 3, of num_gpus_per_node: 8" and "num_gpus_per_node" in said
    config, _ = load(*written(tmp_path, "reference: {device_mapping: '0-15'}\n"), compat=True)
    assert config.num_nodes == 1, "a reference that is not started needs no machine"
    config, _ = load(*written(tmp_path, "actor_train: {device_mapping: '0-3'}\n"), compat=True)
    assert (config.num_nodes, config.num_gpus_per_node) == (1, None)


def test_what_an_asynchronous_file_of_roll_becomes():
    config, report = compat(ROLL / "rlvr" / "async_sglang.yaml")
    assert config.actor_train.devices == tuple(range(16))
    assert config.actor_infer.devices == tuple(range(16, 24))
    assert config.actor_infer.generating_args.max_new_tokens == config.response_length == 4096
    assert config.async_generation_ratio == 1.0
    assert config.actor_train.data_args.template == "native"
    assert config.rewards["math_rule"].world_size == 8
    ignored = {note.key: note.message for note in report.without_effect}
    assert "critic" in ignored["value_clip"]
    assert {"system_envs", "checkpoint_config", "logging_dir", "actor_infer.infer_batch_size"} <= ignored.keys()
    (told,) = [note for note in report.aliased if note.key == "actor_train.data_args.template"]
    assert (told.value, "tokenizer's own" in told.message) == ("qwen2_5", True)


@pytest.mark.parametrize("name", ["rlvr_config_async", "rlvr_ppo_critic", "agent_val_frozen_lake_async"])
def test_a_runs_own_config_is_read_as_it_stands(name, tmp_path):
    config, _ = load(EXAMPLES, name)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(to_mapping(config)))
    again, report = load(tmp_path, "config")
    assert again == config
    assert not [*report.aliased, *report.without_effect], "every key has the name that it has here"


def test_nodes_put_in_by_name_and_overridden_variables():
    config, report = compat(ROLL / "agentic" / "frozen_lake_async.yaml")
    lake = config.custom_envs["FrozenLake"]
    assert (lake.env_type, lake.max_tokens_per_step, lake.max_steps) == ("frozen_lake", 64, 10)
    assert lake.env_config["is_slippery"] is False
    symbols = config.custom_envs["SokobanOtherLetters"].env_config["grid_vocabulary"]
    assert symbols == {"wall": "W", "floor": ".", "target": "G"}
    assert lake.agent_system_template == "You play a game for a high reward.\n{instructions}"
    assert {"custom_env", "action_pattern", "max_actions_per_traj", "deepspeed_zero3", "single_prompt_template"} <= set(
        report.variables
    )
    assert config.reward_normalization.norm_std_type == "group"


def test_a_deepspeed_node_reaches_the_back_end():
    config, _ = compat(ROLL / "rlvr" / "lora_zero3.yaml")
    assert config.actor_train.strategy_args.strategy_config["zero_optimization"].stage == 3


def test_the_report_tells_defaults_that_are_not_rolls():
    _, report = compat(ROLL / "agentic" / "bridge_reinforce.yaml")
    told = {note.key: note for note in report.defaults}
    assert told["actor_infer.generating_args.top_p"].value == 1.0
    assert "0.7" in told["actor_infer.generating_args.top_p"].message
    assert "adv_estimator" not in told


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "common.yaml").write_text(
        "definitions:\n  a: 1\nmax_steeps: 3\nactor_train:\n  training_args:\n    learning_rate: fast\n"
    )
    (tmp_path / "run.yaml").write_text(
        "defaults:\n  - parts/common@_here_\n  - _self_\nresponse_length: 8\nname: x\nexp_name: ${name}-1\n"
        "actor_infer:\n  generating_args:\n    top_p: 7\nunused: 1\nrewards:\n  math:\n    worker_cls: a.B\n"
        "    tag_included: [1, t]\n"
    )
    return tmp_path


def test_problems_say_where_their_key_was_written(folder):
    found = {problem.key: problem.where for problem in problems_of(folder, "run", ["seed=x", "+pg_clip=0"])}
    assert found == {
        "max_steeps": "parts/common.yaml:3",
        "actor_train.training_args.learning_rate": "parts/common.yaml:6",
        "actor_infer.generating_args.top_p": "run.yaml:9",
        "rewards.math.tag_included[0]": "run.yaml:14",
        "unused": "run.yaml:10",
        "seed": "command line",
        "pg_clip": "command line",
    }
    assert str(problems_of(folder, "run")[0]).startswith("parts/common.yaml:")


def test_variables_are_told_from_typing_errors(folder):
    (folder / "parts" / "common.yaml").write_text("definitions: {a: 1}\nactor_trian: {pg_variant: tis}\n")
    (folder / "run.yaml").write_text(
        "defaults: [parts/common@_here_]\nresponse_length: 8\nname: x\nexp_name: ${name}-1\nunused: 1\n"
    )
    assert {problem.key for problem in problems_of(folder, "run")} == {"actor_trian", "unused"}
    _, report = load(folder, "run", compat=True)
    assert report.variables == ["definitions", "name"]
    assert {note.key for note in report.unknown} == {"actor_trian", "unused"}


def test_problems_found_later_can_be_located(folder):
    from roll.core.configs.problems import Problem

    (folder / "run.yaml").write_text("response_length: 8\nactor_train:\n  model_args:\n    flash_attn: fa2\n")
    _, report = load(folder, "run", ["actor_train.pg_variant=tis"])
    keys = ["actor_train.model_args.attn_implementation", "actor_train.pg_variant", "actor_train.device_mapping", "pretrain"]
    placed = report.located([Problem(key, 1, "is wrong") for key in keys])
    assert [problem.where for problem in placed] == ["run.yaml:4", "command line", "run.yaml:2", ""]


@pytest.mark.parametrize(
    ("overrides", "read"),
    [
        (["actor_train.model_args.flash_attn=fa2"], ("actor_train", "model_args", "attn_implementation", "sdpa")),
        (["+actor_infer.generating_args.top_k=-1"], ("actor_infer", "generating_args", "top_k", 0)),
        (["adv_estimator=reinforce", "reward_norm=batch"], ("norm_mean_type", "batch")),
        (["~validation"], ("validation", None)),
    ],
)
def test_rolls_names_work_on_the_command_line(overrides, read):
    config, _ = load(EXAMPLES, "rlvr_config", overrides)
    *path, expected = read
    for name in path:
        config = getattr(config, name)
    assert config == expected


def test_the_same_values_however_often_a_file_is_loaded():
    assert compat(RLVR[0]) == compat(RLVR[0])


def test_loading_and_checking_is_quick_and_imports_nothing_heavy():
    """At most 1.5 s, in processor time: what a busy machine adds by waiting is not the loader's."""
    code = (
        "import sys, json; from roll.prepare.compose import load; from roll.plan.rules.validation import check_config;"
        f"config, _ = load({str(ROLL / 'rlvr')!r}, 'multi_domain_megatron', compat=True); check_config(config, 16);"
        f"config, _ = load({str(ROLL / 'agentic')!r}, 'frozen_lake_async', compat=True); check_config(config, 8);"
        "heavy = ('torch', 'ray', 'vllm', 'transformers', 'deepspeed', 'megatron', 'numpy', 'gymnasium');"
        "print(json.dumps([name for name in heavy if name in sys.modules]))"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **ENVIRONMENT}, cwd=ROOT
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime <= 1.5


def test_a_file_that_loads_only_with_compat_is_one_clear_error_at_the_start():
    with pytest.raises(ConfigError) as caught:
        load_to_start(ROLL / "rlvr", "ppo_critic", compat=True)
    (problem,) = caught.value.problems
    assert "cannot start: rl_loss_coef needs what is not supported" in problem.message
    config, report = load_to_start(ROLL / "rlvr", "grpo_gspo", compat=True)
    assert config.actor_train.pg_variant == "gspo"
    assert report.summary.startswith(f"{report.used} keys used, {len(report.aliased)} read under another name")
    assert load_to_start(EXAMPLES, "rlvr_config")[1].summary == ""


def test_the_start_script_tells_where_a_problem_was_written(folder, capsys):
    from roll.cli.train import main

    (folder / "run.yaml").write_text("response_length: 8\nactor_train:\n  device_mapping: '0'\n")
    assert main(["--config_path", str(folder), "--config_name", "run", "--local"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert any(line.startswith("error: run.yaml:2: actor_train.data_args.file_name") for line in lines)
    assert main(["--config_path", str(ROLL / "rlvr"), "--config_name", "ppo_critic", "--compat"]) == 2
    assert capsys.readouterr().err.startswith("error: config_name = 'ppo_critic': loads, but cannot start")


def test_a_template_of_rolls_is_told_at_the_start_for_it_changes_what_is_trained():
    def told(name):
        _, report = load(EXAMPLES, "rlvr_config_async", [f"actor_train.data_args.template={name}"])
        return [note.message for note in report.told if note.key == "actor_train.data_args.template"]

    assert told("qwen2_5") == ["read as native: the tokenizer's own chat template, not ROLL's of that name"]
    assert told("native") == []
