"""Relative paths lead to the folder where the run was started, also for processes that stand elsewhere."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from roll.core.configs.agentic import AgenticConfig
from roll.core.configs.fields import walk
from roll.core.configs.plain import to_mapping
from roll.core.configs.rlvr import RLVRConfig
from roll.plan.rules.loading import load_config
from roll.prepare.compose import load
from roll.prompts.paths import ABSOLUTE, absolute, as_written

CONFIGS = Path(__file__).parents[2] / "examples" / "config"


def rlvr(**keys) -> RLVRConfig:
    return load_config(RLVRConfig, keys)


def test_every_path_of_a_configuration_becomes_absolute_and_nothing_else_changes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sets" / "own").mkdir(parents=True)
    there = str(tmp_path)
    config = rlvr(
        output_dir="./output",
        pretrain="../models/a/b",
        exp_name="a/b",
        groups_database="sqlite:///gsm8k.db",
        resume_from_checkpoint="old/checkpoints/step-4",
        bench_checkpoints=["pretrain", "output/run"],
        actor_train={"data_args": {"file_name": ["a.jsonl", "/b.jsonl"]}},
        actor_infer={"strategy_args": {"strategy_name": "vllm", "strategy_config": {"python": ".venv-vllm/bin/python"}}},
        reference={"model_args": {"model_name_or_path": "./models/base"}},
        validation={"data_args": {"path": "sets/own"}},
        validation_sets={"more": {"data_args": {"path": "owner/gsm8k"}}},
        rewards={
            "math": {
                "worker_cls": "my.Reward",
                "judge": {"model_name_or_path": "judges/a/1", "device_mapping": 0},
                "reward_args": {"table": "table.json"},
            }
        },
    )
    made = absolute(config)
    assert made == replace(
        config,
        output_dir=f"{there}/output",
        pretrain=f"{there}/../models/a/b",
        groups_database=f"sqlite:///{there}/gsm8k.db",
        resume_from_checkpoint=f"{there}/old/checkpoints/step-4",
        bench_checkpoints=["pretrain", f"{there}/output/run"],
        actor_train=replace(
            config.actor_train, data_args=replace(config.actor_train.data_args, file_name=[f"{there}/a.jsonl", "/b.jsonl"])
        ),
        actor_infer=replace(
            config.actor_infer,
            strategy_args=replace(config.actor_infer.strategy_args, strategy_config={"python": f"{there}/.venv-vllm/bin/python"}),
        ),
        reference=replace(
            config.reference, model_args=replace(config.reference.model_args, model_name_or_path=f"{there}/models/base")
        ),
        validation=replace(config.validation, data_args=replace(config.validation.data_args, path=f"{there}/sets/own")),
        rewards={
            "math": replace(
                config.rewards["math"],
                judge=replace(config.rewards["math"].judge, model_name_or_path=f"{there}/judges/a/1"),
            )
        },
    )
    assert absolute(made) is made, "what is absolute stays"
    monkeypatch.chdir("/")
    assert absolute(made) == made


def test_names_of_the_hub_and_words_are_no_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = rlvr(pretrain="Qwen/Qwen2.5-0.5B@main", resume_from_checkpoint="auto", groups_database="postgresql+psycopg://u@h/n")
    config = replace(config, output_dir="/o")
    assert absolute(config) == config
    (tmp_path / "Qwen" / "mine").mkdir(parents=True)
    assert absolute(rlvr(pretrain="Qwen/mine")).pretrain == f"{tmp_path}/Qwen/mine", "a folder of that name comes first"


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ("sqlite:///a/b.db?timeout=5", "sqlite:///{here}/a/b.db?timeout=5"),
        ("sqlite+pysqlite:///b.db", "sqlite+pysqlite:///{here}/b.db"),
        ("sqlite:////b.db", "sqlite:////b.db"),
        ("sqlite:///:memory:", "sqlite:///:memory:"),
        ("sqlite://", "sqlite://"),
        (None, None),
    ],
)
def test_addresses_of_databases(given, made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert ABSOLUTE["database"](given) == (made and made.format(here=tmp_path))


def test_an_interpreter_without_a_folder_is_looked_for_on_the_path():
    assert ABSOLUTE["options of an engine"]({"python": "python3.11"}) == {"python": "python3.11"}


def test_the_record_has_what_was_written_and_what_the_run_made_of_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written = rlvr(pretrain="models/a/b", total_epochs=2, output_dir="out")
    resolved = absolute(written)
    settled = replace(resolved, max_steps=7, total_epochs=None, output_dir="/fetched")
    record = as_written(*map(to_mapping, (settled, resolved, written)))
    assert record == to_mapping(replace(written, max_steps=7, total_epochs=None, output_dir="/fetched"))


@pytest.mark.parametrize("cls", [RLVRConfig, AgenticConfig])
def test_a_field_that_names_a_file_or_folder_says_how_its_paths_become_absolute(cls):
    """A new one that is forgotten breaks runs in a cluster."""
    words = ("folder", "file or files", "a path", "sqlite")
    paths = {path for path, item, _ in walk(cls) if any(word in item.metadata["help"].lower() for word in words)}
    exempt = {"exp_name", "mode", "weights_address", "model_update_transport", "audit", "custom_envs.<name>.program.isolated"}
    said = {path for path, item, _ in walk(cls) if "path" in item.metadata}
    assert {path for path in paths - said if path not in exempt} == set()
    assert {path.rpartition(".")[2] for path in said} >= {"output_dir", "pretrain", "file_name", "groups_database"}


def test_the_examples_lead_to_the_folder_where_they_are_started(tmp_path, monkeypatch):
    shutil.copytree(CONFIGS, tmp_path / "config")
    monkeypatch.chdir(tmp_path)
    config = absolute(load("config", "rlvr_config_async")[0])
    assert config.pretrain == f"{tmp_path}/examples/embedded/cache/model" and config.run_dir.startswith(f"{tmp_path}/output/")
    assert all(Path(file).is_absolute() for file in config.actor_train.data_args.files)


def test_a_path_from_home_is_found_there_and_a_text_that_looks_like_one_is_left(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    data = ["actor_train.data_args.file_name=['~/a.jsonl',b.jsonl]", "+actor_train.data_args.system_prompt='~/ is home'"]
    config, _ = load(CONFIGS, "rlvr_config_async", ["pretrain='~/models/m'", "output_dir='~/runs'", *data])
    assert (config.pretrain, config.output_dir) == ("/home/me/models/m", "/home/me/runs")
    read = config.actor_train.data_args
    assert (read.file_name, read.system_prompt) == (["/home/me/a.jsonl", "b.jsonl"], "~/ is home")
