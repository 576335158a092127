"""`mode: bench`: the checkpoints of a run on validation sets, in this process; nothing is trained."""

import asyncio
import json
import logging
import shutil
import sys
from dataclasses import replace

import pytest
import yaml
from safetensors.torch import load_file, save_file
from tiny_models import tiny_qwen2

from roll.cli.main import main
from roll.core.configs.problems import ConfigError
from roll.core.record.run_identity import identify
from roll.platform.local_backend import LocalBackend
from roll.prepare.rlvr_run import RLVRRun, prepare

SAMPLED = {"num_return_sequences": 3, "temperature": 1.0}


@pytest.fixture
def trained(lab, make_config, with_validation):
    """A run with the checkpoints step-1 and step-2."""
    return lab.run(make_config({**with_validation, "validation.generating_args": SAMPLED}, save_steps=1))


def bench(config, *checkpoints):
    return replace(config, mode="bench", bench_checkpoints=list(checkpoints))


def accuracies(run):
    return {row["step"]: row["val_correct/all/mean"] for row in run.rows("metrics") if "val_correct/all/mean" in row}


@pytest.mark.parametrize("lora", [False, True])
def test_a_checkpoint_is_worth_what_its_version_was_during_the_run(lab, make_config, with_validation, lora):
    """The same prompts, sampling seeds and weights: the figures of an evaluation are those of the run's own validations."""
    changes = {**with_validation, "validation.generating_args": SAMPLED}
    if lora:
        changes |= {"actor_train.model_args.lora_target": "all-linear", "actor_train.training_args.learning_rate": 0.1}
    config = make_config(changes, save_steps=1)
    trained = lab.run(config)
    run = lab.start(bench(config, "pretrain", str(trained.run_dir)), LocalBackend())
    assert run.summary["status"] == "finished", run.summary["reason"]
    assert run.run_dir == trained.run_dir / "bench"
    assert accuracies(run) == accuracies(trained) and len(set(accuracies(run).values())) > 1
    assert [(row["model"], row["step"]) for row in run.summary["evaluation"]] == [("pretrain", 0), ("step-1", 1), ("step-2", 2)]
    for row, metrics in zip(run.summary["evaluation"], run.rows("metrics"), strict=True):
        found = row["sets"]["validation"]["all"]
        assert found["avg@3"]["value"] == pytest.approx(metrics["val_correct/all/mean"])
        assert metrics["eval/validation/all/pass@3"] == found["pass@3"]["value"] >= found["avg@3"]["value"]
        assert found["avg@3"]["prompts"] == 16
        assert list(row["sets"]["validation"]) == ["all", "tag/even", "tag/odd"]
    assert "steps" not in run.summary and "groups" not in run.summary
    assert not (run.run_dir / "checkpoints").exists() and run.rows("groups") == []


def test_every_set_has_its_own_prompts_and_sampling(lab, make_config, with_validation, trained, material, tmp_path):
    rows = (material / "validation.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "few.jsonl").write_text("".join(rows[:4]))
    few = {"data_args": {"file_name": str(tmp_path / "few.jsonl"), "template": "none"}, "generating_args": {"temperature": 0.0}}
    config = make_config({**with_validation, "validation.generating_args": SAMPLED, "validation_sets": {"few": few}})
    run = lab.start(bench(config, str(trained.run_dir / "checkpoints" / "step-2")), LocalBackend())
    (row,) = run.summary["evaluation"]
    assert {name: found["all"].keys() for name, found in row["sets"].items()} == {
        "validation": {"avg@3", "pass@2", "pass@3"}, "few": {"avg@1"},
    }  # fmt: skip
    assert row["sets"]["few"]["all"]["avg@1"]["prompts"] == 4
    assert accuracies(run)[2] == accuracies(trained)[2], "the first set is what it is without others"
    assert {sample["prompt_uid"].split("/")[0] for sample in run.rows("samples")} == {"validation", "few"}
    during = lab.run(replace(config, max_steps=1, exp_name="during")).rows("metrics")
    for metrics in (during[0], during[-1]):
        assert metrics.keys() >= {"eval/few/all/avg@1", "eval/validation/all/pass@3/low", "val_correct/odd/mean"}


def test_what_nobody_can_judge_is_a_failure(lab, make_config, with_validation, trained):
    """The judge fails for each of these prompts."""
    judge = {"rewards.sums.worker_cls": f"{lab.rewards}.Unreliable", "rewards.sums.reward_args": {"every": 1}}
    changes = {**with_validation, **judge}
    run = lab.start(bench(make_config(changes), str(trained.run_dir)), LocalBackend())
    assert run.summary["status"] == "failed"
    assert run.summary["reason"] == "step-1 on validation: not one rollout could be judged"


def test_what_cannot_be_evaluated_is_refused_before_anything_starts(lab, make_config, with_validation, trained, tmp_path):
    config = make_config(with_validation)
    checkpoints = trained.run_dir / "checkpoints"

    def refused(told, *named, **changes):
        with pytest.raises(ConfigError) as error:
            lab.start(replace(bench(config, *named), **changes), LocalBackend())
        (problem,) = error.value.problems
        assert told in problem.message
        return problem.key

    assert refused("is no folder of a checkpoint", str(tmp_path / "none")) == "bench_checkpoints"
    copy = tmp_path / "copied" / "step-2"
    copy.parent.mkdir()
    shutil.copytree(checkpoints / "step-2", copy)
    assert refused("are both of step 2", str(checkpoints / "step-2"), str(copy)) == "bench_checkpoints"
    model = copy / "trainer" / "model" / "model.safetensors"
    tensors = load_file(model)
    save_file({name: tensor + 1 for name, tensor in tensors.items()}, model)
    assert refused("is not what was saved", str(copy)) == "bench_checkpoints"
    assert refused("there is none", "pretrain", validation=None) == "validation_sets"
    assert refused("an evaluation resumes nothing", "pretrain", resume_from_checkpoint=True) == "resume_from_checkpoint"


def test_a_model_of_another_shape_is_refused(lab, make_config, with_validation, trained, material, tmp_path):
    wider = shutil.copytree(material / "model", tmp_path / "wider")
    tiny_qwen2(32, hidden_size=32, max_position_embeddings=64).save_pretrained(wider)
    config = make_config(with_validation, pretrain=str(wider))
    with pytest.raises(ConfigError) as error:
        lab.start(bench(config, "pretrain", str(trained.run_dir)), LocalBackend())
    assert "these models differ" in error.value.problems[0].message


@pytest.fixture
def roll_eval(monkeypatch, capsys):
    """`roll eval` in this process: its exit code, what it prints, and its errors."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(logging, "basicConfig", lambda **options: None)

    def call(*arguments):
        code = main(["eval", *map(str, arguments)])
        return code, *capsys.readouterr()

    return call


def test_the_command_takes_the_configuration_of_the_checkpoints_run(roll_eval, trained):
    code, out, _ = roll_eval("--checkpoint", trained.run_dir, "--local", "validation.generating_args.num_return_sequences=2")
    assert code == 0
    (title,) = [i for i, line in enumerate(out.splitlines()) if line.startswith("validation (with 95% confidence intervals)")]
    header, *rows = out.splitlines()[title + 1 : title + 8]
    assert header.split() == ["prompts", "avg@2", "pass@2"]
    assert [row.split()[0] for row in rows[:6]] == ["step-1"] * 3 + ["step-2"] * 3
    assert [row.split()[1:3] for row in rows[:3]] == [["16", rows[0].split()[2]], ["tag/even", "8"], ["tag/odd", "8"]]
    code, out, _ = roll_eval("--checkpoint", trained.run_dir / "checkpoints" / "step-1", "--local")
    assert code == 0 and "evaluated        1 model" in out
    assert (trained.run_dir / "bench.old-1" / "summary.json").is_file(), "the evaluation before is kept"


def test_the_command_says_from_where_relative_paths_were_meant(roll_eval, trained, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    identify(trained.run_dir, "run")
    folder = shutil.copytree(trained.run_dir, tmp_path / "moved")
    written = yaml.safe_load((folder / "config.yaml").read_text()) | {"output_dir": "output", "pretrain": "model"}
    (folder / "config.yaml").write_text(yaml.safe_dump(written))
    code, _, errors = roll_eval("--checkpoint", folder, "--local")
    assert code == 2 and "pretrain = " in errors
    assert f"config.yaml were meant from {trained.run_dir.parents[1]}, where the run was started, not from here" in errors


def test_the_figures_as_data(trained, roll_eval):
    code, out, errors = roll_eval("--checkpoint", trained.run_dir / "checkpoints" / "step-1", "--local", "--json")
    found = json.loads(out)
    assert code == 0 and found["status"] == "finished" and "evaluated        1 model" in errors
    assert [row["model"] for row in found["evaluation"]] == ["step-1"]
    assert found == json.loads((trained.run_dir / "bench" / "summary.json").read_text())


def test_the_command_says_what_it_lacks(roll_eval, trained, tmp_path):
    for arguments, told in (
        ([], "there is no checkpoint in the folder of its run"),
        (["--checkpoint", tmp_path], "there is no checkpoint in the folder of its run"),
        (["--checkpoint", trained.run_dir, "validation=null"], "evaluates validation sets, and there is none"),
        (["--checkpoint", trained.run_dir, "--config_path", tmp_path], "is a folder of them"),
        (["--checkpont", trained.run_dir], "did you mean --checkpoint?"),
    ):
        code, _, errors = roll_eval(*arguments, "--local")
        assert code == 2 and told in errors
    config = trained.run_dir / "config.yaml"
    config.write_text(config.read_text().replace("reward_args: {}", "reward_args: {api_key: '***'}"))
    code, _, errors = roll_eval("--checkpoint", trained.run_dir, "--local")
    assert code == 2 and "hides secrets of the run" in errors
    assert not (trained.run_dir / "bench").exists()


def test_an_evaluation_that_is_interrupted_keeps_what_it_has(lab, make_config, with_validation, trained):
    config = bench(make_config(with_validation), "pretrain", str(trained.run_dir))
    pipeline = RLVRRun(config, prepare(config, lab.inventory), lab.inventory, LocalBackend())

    async def interrupt():
        await pipeline.state.groups.until(lambda: pipeline.state.record.results)
        pipeline.interrupt()

    async def evaluate():
        interrupting = asyncio.create_task(interrupt())
        summary = await pipeline.run()
        await interrupting
        return summary

    summary = asyncio.run(asyncio.wait_for(evaluate(), 60))
    models = [row["model"] for row in summary["evaluation"]]
    assert models in (["pretrain"], ["pretrain", "step-1"])
    assert (summary["status"], summary["reason"]) == ("interrupted", f"stopped by a signal after model {len(models)}")


@pytest.mark.ray
@pytest.mark.usefixtures("shared_ray")
def test_on_ray_an_engine_that_dies_comes_back_with_the_model_that_is_evaluated(lab, make_config, with_validation, trained):
    """Two engines; one is killed when the first model has been evaluated. The figures are those of the run."""
    from roll.platform.ray_backend import RayBackend

    changes = {**with_validation, "validation.generating_args": SAMPLED, "actor_infer.device_mapping": "0-1"}
    config = bench(make_config(changes), "pretrain", str(trained.run_dir))
    prepared = prepare(config, lab.inventory)
    pipeline = RLVRRun(config, prepared, lab.inventory, RayBackend(lab.inventory))

    async def kill():
        await pipeline.state.groups.until(lambda: pipeline.state.record.results)
        pipeline._components.engines.engines.workers[1].kill()

    async def evaluate():
        killing = asyncio.create_task(kill())
        summary = await pipeline.run()
        await killing
        return summary

    summary = asyncio.run(asyncio.wait_for(evaluate(), 150))
    assert summary["status"] == "finished", summary["reason"]
    assert summary["engine_restarts"] == 1
    found = {row["step"]: row["sets"]["validation"]["all"]["avg@3"]["value"] for row in summary["evaluation"]}
    assert found == pytest.approx(accuracies(trained))
