"""The best checkpoint and early stopping in whole runs."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

import roll
from roll.cli.main import main
from roll.cli.verify import read_run, violations
from roll.platform.local_backend import LocalBackend
from roll.view.run import RunReader

ACCURACY = "val_correct/all/mean"


@pytest.fixture
def judged(monkeypatch):
    """Validations get the accuracies of this list, by version."""
    values: dict[int, float] = {}

    from roll.core.explorer import explorer

    summarise = explorer.summarise

    def set_values(version, *rest):
        return replace(summarise(version, *rest), accuracy=values[version])

    monkeypatch.setattr(explorer, "summarise", set_values)
    return values


@pytest.fixture
def config_of(make_config, with_validation):
    return lambda **changes: make_config({**with_validation, "keep_best": {}}, save_steps=1, max_ckpt_to_keep=1, **changes)


def there(run):
    return sorted(path.name for path in (run.run_dir / "checkpoints").iterdir())


@pytest.mark.parametrize("ratio", [0, 2])
def test_the_best_checkpoint_stays_with_its_reason_and_the_verdict_names_it(lab, judged, config_of, ratio, capsys):
    judged |= {0: 0.1, 1: 0.2, 2: 0.75, 3: 0.25, 4: 0.5, 5: 0.5}
    run = lab.run(config_of(max_steps=5, async_generation_ratio=ratio))
    assert there(run) == ["best", "best.json", "step-2", "step-5"]
    assert os.readlink(run.run_dir / "checkpoints/best") == "step-2"
    why = json.loads((run.run_dir / "checkpoints/best.json").read_text())
    assert {name: why[name] for name in ("metric", "step", "value")} == {"metric": ACCURACY, "step": 2, "value": 0.75}
    assert run.summary["best"] == why
    told = "the best checkpoint is step 2 (val_correct/all/mean 0.750), and step 5, the last one, is 0.250 below"
    assert run.summary["verdict"]["text"].endswith(told)
    assert RunReader(run.run_dir).status()["verdict"]["text"].endswith(told)
    assert main(["show", str(run.run_dir)]) == 0 and told in capsys.readouterr().out
    assert list(violations(read_run(run.run_dir))) == []


def test_several_best_ones_by_a_metric_that_is_better_when_it_is_low(lab, judged, config_of):
    judged |= dict(enumerate([0.0, 0.3, 0.1, 0.2, 0.4]))
    rule = {"metric": ACCURACY, "mode": "min", "count": 2}
    run = lab.run(replace_rule(config_of(max_steps=4), rule))
    assert there(run) == ["best", "best.json", "step-2", "step-3", "step-4"]
    assert run.summary["best"]["step"] == 2 and run.summary["best"]["better"] == {"step": 0, "value": 0.0}


def replace_rule(config, rule):
    return replace(config, keep_best=replace(config.keep_best, **rule))


def test_a_resumed_run_knows_the_best_of_before(lab, judged, config_of):
    judged |= dict(enumerate([0.0, 0.1, 0.9, 0.2, 0.3, 0.4, 0.5]))
    lab.run(config_of(max_steps=4))
    run = lab.run_local(config_of(max_steps=6, resume_from_checkpoint=True))
    assert run.summary["status"] == "finished" and run.summary["resumed_from_step"] == 4
    assert there(run) == ["best", "best.json", "step-2", "step-6"]


def test_a_run_that_goes_on_from_its_best_checkpoint_takes_another_course(lab, judged, config_of):
    judged |= dict(enumerate([0.0, 0.1, 0.9, 0.2, 0.3]))
    first = lab.run(config_of(max_steps=4))
    best = str(first.run_dir / "checkpoints" / "best")
    judged |= {3: 1.0, 4: 0.5}
    run = lab.run_local(config_of(max_steps=4, resume_from_checkpoint=best))
    assert run.summary["status"] == "finished" and run.summary["resumed_from_step"] == 2
    assert there(run) == ["best", "best.json", "rolled-back-step-4", "step-3", "step-4"]
    assert run.summary["best"]["step"] == 3


def test_patience_ends_a_run_in_order_and_a_resumed_one_again(lab, judged, config_of):
    judged |= dict(enumerate([0.5, 0.25, 0.5, 0.125, 0.9, 0.9, 0.9]))
    changes = {"max_steps": 6, "async_generation_ratio": 0, "early_stopping": {"patience": 3}}
    run = lab.run_local(config_of(**changes))
    reason = "as val_correct/all/mean was not better than 0.500 (step 0) 3 times in a row (early_stopping)"
    assert run.summary["status"] == "finished" and run.summary["reason"].endswith(reason)
    steps = [row["step"] for row in run.steps()]
    assert steps[-1] in (3, 4), "a step that was being trained ends"
    assert (run.run_dir / "checkpoints" / f"step-{steps[-1]}" / "manifest.json").exists()
    again = lab.run_local(config_of(**changes, resume_from_checkpoint=True))
    assert again.summary["status"] == "finished" and [row["step"] for row in again.steps()] == steps
    on = lab.run_local(config_of(**changes | {"early_stopping": {"patience": 30}}, resume_from_checkpoint=True))
    assert on.summary["status"] == "finished" and [row["step"] for row in on.steps()] == [1, 2, 3, 4, 5, 6]


def test_best_is_evaluated_and_exported_by_name(lab, judged, config_of, monkeypatch, tmp_path, capsys):
    judged |= dict(enumerate([0.0, 0.1, 0.9, 0.2]))
    config = config_of(max_steps=3)
    run = lab.run(config)
    bench = lab.start(replace(config, mode="bench", bench_checkpoints=["best"]), LocalBackend())
    assert [row["model"] for row in bench.summary["evaluation"]] == ["step-2"]
    monkeypatch.chdir(tmp_path)
    assert main(["export", "--checkpoint", "best", "--output", "exported"]) == 0
    assert main(["export", "--checkpoint", str(run.run_dir / "checkpoints/step-2"), "--output", "same"]) == 0
    assert Path("exported/model.safetensors").read_bytes() == Path("same/model.safetensors").read_bytes()
    capsys.readouterr()
    assert main(["eval", "--checkpoint", "best", "--local", "--json"]) == 0
    assert [row["step"] for row in json.loads(capsys.readouterr().out)["evaluation"]] == [2]
    for named in ("best", ["best"]):
        assert [row["model"] for row in roll.evaluate(config, named, local=True)["evaluation"]] == ["step-2"]


def test_best_is_refused_by_the_key_where_the_run_keeps_none(lab, make_config, with_validation):
    config = make_config(with_validation, max_steps=1)
    lab.run(config)
    with pytest.raises(roll.ConfigError, match=r"bench_checkpoints = \['best'\].*the run keeps no best checkpoint \(keep_best\)"):
        roll.evaluate(config, "best", local=True)


def test_checkpoints_that_cannot_be_judged_are_not_best_and_patience_without_a_value_watches_nothing(lab, config_of):
    """The judge fails for a quarter of each validation: there is no accuracy."""
    judge = {"rewards.sums.worker_cls": f"{lab.rewards}.Unreliable", "rewards.sums.reward_args": {"every": 4}}
    run = lab.run_local(config_of(max_steps=3, early_stopping={"patience": 1}, **judge))
    assert run.summary["status"] == "finished" and run.summary["reason"] == "" and run.summary["best"] is None
    assert there(run) == ["step-3"]
    told = [warning for warning in run.summary["warnings"] if "val_correct/all/mean" in warning]
    assert len(told) == 2 and told[0].startswith("keep_best:") and told[1].startswith("early_stopping:")


@pytest.mark.parametrize("command", [["export", "--output", "x"], ["eval", "--local"]])
def test_best_is_refused_where_there_is_none_or_more_than_one(command, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*command, "--checkpoint", "best"]) == 2
    assert "no run here has a best checkpoint (keep_best)" in capsys.readouterr().err
    for name in "ab":
        (tmp_path / "output" / name / "checkpoints" / "best").mkdir(parents=True)
    assert main([*command, "--checkpoint", "best"]) == 2
    assert "there are output/a/checkpoints/best, output/b/checkpoints/best" in capsys.readouterr().err


def test_an_evaluation_keeps_what_it_reads_from_being_deleted(lab, config_of):
    """Its run goes on meanwhile, and keeps one checkpoint."""
    config = replace(config_of(max_steps=2), keep_best=None)
    run = lab.run(config)
    from roll.prepare.rlvr_run import prepare

    evaluation = prepare(replace(config, mode="bench", bench_checkpoints=[str(run.run_dir)]), lab.inventory)
    assert [model.version for model in evaluation.evaluated] == [2]
    lab.run_local(replace(config, max_steps=4, resume_from_checkpoint=True))
    assert there(run) == ["step-2", "step-4"]
    assert (evaluation.evaluated[0].folder / "config.json").is_file()


def test_an_evaluation_that_begins_while_its_checkpoint_is_deleted_is_refused_by_name(lab, config_of, capsys):
    from roll.platform.checkpoint_readers import deletable

    config = replace(config_of(max_steps=1), keep_best=None)
    folder = lab.run(config).run_dir / "checkpoints" / "step-1"
    lock, _ = deletable([folder])
    for command in (["export", "--output", "x"], ["eval", "--local"]):
        assert main([*command, "--checkpoint", str(folder)]) == 2
        assert f"{folder} is being deleted by its run" in capsys.readouterr().err
    lock.close()
