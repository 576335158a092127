"""What a start refuses without a worker, `roll check` tells as well, with a fix that holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from roll.cli import refused_here
from roll.cli.main import main
from roll.core.configs.rlvr import RLVRConfig
from roll.core.errors import Misfit
from roll.core.record.manifest import MANIFEST
from roll.plan.rules.loading import load_config
from roll.prepare.beginning import beginning


@pytest.fixture
def check(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def check(*overrides: str) -> list[str]:
        main(["check", f"output_dir={tmp_path}", "exp_name=run", "pretrain=none", *overrides])
        shown = capsys.readouterr()
        return [line for line in shown.out.splitlines() if "would be refused" in line and "file_name" not in line]

    return check


@pytest.mark.parametrize(
    ("given", "says", "instead"),
    [
        ("groups_database=groups.db", "groups_database = 'groups.db'", "groups_database=sqlite:///groups.db"),
        ("groups_database=mysql://a@b/c", "mysql is not supported", "groups_database=sqlite:///groups.db"),
        ("groups_database=sqlite://", "it names no file", "groups_database=sqlite:///groups.db"),
        ("groups_database=sqlite:////proc/x/groups.db", "cannot be written to", "groups_database=sqlite:///groups.db"),
        ("track_with=wandb", "fix: pip install wandb, or leave it out", "track_with=none"),
        ("track_with=[tensorboard,mlflow]", "needs the package mlflow", "track_with=[tensorboard]"),
        ("resume_from_checkpoint=latest", "fix: auto", "resume_from_checkpoint=auto"),
        ("resume_from_checkpoint=Last", "fix: auto", "resume_from_checkpoint=auto"),
        ("resume_from_checkpoint=/nowhere/latest", "fix: auto", "resume_from_checkpoint=auto"),  # a start has made it absolute
        ("resume_from_checkpoint=true", "fix: auto, which begins a run where there is none", "resume_from_checkpoint=auto"),
        ("resume_from_checkpoint=/nowhere/step-3", "or write auto or false", "resume_from_checkpoint=false"),
    ],
)
def test_a_key_that_a_start_refuses_is_told_and_its_fix_holds(check, monkeypatch, given, says, instead):
    there = refused_here.find_spec
    monkeypatch.setattr(refused_here, "find_spec", lambda name: None if name in ("wandb", "mlflow") else there(name))
    (line,) = check(given)
    assert says in line and "fix: " in line
    assert check(instead) == []


@pytest.mark.parametrize(("asked", "fix"), [("auto", "the path of a complete checkpoint, or false"), ("true", "the path of a")])
def test_who_has_written_auto_is_not_told_to_write_it(check, tmp_path, asked, fix):
    broken = tmp_path / "run" / "checkpoints" / "step-3"
    broken.mkdir(parents=True)
    (broken / MANIFEST).write_text("{")
    (line,) = check(f"resume_from_checkpoint={asked}")
    assert "can be resumed from" in line and f"fix: {fix}" in line and "auto" not in line.partition("fix: ")[2]
    given = {"output_dir": str(tmp_path), "exp_name": "run", "resume_from_checkpoint": {"true": True}.get(asked, asked)}
    with pytest.raises(Misfit) as error:
        beginning(load_config(RLVRConfig, given))
    assert error.value.fix.startswith(fix)
    assert check("resume_from_checkpoint=false") == []


def test_a_trainer_of_its_own_is_told_of_a_run_that_has_begun(check, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("{}")
    alone = ("mode=train", "model_update_transport=checkpoint_dir", "groups_database=sqlite:///groups.db")
    (line,) = check(*alone)
    assert "holds a run that has begun; fix: auto, to go on with it, or another exp_name" in line
    assert check(*alone, "resume_from_checkpoint=auto") == check(*alone, "exp_name=another") == []


def test_a_damaged_identity_is_told(check, tmp_path):
    Path(tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text(json.dumps({"id": 3}))
    (line,) = check("resume_from_checkpoint=auto")
    assert "run.json is damaged" in line


def test_a_large_checkpoint_is_left_to_the_start(check, tmp_path, monkeypatch):
    broken = tmp_path / "run" / "checkpoints" / "step-3"
    broken.mkdir(parents=True)
    (broken / MANIFEST).write_text("{")
    monkeypatch.setattr(refused_here, "MOST_READ", 0)
    assert check("resume_from_checkpoint=auto") == []


@pytest.mark.parametrize(("heads", "refused"), [(4, True), (2, False)])
def test_a_model_that_the_engine_cannot_run_here_is_told(tmp_path, capsys, heads, refused):
    sizes = {"hidden_size": 64, "num_attention_heads": heads, "num_key_value_heads": 1, "num_hidden_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2", "vocab_size": 9, **sizes}))
    vllm = "actor_infer.strategy_args.strategy_name=vllm"
    main(["check", f"output_dir={tmp_path}", f"pretrain={tmp_path}", vllm])
    told = "actor_infer.strategy_args.strategy_name = 'vllm': vLLM on CPUs supports heads of size"
    assert (told in capsys.readouterr().out) == refused
