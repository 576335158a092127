"""Bad input, through the real command line: one clear line that names key, value and fix; exit code 2; no worker starts."""

from __future__ import annotations

import io
import json
import os
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from roll.cli.train import main
from roll.platform.local_backend import LocalBackend


@pytest.fixture
def refused(world, tmp_path, capsys, monkeypatch):
    """Runs the command line with overrides; returns the one line it must answer with."""

    async def start(self, spec):
        raise AssertionError(f"worker {spec.name} was started")

    monkeypatch.setattr(LocalBackend, "start", start)
    monkeypatch.syspath_prepend(str(world.workers))

    def run(*overrides: str) -> str:
        given = list(overrides)
        if not any(override.startswith("output_dir=") for override in given):
            given.append(f"output_dir={tmp_path / 'output'}")
        code = main(["--local", *world.arguments(*given)])
        out, err = capsys.readouterr()
        assert code == 2, err
        assert "starting actor_train" not in out
        assert "Traceback" not in out + err
        lines = err.splitlines()
        assert len(lines) == 1 and lines[0].startswith("error: "), err
        print(lines[0])
        return lines[0]

    return run


def copy_model(world, to: Path, *without: str) -> Path:
    shutil.copytree(world.folder / "model", to, ignore=shutil.ignore_patterns(*without))
    return to


def prompts(path: Path, *rows: object) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


GOOD = {"id": "a", "tag": "even", "prompt": "1+1=", "ground_truth": "2"}

KEYS = {
    "rollout_batchsize=4": ["rollout_batchsize", "unknown key", "did you mean rollout_batch_size?"],
    "actor_train.training_args.lr=1": ["actor_train.training_args.lr", "unknown key", "fix:"],
    "max_steps=ten": ["max_steps", "'ten'", "an integer"],
    "actor_train.pg_variant=pop": ["actor_train.pg_variant", "'pop'", "did you mean ppo?"],
    "actor_infer.device_mapping='7'": ["actor_infer.device_mapping", "'7'", "no device 7", "fix:"],
    "rollout_batch_size=5": ["rollout_batch_size = 5", "20 samples", "fix: rollout_batch_size 4 or 8"],
    "actor_train.data_args.file_name=/no/such.jsonl": ["actor_train.data_args.file_name", "/no/such.jsonl", "fix:"],
    "pretrain=/no/such/model": ["pretrain", "/no/such/model", "does not exist", "fix:"],
    f"pretrain={__file__}": ["pretrain", "is a file: name the folder that it is in", "fix:"],
    "+actor_train.model_args.lora_rank=4": ["lora_rank = 4", "has no effect without lora_target", "fix: lora_target: all-linear"],
    "rewards.even.worker_cls=no.such.Worker": [
        "rewards.even.worker_cls",
        "no.such.Worker",
        "No module named 'no'",
        "looked for in ",
        "fix:",
    ],
    "rewards.even.worker_cls=fault_workers.Nobody": ["no attribute 'Nobody'", "it has ", "EvenRewardWorker", "fix:"],
    "output_dir=/proc/x": ["output_dir", "/proc/x", "cannot be written", "fix:"],
    "+train_batch_size=4": ["train_batch_size", "unknown key", "fix: here it is rollout_batch_size for the prompts of a step"],
    "+num_generations=4": ["num_generations", "unknown key", "fix: here it is num_return_sequences_in_group"],
    "actor_train.worker_cls=roll.pipeline.Nobody": ["actor_train.worker_cls", "there is no Nobody", "write the dotted path"],
    "resume_from_checkpoint=true": ["resume_from_checkpoint", "True", "no complete checkpoint", "auto"],
    "resume_from_checkpoint=/no/such": ["resume_from_checkpoint", "/no/such", "no such folder", "fix:"],
    "track_with=swanlab": ["track_with", "swanlab", "pip install swanlab"],
    "--lokal": ["--lokal", "unknown option", "did you mean --local?"],
    "-q": ["-q", "unknown option", "key=value"],
    "--config_name=nosuch": ["config_name", "nosuch", "choose one of ", "run"],
    "max_steps": ["max_steps", "key=value"],
    "mine/run.yaml": ["mine/run.yaml", "fix: --config_path mine --config_name run"],
    "--config=run.yaml": ["--config", "unknown option", "fix: --config_path FOLDER --config_name NAME"],
}


@pytest.mark.parametrize(("override", "parts"), KEYS.items(), ids=KEYS.keys())
def test_one_line_names_key_value_and_fix(refused, override, parts):
    line = refused(override)
    assert all(part in line for part in parts), line


def test_two_training_devices_need_ray(refused):
    line = refused("actor_train.device_mapping='0,1'", "actor_train.training_args.per_device_train_batch_size=8")
    assert "actor_train.device_mapping" in line and "'0,1'" in line and "--local" in line and "fix:" in line


@pytest.mark.parametrize(
    ("second", "parts"),
    [
        pytest.param('{"id": "b", "tag"', ["not valid JSON"], id="broken-json"),
        pytest.param(GOOD | {"id": "b", "tag": "odd"}, ["'odd'", "known: even"], id="unknown-tag"),
        pytest.param({"id": "b", "tag": "even", "ground_truth": "2"}, ["'prompt'"], id="no-prompt"),
        pytest.param(GOOD, ["'a'"], id="same-id"),
        pytest.param([1, 2], ["list", "JSON object"], id="no-object"),
        pytest.param(GOOD | {"id": "x\ud800"}, ["'id'", "lone surrogate \\ud800"], id="half-a-character"),
        pytest.param(GOOD | {"id": "b", "ground_truth": "\udfff"}, ["'ground_truth'", "lone surrogate"], id="half-a-truth"),
        pytest.param('{"a":' * 200_000, ["nested too deep"], id="no-end"),
    ],
)
def test_bad_row_is_named_by_file_and_line(refused, tmp_path, second, parts):
    path = prompts(tmp_path / "bad.jsonl", GOOD, second)
    line = refused(f"actor_train.data_args.file_name={path}")
    assert "actor_train.data_args.file_name" in line and f"{path.name}': line 2: " in line
    assert all(part in line for part in parts), line


def test_prompts_that_are_all_too_long(refused, tmp_path):
    path = prompts(tmp_path / "long.jsonl", GOOD | {"prompt": "1" * 9}, GOOD | {"id": "b", "prompt": "2" * 10})
    line = refused(f"actor_train.data_args.file_name={path}")
    assert "actor_train.data_args.file_name" in line and "2 too long (prompt_length is 8, " in line and "would do)" in line


def test_validation_prompts_that_are_all_too_long(refused, tmp_path):
    path = prompts(tmp_path / "long.jsonl", GOOD | {"prompt": "1" * 9})
    line = refused(f"validation.data_args.file_name={path}")
    assert "validation.data_args.file_name" in line and "prompt_length is 8, 9 would do" in line


@pytest.mark.parametrize(
    ("without", "part"),
    [("tokenizer*", "tokenizer"), ("*.safetensors", "safetensors"), ("config.json", "config.json")],
    ids=["tokenizer", "weights", "config"],
)
def test_incomplete_model_folder(refused, world, tmp_path, without, part):
    folder = copy_model(world, tmp_path / "model", without)
    line = refused(f"pretrain={folder}")
    assert "pretrain" in line and str(folder) in line and part in line and "fix:" in line


def test_broken_tokenizer_file(refused, world, tmp_path):
    folder = copy_model(world, tmp_path / "model")
    (folder / "tokenizer.json").write_text("{")
    line = refused(f"pretrain={folder}")
    assert "pretrain" in line and "tokenizer" in line


@pytest.mark.parametrize(
    "said",
    [
        {"quantization_config": {"quant_method": "awq", "bits": 4}},
        {"text_config": {"quantization_config": {"quant_method": "fp8"}}},
        {"compression_config": {"format": "pack-quantized"}},
    ],
)
def test_a_quantised_model(refused, world, tmp_path, said):
    folder = copy_model(world, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | said))
    line = refused(f"pretrain={folder}")
    assert "pretrain" in line and "quantised weights cannot be trained" in line and "not quantised" in line.partition("fix:")[2]


@pytest.mark.parametrize("role", ["actor_train", "actor_infer"])
def test_model_folder_of_a_role(refused, world, tmp_path, role):
    folder = copy_model(world, tmp_path / "model", "*.safetensors")
    line = refused(f"{role}.model_args.model_name_or_path={folder}")
    assert f"{role}.model_args.model_name_or_path" in line and str(folder) in line and "safetensors" in line


def test_a_folder_as_prompt_file_is_told_the_files_in_it(refused, tmp_path):
    prompts(tmp_path / "mine.jsonl", GOOD)
    (tmp_path / "picture.png").touch()
    line = refused(f"actor_train.data_args.file_name={tmp_path}")
    assert "actor_train.data_args.file_name" in line and "it is a folder; name files of it: mine.jsonl;" in line


def test_a_reward_that_lies_one_folder_nearer_is_named(refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "reward.py").write_text("def mine(sample): return 1.0")
    line = refused("rewards.even.worker_cls=rewards.reward.mine")
    assert "No module named 'rewards'" in line and str(tmp_path) in line and "reward is there: write reward.mine;" in line


def test_a_package_that_a_reward_lacks_is_told_as_such(refused, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "needs_more.py").write_text("import no_such_package\ndef mine(sample): return 1.0")
    assert "No module named 'no_such_package', which needs_more imports" in refused("rewards.even.worker_cls=needs_more.mine")


def test_lora_without_its_package_is_refused_before_a_worker_starts(refused, monkeypatch):
    monkeypatch.setattr("roll.strategies.installed_backend.find_spec", lambda name: None)
    line = refused("actor_train.model_args.lora_target=q_proj")
    assert "actor_train.model_args.lora_target = 'q_proj': needs peft" in line and "fix: pip install 'roll[lora]'" in line


@pytest.mark.parametrize(("name", "package"), [("deepspeed", "deepspeed"), ("megatron", "megatron-core")])
def test_a_back_end_without_its_package_is_refused_before_a_worker_starts(refused, monkeypatch, name, package):
    """A reference that is not started needs none."""
    unused = f"+reference={{strategy_args: {{strategy_name: {name}_infer}}, device_mapping: [0]}}"
    assert refused(unused, "actor_infer.device_mapping='7'").count("fix:") == 1
    monkeypatch.setattr("roll.strategies.installed_backend.find_spec", lambda name: None)
    line = refused(f"actor_train.strategy_args={{strategy_name: {name}_train}}", unused)
    assert f"actor_train.strategy_args.strategy_name = '{name}_train': needs {package}, which is not installed" in line
    assert f"fix: pip install 'roll[{name}]', or fsdp2_train" in line and "reference" not in line


def test_prompts_from_a_fifo_without_a_writer(refused, tmp_path):
    os.mkfifo(tmp_path / "rows")
    line = refused(f"actor_train.data_args.file_name={tmp_path / 'rows'}")
    assert "actor_train.data_args.file_name" in line and "is a FIFO, not a regular file" in line


def test_a_model_that_lacks_a_tensor(refused, world, tmp_path):
    folder = copy_model(world, tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.0.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    line = refused(f"pretrain={folder}")
    assert "pretrain" in line and "not complete: model.layers.0.mlp.up_proj.weight is missing" in line


def test_a_model_whose_code_would_be_needed(refused, world, tmp_path, monkeypatch):
    folder = copy_model(world, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 9))
    line = refused(f"pretrain={folder}")
    assert "pretrain" in line and "code of the folder's own, which is never run" in line and not (tmp_path / "ran").exists()


def test_secrets_and_control_characters_of_a_configuration_are_not_told(refused):
    assert "sk-1" not in (line := refused("tracker_kwargs.api_key=sk-1", "authorization=sk-1")) and "'***'" in line
    assert "exp_name" in (line := refused("exp_name='a\x1b[2Jb'")) and line.isprintable()


def test_output_below_a_regular_file(refused, tmp_path):
    (tmp_path / "file").touch()
    line = refused(f"output_dir={tmp_path / 'file'}")
    assert "output_dir" in line and str(tmp_path / "file") in line and "fix:" in line


def test_every_problem_is_named_at_once(world, tmp_path, capsys):
    bad = ("pretrain=/no/such", "actor_train.data_args.file_name=/no.jsonl", "rewards.even.worker_cls=a.B")
    assert main(["--local", *world.arguments(f"output_dir={tmp_path}", *bad)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 3


def test_option_without_its_value(capsys):
    assert main(["--local", "--config_path"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and "--config_path" in line and "expected one argument" in line
    assert "--config_name" in line


def test_a_template_that_is_misspelt_is_not_taken_for_one_of_rolls(world, capsys):
    assert main(["--local", *world.arguments("actor_train.data_args.template=chatml2")]) == 2
    assert "did you mean chatml?" in capsys.readouterr().err


def test_a_batch_that_is_larger_than_its_prompts_is_told(world, tmp_path, capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(world.workers))
    path = prompts(tmp_path / "two.jsonl", GOOD | {"id": "a"}, GOOD | {"id": "b"})
    overrides = (f"actor_train.data_args.file_name={path}", f"output_dir={tmp_path}", "max_steps=1", "rollout_batch_size=4")
    assert main(["--local", *world.arguments(*overrides)]) == 0
    assert "a step takes each of the 2 prompts 2 times on average" in capsys.readouterr().out


def test_long_prompts_and_those_of_a_domain_without_a_share_are_skipped_and_counted(world, tmp_path, capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(world.workers))
    rows = (world.folder / "train.jsonl").read_text().splitlines()
    skipped = [GOOD | {"id": f"long-{i}", "prompt": "1" * 9} for i in range(3)] + [GOOD | {"id": "b", "tag": "odd"}]
    path = prompts(tmp_path / "mixed.jsonl", *rows, *skipped)
    domains = (
        "+rewards.odd={worker_cls: fault_workers.EvenRewardWorker}",
        "+actor_train.data_args.domain_interleave_probs={even: 1}",
    )
    overrides = (f"actor_train.data_args.file_name={path}", f"output_dir={tmp_path}", "max_steps=1", *domains)
    assert main(["--local", *world.arguments(*overrides)]) == 0
    assert json.loads((tmp_path / "run/summary.json").read_text())["prompts_skipped"] == {"too_long": 3, "no_share": 1}
    shown = capsys.readouterr().out
    assert "prompts are left out: 3 too long (prompt_length is 8, 9 would do)" in shown
    assert "prompts left out too_long 3, no_share 1" in shown


def test_worker_that_cannot_start_fails_the_run(world, tmp_path, capsys, monkeypatch):
    """That cannot be known before: exit code 1, a reason in one line, the details in a file."""
    monkeypatch.syspath_prepend(str(world.workers))
    overrides = ("actor_train.worker_cls=fault_trainers.CannotStart", f"output_dir={tmp_path}")
    assert main(["--local", *world.arguments(*overrides)]) == 1
    out, err = capsys.readouterr()
    reason = "worker actor_train-0 cannot start: KeyError: 'no such\\nthing'"
    assert err == f"error: {reason}\n" and "Traceback" not in out
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert (summary["status"], summary["reason"], summary["steps"]) == ("failed", reason, 0)
    assert "KeyError" in (tmp_path / "run/traceback.txt").read_text()
