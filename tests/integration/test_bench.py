"""`mode: bench`: the checkpoints of a run on validation sets, in this process; nothing is trained."""

import shutil
from dataclasses import replace

import pytest
from safetensors.torch import load_file, save_file
from tiny_models import tiny_qwen2

from roll.configs.problems import ConfigError
from roll.distributed.backend import LocalBackend

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
    assert refused("an evaluation begins anew", "pretrain", resume_from_checkpoint=True) == "resume_from_checkpoint"


def test_a_model_of_another_shape_is_refused(lab, make_config, with_validation, trained, material, tmp_path):
    wider = shutil.copytree(material / "model", tmp_path / "wider")
    tiny_qwen2(32, hidden_size=32, max_position_embeddings=64).save_pretrained(wider)
    config = make_config(with_validation, pretrain=str(wider))
    with pytest.raises(ConfigError) as error:
        lab.start(bench(config, "pretrain", str(trained.run_dir)), LocalBackend())
    assert "these models differ" in error.value.problems[0].message
