"""What ROLL's guide to asynchronous training prints, given to the scripts that it names."""

import re
from pathlib import Path

import pytest

from roll.cli import check, train
from roll.core.configs.agentic import AgenticConfig
from roll.core.configs.arguments import StrategyArguments
from roll.core.configs.problems import ConfigError
from roll.core.configs.rlvr import RLVRConfig
from roll.core.distributed.machine import Machine
from roll.prepare.compose import load
from roll.strategies.infer.installed_engine import engine_problems, engine_remarks
from roll.strategies.infer.sglang import arguments as sglang_arguments

BOTH = """
async_generation_ratio: 1
pretrain: Qwen/Qwen2.5-0.5B-Instruct
actor_train:
  device_mapping: list(range(0,4))
"""
AGENTIC = f"""{BOTH}
  training_args: {{gradient_accumulation_steps: 128, per_device_train_batch_size: 2}}
rollout_batch_size: 1024
sequence_length: 8192
adv_estimator: "grpo"
train_env_manager: {{group_size: 8}}
actor_infer:
  strategy_args:
    strategy_name: vllm
    strategy_config: {{gpu_memory_utilization: 0.8, block_size: 16, load_format: auto}}
  device_mapping: list(range(4,8))
"""
NO_KEY_OF_ITS_OWN = AGENTIC.replace("train_env_manager: {group_size: 8}\n", "")
RLVR = f"""{BOTH}
  data_args:
    file_name: [data/math_deepmath_deal.jsonl]
actor_infer:
  model_args:
    dtype: fp16
  strategy_args:
    strategy_name: sglang
    strategy_config: {{mem_fraction_static: 0.85, load_format: dummy}}
  device_mapping: list(range(4,8))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in {"agentic": AGENTIC, "open": NO_KEY_OF_ITS_OWN, "rlvr": RLVR}.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def start(pipeline: str, name: str) -> int:
    """As `python examples/start_<pipeline>_pipeline.py --config_path . --config_name NAME`."""
    arguments = ["--config_path", ".", "--config_name", name, "num_gpus_per_node=8"]
    return train.main(
        ["agentic", *arguments] if pipeline == "agentic" else arguments, prog=f"python start_{pipeline}_pipeline.py"
    )


def test_the_pipeline_that_was_started_decides_where_no_key_does(folder, capsys):
    assert isinstance(load(".", "open", pipeline="agentic")[0], AgenticConfig)
    assert isinstance(load(".", "open")[0], AgenticConfig), "one length, and neither prompts nor rewards"
    assert isinstance(load(".", "open", pipeline="rlvr")[0], RLVRConfig), "who names one has it"
    assert start("agentic", "open") == 2
    told = capsys.readouterr().err
    assert "custom_envs = (missing): has no environment" in told and "rlvr pipeline" not in told


@pytest.mark.parametrize(("started", "name", "is_for"), [("agentic", "rlvr", "rlvr"), ("rlvr", "agentic", "agentic")])
def test_keys_of_the_other_pipeline_are_told(folder, started, name, is_for, capsys):
    assert start(started, name) == 2
    assert f"config_name = '{name}': is the configuration of the {is_for} pipeline" in capsys.readouterr().err


def test_check_takes_the_pipeline_too(folder, capsys):
    given = ["--config_path", ".", "--config_name", "open", "num_gpus_per_node=8"]
    assert check.main(["agentic", *given]) == 1 and "custom_envs = (missing)" in capsys.readouterr().err
    assert check.main(given) == 1 and "custom_envs = (missing)" in capsys.readouterr().err
    assert check.main(["rlvr", *given]) == 1 and "rewards = (missing)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("written", "kind"),
    [
        ("sequence_length: 64", AgenticConfig),
        ("max_tokens_per_step: 8", AgenticConfig),
        ("episode_reward_weight: 0.5\nsequence_length: 64", AgenticConfig),
        ("sequence_length: 64\nprompt_length: 32", RLVRConfig),
        ("response_length: 64", RLVRConfig),
        ("total_epochs: 1", RLVRConfig),
        ("max_steps: 4", RLVRConfig),
    ],
)
def test_where_neither_prompts_nor_environments_are_written_lengths_tell_the_kind(folder, written, kind):
    Path("part.yaml").write_text(
        f"pretrain: m\nactor_train: {{device_mapping: [0]}}\nactor_infer: {{device_mapping: [1]}}\n{written}\n"
    )
    assert isinstance(load(".", "part")[0], kind)


@pytest.mark.parametrize(
    ("name", "key", "told"),
    [
        (
            "rlvr",
            "env_type=frozen_lake",
            "env_type = 'frozen_lake': unknown key; fix: it belongs to agentic runs: custom_envs.<tag>.env_type",
        ),
        ("rlvr", "max_tokens_per_step=8", "max_tokens_per_step = 8: unknown key; fix: it belongs to agentic runs"),
        ("agentic", "rollout={function: a.b}", "rollout = {'function': 'a.b'}: unknown key; fix: it belongs to RLVR runs"),
        ("agentic", "total_epochs=2", "total_epochs = 2: unknown key; fix: it belongs to RLVR runs"),
        ("rlvr", "nonsense_of_mine=2", "nonsense_of_mine = 2: unknown key; fix: remove it"),
    ],
)
def test_a_key_of_the_other_kind_of_runs_is_told_as_such(folder, name, key, told):
    with pytest.raises(ConfigError) as caught:
        load(".", name, [f"+{key}"])
    assert told in str(caught.value)


def test_the_start_says_what_changes_the_training(folder, capsys):
    """Not only how many keys are read otherwise."""
    start("agentic", "agentic")
    told = r"! agentic.yaml:\d+: adv_estimator = 'grpo': with --compat it has ROLL's meaning: "
    assert re.search(told, capsys.readouterr().out)
    start("rlvr", "rlvr")
    assert re.search(r"! rlvr.yaml:\d+: actor_infer.model_args.dtype = 'fp16': read as bf16", capsys.readouterr().out)


def test_compat_says_what_the_estimator_became(folder, capsys):
    _, report = load(".", "agentic", compat=True)
    (note,) = report.told
    assert note.key == "adv_estimator" and note.message.startswith("read as reinforce")
    assert load(".", "rlvr", ["actor_infer.model_args.dtype=bf16"])[1].told == []


@pytest.mark.parametrize(("accelerators", "told"), [((), True), ((80 << 30,) * 8, False)])
def test_vllms_blocks_on_a_cpu_are_told_by_check_and_at_the_start(folder, accelerators, told):
    environments = "custom_envs={lake: {env_type: frozen_lake}}"
    config, _ = load(".", "agentic", [environments, "num_gpus_per_node=8"])
    remarks = check.check(config, Machine(8, 64 << 30, accelerators)).remarks
    said = "actor_infer.strategy_args.strategy_config.block_size = 16: read as 32: on a CPU vLLM keeps tokens in blocks of a "
    assert any(line.startswith(said) for line in remarks) == told


def an_interpreter(path: Path) -> Path:
    path.parent.mkdir(parents=True)
    path.touch(mode=0o755)
    return path


def test_sglangs_interpreter_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SGLANG_PYTHON", raising=False)
    monkeypatch.setattr(sglang_arguments, "__file__", str(tmp_path / "nowhere/a/b/c/d/arguments.py"))
    chosen = StrategyArguments(strategy_name="sglang", strategy_config={"mem_fraction_static": 0.85})
    (problem,) = engine_problems("key", chosen)
    assert (problem.key, problem.value) == ("key.strategy_config.python", "(missing)")
    assert "no ./.venv-sglang/bin/python" in problem.message and "SGLANG_PYTHON" in problem.fix
    usual, other = an_interpreter(tmp_path / ".venv-sglang/bin/python"), an_interpreter(tmp_path / "other/python")
    assert list(engine_remarks("key", chosen, False)) == [f"key: SGLang runs from {usual}"]
    monkeypatch.setenv("SGLANG_PYTHON", str(other))
    assert sglang_arguments.interpreter(None) == str(other)
    assert sglang_arguments.interpreter("named/python") == "named/python"
    (problem,) = engine_problems("key", chosen)
    assert str(other) in problem.message, "what was found is what is inspected"
