"""Hydra's habits: sweeps of several runs, its own overrides, and what it prints."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from roll.cli.main import main
from roll.cli.sweep import Combination, Sweep, combinations, results
from roll.core.configs.problems import ConfigError
from roll.prepare.pipeline import archive_previous

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ENDLESS = "import pathlib, time; pathlib.Path('begun').touch(); time.sleep(600)"


def test_a_sweep_has_each_combination_once_the_last_key_varying_fastest():
    made = combinations(["max_steps=2", "async_generation_ratio=0,1", "actor_train.pg_variant=ppo,gspo"])
    assert [each.name for each in made] == [
        f"async_generation_ratio={ratio},pg_variant={loss}" for ratio in (0, 1) for loss in ("ppo", "gspo")
    ]
    assert made[1].overrides == ("max_steps=2", "async_generation_ratio=0", "actor_train.pg_variant=gspo")
    assert made[1].values == {"async_generation_ratio": "0", "actor_train.pg_variant": "gspo"}


def test_ranges_and_choices_are_swept_and_lists_are_not():
    assert len(combinations(["seed=range(0,3)", "max_steps=choice(1,2)"])) == 6
    made = combinations(["seed=1,2", "actor_train.device_mapping=[0,1]", "actor_infer.device_mapping=list(range(0,4))"])
    assert [each.overrides[1:] for each in made] == [
        ("actor_train.device_mapping=[0,1]", "actor_infer.device_mapping=list(range(0,4))")
    ] * 2


def test_runs_whose_values_make_the_same_name_have_a_number():
    names = [each.name for each in combinations(["pretrain=a/b,a?b"])]
    assert len(set(names)) == 2 and all("/" not in name for name in names)


@pytest.mark.parametrize("overrides", [[], ["max_steps=2"], [f"seed=range(0,{10**6})"]])
def test_what_is_no_sweep_is_refused(overrides):
    with pytest.raises(ConfigError, match="--multirun"):
        combinations(overrides)


def test_the_problems_of_all_combinations_are_told_before_the_first_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    swept = ["async_generation_ratio=0,-1", "actor_train.pg_variant=ppo,pppo"]
    assert main(["train", "rlvr", "-m", *swept]) == 2
    told = capsys.readouterr().err
    assert "async_generation_ratio" in told and "pppo" in told
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_run_that_is_moved_aside_has_the_name_of_no_other_run_of_a_sweep(tmp_path):
    """With `.1` behind it, `ratio=0` became `ratio=0.1`, which a sweep over 0.1 went on with."""
    run = tmp_path / "ratio=0"
    run.mkdir()
    (run / "config.yaml").touch()
    aside = archive_previous(run)
    assert aside is not None and (aside / "config.yaml").exists()
    with pytest.raises(ValueError, match="could not convert"):
        float(aside.name.removeprefix("ratio="))


def test_a_run_that_was_not_started_has_no_figures(tmp_path):
    assert results([Combination({"seed": "1"}, ())], tmp_path)[1] == ["1", "not run", "–", "–", "–", "–", "–"]


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_sweep_trains_each_run_and_ends_with_a_table(jobs, embedded_task, tmp_path):
    (tmp_path / "examples/embedded").mkdir(parents=True)
    (tmp_path / "examples/embedded/cache").symlink_to(embedded_task)
    command = ["-m", "roll.cli.main", "train", "rlvr", "--local", "-m", "--jobs", str(jobs), "max_steps=1", "exp_name=mine"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    command += ["async_generation_ratio=0,1"]
    done = subprocess.run([sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    head, *rows, last = done.stdout.strip().splitlines()[-4:]
    assert head.split()[:3] == ["async_generation_ratio", "status", "steps"]
    assert [row.split()[:3] for row in rows] == [["0", "finished", "1"], ["1", "finished", "1"]]
    assert last == "compare them: roll ui output/mine"
    for ratio in (0, 1):
        run = tmp_path / f"output/mine/async_generation_ratio={ratio}"
        assert yaml.safe_load((run / "config.yaml").read_text())["async_generation_ratio"] == ratio
        assert json.loads((run / "summary.json").read_text())["status"] == "finished"
        assert (tmp_path / f"output/mine/async_generation_ratio={ratio}.log").exists() == (jobs > 1)


def test_a_run_that_is_interrupted_is_the_last(tmp_path):
    sweep = Sweep(1, tmp_path)
    sweep.run({"first": [sys.executable, "-c", "raise SystemExit(130)"], "second": [sys.executable, "-c", ""]})
    assert sweep.codes == {"first": 130}
    table = results([Combination({"key": name}, ()) for name in ("first", "second")], tmp_path)
    assert [row[:2] for row in table[1:]] == [["first", "not run"], ["second", "not run"]]


def test_a_run_that_fails_is_not_the_last(tmp_path):
    sweep = Sweep(1, tmp_path)
    sweep.run({"first": [sys.executable, "-c", "raise SystemExit(1)"], "second": [sys.executable, "-c", ""]})
    assert sweep.codes == {"first": 1, "second": 0}


def test_sigterm_reaches_the_run_and_no_other_starts(tmp_path):
    program = f"""
import sys
from pathlib import Path
from roll.cli.sweep import Sweep
sweep = Sweep(1, Path("."))
sweep.run({{"first": [sys.executable, "-c", {ENDLESS!r}], "second": [sys.executable, "-c", {ENDLESS!r}]}})
print(sweep.codes)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    ) as sweep:
        while not (tmp_path / "begun").exists():
            assert sweep.poll() is None
        sweep.send_signal(signal.SIGTERM)
        told, _ = sweep.communicate(timeout=30)
    assert told.splitlines()[-1] == str({"first": -signal.SIGTERM})


@pytest.mark.parametrize(
    "override",
    ["hydra.run.dir=x", "hydra/launcher=basic", "~hydra", "+hydra.x=1", "hydra/job_logging=disabled", "~hydra.run", "hydra=null"],
)
@pytest.mark.parametrize("node", ["", "hydra: {run: {dir: .}, output_subdir: null}\n"])
def test_overrides_of_hydra_itself_change_nothing_and_are_told(override, node, tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text(
        node + (ROOT / "examples/config/rlvr_config.yaml").read_text().replace("rlvr_embedded@_here_", "other")
    )
    (tmp_path / "other.yaml").write_text((ROOT / "examples/config/rlvr_embedded.yaml").read_text())
    assert main(["check", "--config_path", str(tmp_path), "--config_name", "mine", override]) == 0
    assert "Hydra's own folders" in " ".join(capsys.readouterr().out.split())


def test_cfg_and_info_print_and_start_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "rlvr", "--cfg", "job", "max_steps=7", "tracker_kwargs={wandb: {api_key: s3cret}}"]) == 0
    printed = capsys.readouterr().out
    assert yaml.safe_load(printed)["max_steps"] == 7 and "s3cret" not in printed
    assert main(["train", "rlvr", "--info", "max_steps=7"]) == 0
    printed = capsys.readouterr().out
    assert "rlvr_config_async.yaml" in printed and "rlvr_embedded.yaml" in printed and "max_steps=7" in printed
    assert not list(tmp_path.iterdir())
