"""Slips of a key's value that are told in the words of their cause."""

import pytest
import yaml

from roll.core.configs.problems import Collector, ConfigError
from roll.core.configs.sizes import compact, counted
from roll.plan.rules.doubts import doubts
from roll.plan.rules.validation import check_config
from roll.prepare.compose import load

BASE = """
pretrain: m
max_steps: 4
rollout_batch_size: 4
num_return_sequences_in_group: 2
prompt_length: 8
response_length: 8
adv_estimator: reinforce
actor_train:
  device_mapping: [0]
  training_args: {per_device_train_batch_size: 8}
  data_args: {file_name: t.jsonl, template: none}
actor_infer: {device_mapping: [1]}
rewards: {d: {worker_cls: a.reward}}
validation: {data_args: {file_name: v.jsonl, template: none}}
"""


@pytest.fixture
def loaded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def load_with(*overrides, text=BASE):
        (tmp_path / "run.yaml").write_text(text)
        return load(tmp_path, "run", overrides)[0]

    return load_with


@pytest.mark.parametrize("files", [["v.jsonl", "v.jsonl"], ["v.jsonl", "./v.jsonl"], ["v.jsonl", "w.jsonl", "a/../v.jsonl"]])
def test_a_validation_that_names_a_file_twice_is_refused(loaded, files):
    config = loaded(f"validation.data_args.file_name={yaml.safe_dump(files, default_flow_style=True).strip()}")
    (problem,) = check_config(config, 2)
    assert (
        problem.key == "validation.data_args.file_name"
        and "twice" in problem.message
        and problem.fix.startswith("name each once: [")
    )


def test_further_sets_are_looked_at_and_training_files_are_doubted(loaded):
    more = "validation_sets={more: {data_args: {file_name: [a.jsonl, a.jsonl], template: none}}}"
    assert [problem.key for problem in check_config(loaded(more), 2)] == ["validation_sets.more.data_args.file_name"]
    config = loaded("actor_train.data_args.file_name=[t.jsonl, t.jsonl]")
    assert check_config(config, 2) == [] and any("come twice as often" in str(note) for note in doubts(config))
    assert not any("twice" in str(note) for note in doubts(loaded("actor_train.data_args.file_name=[t.jsonl, u.jsonl]")))


@pytest.mark.parametrize(
    "key", ["exp_name", "output_dir", "pretrain", "actor_train.data_args.file_name", "resume_from_checkpoint"]
)
def test_a_nul_in_a_path_is_refused(loaded, key):
    *blocks, last = key.split(".")
    mapping = yaml.safe_load(BASE)
    block = mapping
    for name in blocks:
        block = block[name]
    block[last] = "a\0b"
    with pytest.raises(ConfigError, match="has a NUL character") as caught:
        loaded(text=yaml.safe_dump(mapping))
    assert caught.value.problems[0].key == key


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: !!set {x, y}", "!!set is no type that a configuration has"),
        ("a: !!timestamp 2020-01-01", "!!timestamp is no type"),
        ("a: !!binary aGk=", "!!binary is no type"),
        ("a: !!omap [x: 1]", "!!omap is no type"),
        ("a: [1, !mine x]", "the tag !mine is not read"),
        ("a: !!python/object:os.system {}", "!!python/object:os.system is no type"),
        ("a:\n\tb: 1", "is indented by a tab"),
        ("a: {b: 1,\n\tc: 2}", "is indented by a tab"),
        ("a:\n  - b\n\t- c", "tab"),
    ],
)
def test_what_yaml_has_and_a_configuration_has_not_is_named(loaded, text, told):
    with pytest.raises(ConfigError) as caught:
        loaded(text=f"{BASE}{text}\n")
    assert told in str(caught.value)


def test_types_that_a_configuration_has_may_be_written_out(loaded):
    assert loaded(text=BASE.replace("max_steps: 4", "max_steps: !!int 4\nexp_name: !!str 5")).exp_name == "5"


@pytest.mark.parametrize(("steps", "saves"), [(0, [4]), (2, [2, 4]), (3, [3, 4])])
def test_no_checkpoint_but_the_last_is_a_choice(loaded, steps, saves):
    from roll.core.groups.schedule import StepSchedule

    config = loaded(f"save_steps={steps}")
    assert check_config(config, 2) == []
    schedule = StepSchedule(last_step=config.max_steps, save_every=config.save_steps)
    assert [step for step in range(1, 5) if schedule.saves(step)] == saves


@pytest.mark.parametrize(
    ("value", "shown"), [(0.25, "0.250"), (-3.0, "-3.000"), (123456.0, "123456.000"), (1e30, "1e+30"), (-2.65625e29, "-2.66e+29")]
)
def test_numbers_that_nobody_would_read_are_short(value, shown):
    assert compact(value) == shown


def test_one_is_no_plural():
    assert [counted(count, "problem") for count in (0, 1, 2, 1000)] == ["0 problems", "1 problem", "2 problems", "1,000 problems"]


def test_a_path_is_said_once(tmp_path):
    def fail():
        raise ValueError(f"{tmp_path}/p.jsonl:1025: not valid JSON")

    collect = Collector()
    collect("actor_train.data_args.file_name", f"{tmp_path}/p.jsonl", fail, "")
    with pytest.raises(ConfigError) as caught:
        collect.raise_if_any()
    assert caught.value.problems[0].message == "line 1025: not valid JSON"
