from pathlib import Path

import pytest

from roll.core.configs.derived import derive
from roll.core.configs.problems import ConfigError
from roll.core.configs.rlvr import RLVRConfig
from roll.plan.rules.loading import load_config
from roll.plan.rules.validation import check_config
from roll.prepare.compose import compose, load, to_mapping

EXAMPLES = Path(__file__).parents[2] / "examples" / "config"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "common.yaml").write_text("n: 8\nblock: {kept: 1, changed: 1}\n")
    (tmp_path / "run.yaml").write_text(
        "defaults: [common@_here_, _self_]\n"
        "hydra: {run: {dir: .}, output_subdir: null}\n"
        "block: {changed: 2}\ncopy: ${n}\nmissing_ok: null\n"
    )
    return tmp_path


def problem_of(call, *arguments):
    with pytest.raises(ConfigError) as caught:
        call(*arguments)
    (problem,) = caught.value.problems
    return problem


def test_defaults_and_references_are_resolved_and_hydra_leaves_nothing_behind(folder):
    expected = {"n": 8, "block": {"kept": 1, "changed": 2}, "copy": 8, "missing_ok": None}
    assert compose(folder, "run") == expected
    assert compose(str(folder), "run.yaml") == expected


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("n=3", "copy", 3),
        ("new=1e-6", "new", 1e-6),
        ("+new=true", "new", True),
        ("++n=4", "n", 4),
        ("new=text", "new", "text"),
        ("new=", "new", ""),
        ("new=[0,1]", "new", [0, 1]),
        ("new={a: 1}", "new", {"a": 1}),
        ("new=0-3,6", "new", "0-3,6"),
        ("new=list(range(0,4))", "new", "list(range(0,4))"),
        ("new=it's, (odd", "new", "it's, (odd"),
        ("new='quoted, text'", "new", "quoted, text"),
        ("new=${n}", "new", 8),
        ("missing_ok=5", "missing_ok", 5),
        ("deep.er.key=5", "deep", {"er": {"key": 5}}),
        ("block.changed=9", "block", {"kept": 1, "changed": 9}),
    ],
)
def test_overrides(folder, override, key, value):
    assert compose(folder, "run", [override])[key] == value


def test_a_key_can_be_deleted(folder):
    assert "block" not in compose(folder, "run", ["~block"])


def test_config_groups_are_chosen_by_name(folder):
    (folder / "size").mkdir()
    (folder / "size" / "small.yaml").write_text("width: 1\n")
    (folder / "size" / "large.yaml").write_text("width: 9\n")
    (folder / "grouped.yaml").write_text("defaults: [{size: small}, _self_]\n")
    assert compose(folder, "grouped") == {"size": {"width": 1}}
    assert compose(folder, "grouped", ["size=large"]) == {"size": {"width": 9}}


def test_a_missing_config_lists_those_that_exist(folder):
    problem = problem_of(compose, folder, "rnu")
    assert problem.value == "rnu"
    assert "common, run" in problem.fix
    assert "no YAML files" in problem_of(compose, folder / "nowhere", "run").fix


def test_a_config_that_stands_in_the_current_folder_is_named_as_it_has_to_be_called(folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "examples").mkdir()
    assert problem_of(compose, folder / "examples", "run").fix == "--config_path . --config_name run"


@pytest.mark.parametrize("override", ["n", "", "=3", "--flag", "n:3"])
def test_an_override_that_cannot_be_read(folder, override):
    problem = problem_of(compose, folder, "run", [override])
    assert (problem.key, problem.value) == ("override", override)
    assert "key=value" in problem.fix


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: ${nothing}\n", "nothing"),
        ("a: ???\n", "a"),
        ("a: [1\n", "run"),
        ("defaults: [absent@_here_]\n", "absent"),
        ("- 1\n", "is a list, not a mapping; fix: a key and its value a line"),
        ("max_steps 4\n", "is a text, not a mapping; fix: a key and its value a line"),
    ],
)
def test_a_broken_file_is_one_clear_problem(tmp_path, text, reason):
    (tmp_path / "run.yaml").write_text(text)
    problem = problem_of(compose, tmp_path, "run")
    assert reason in str(problem)
    assert "\n" not in str(problem)


def test_deleting_what_is_not_there_is_a_problem(folder):
    assert "absent" in str(problem_of(compose, folder, "run", ["~absent"]))


@pytest.mark.parametrize(("name", "ratio", "overlap"), [("rlvr_config", 0, True), ("rlvr_config_async", 1, False)])
def test_the_examples_run_on_two_devices(name, ratio, overlap):
    config, _ = load(EXAMPLES, name)
    assert check_config(config, device_count=2) == []
    assert config.async_generation_ratio == ratio
    assert bool(set(config.actor_train.devices) & set(config.actor_infer.devices)) == overlap
    assert derive(config).staleness_bound == ratio
    assert load_config(RLVRConfig, to_mapping(config)) == config


@pytest.mark.parametrize("variant", ["vanilla", "ppo", "tis", "topr", "cispo", "kimi15"])
@pytest.mark.parametrize("ratio", [0, 0.5, 1, 2, 4])
def test_variant_and_ratio_are_switched_on_the_command_line(variant, ratio):
    overrides = [f"actor_train.pg_variant={variant}", f"async_generation_ratio={ratio}"]
    config, _ = load(EXAMPLES, "rlvr_config_async", overrides)
    assert check_config(config, device_count=2) == []
    assert (config.actor_train.pg_variant, config.async_generation_ratio) == (variant, ratio)


def test_a_misspelt_override_names_the_right_key():
    problem = problem_of(load, EXAMPLES, "rlvr_config", ["actor_train.pg_varient=tis"])
    assert (problem.key, problem.fix, problem.where) == ("actor_train.pg_varient", "did you mean pg_variant?", "command line")
