"""Explorers and a trainer as processes of their own: in any order, killed and started again, coming and going."""

import json
import signal
import sqlite3
from pathlib import Path

import psutil
import pytest
from programs import obey_modes

from roll.cli.verify import read_run, violations

HERE = Path(__file__).parent
STEPS = 12
FILES = "model_update_transport=checkpoint_dir"
CHANGES = ("weight_anchor_interval=4", "actor_train.model_args.dtype=bf16", "actor_train.training_args.learning_rate=1e-6")
APART = ("num_gpus_per_node=1", "resume_from_checkpoint=auto", "member_timeout=5")
TRAINER = ("mode=train", "actor_train.device_mapping=0", *APART)
EXPLORER = ("mode=explore", "actor_infer.device_mapping=0", *APART)


def in_database(run, query):
    with sqlite3.connect(f"file:{run.dir / 'groups.db'}?mode=ro", uri=True, timeout=30) as connection:
        return connection.execute(query).fetchall()


def wait_for_groups(run, count):
    """Until that many groups are complete, whatever became of them."""

    def completed():
        try:
            return in_database(run, "SELECT count(*) FROM groups WHERE completed_at IS NOT NULL")[0][0]
        except sqlite3.OperationalError:  # the file, or its tables, are not there yet
            return 0

    run.wait_for(f"{count} groups", lambda: completed() >= count)


def kill(run):
    run.signal(signal.SIGKILL)
    assert run.end() == -signal.SIGKILL


@pytest.mark.slow
def test_an_explorer_that_comes_first_waits_at_the_bound_and_both_end_by_themselves(launch, accounts):
    explorer = launch(*EXPLORER)
    wait_for_groups(explorer, 4)
    trainer = launch(*TRAINER)
    assert (trainer.end(), explorer.end()) == (0, 0), trainer.output + explorer.output
    accounts(trainer.dir)
    own = trainer.dir / "explorers" / "explorer"
    explored = json.loads((own / "summary.json").read_text())
    metrics = [json.loads(line) for line in (trainer.dir / "metrics.jsonl").read_text().splitlines()]
    assert [row["eval/validation/all/avg@1"] for row in metrics if "val_correct/all/mean" in row], (
        "the explorer's, as it has them"
    )
    assert explored["weight_updates"]["count"] > 0 and "staleness" not in explored
    assert trainer.summary()["weight_updates"]["published"] == STEPS


@pytest.mark.slow
def test_the_trainer_keeps_the_best_checkpoint_and_ends_by_patience_as_its_explorer_validates(launch):
    """Killed and started again, it knows what was best before."""
    metric = ("val_correct/all/mean", "min")
    rule = f"{{metric: {metric[0]}, mode: {metric[1]}}}"
    best = (f"keep_best={rule}", "save_steps=1", "eval_steps=1", "max_ckpt_to_keep=1", "max_steps=1000")
    stop = f"early_stopping={{metric: {metric[0]}, mode: min, patience: 6, least: 0.001}}"
    trainer = launch(*TRAINER, *best)
    explorer = launch(*EXPLORER, *best)
    trainer.wait_for_steps(5)
    kill(trainer)
    again = launch(*TRAINER, *best, stop)
    assert (again.end(), explorer.end()) == (0, 0), again.output + explorer.output
    summary, checkpoints = again.summary(), again.dir / "checkpoints"
    assert summary["status"] == "finished" and "6 times in a row (early_stopping)" in summary["reason"]
    rows = [json.loads(line) for line in (again.dir / "metrics.jsonl").read_text().splitlines()]
    values = {row["step"]: row[metric[0]] for row in rows if metric[0] in row and row["step"]}
    why = json.loads((checkpoints / "best.json").read_text())
    assert why["value"] == values[why["step"]] == min(values.values())
    assert (checkpoints / "best").resolve().name == f"step-{why['step']}"
    there = {int(path.name[5:]) for path in checkpoints.glob("step-*")}
    assert {why["step"], summary["steps"]} <= there
    assert there <= {why["step"], summary["steps"]} | set(range(summary["steps"])) - values.keys(), "or awaited to the end"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("transport", "more"),
    [
        ("object_store", ()),
        ("checkpoint_dir", ()),
        ("checkpoint_dir", ("train_on_arrival=true",)),
        ("object_store", CHANGES),
        ("checkpoint_dir", CHANGES),
    ],
    ids=["object_store", "checkpoint_dir", "on arrival", "changes, object_store", "changes, checkpoint_dir"],
)
def test_a_trainer_that_comes_first_is_killed_and_goes_on_from_its_checkpoint(launch, accounts, transport, more):
    """With what it had in memory, explorers lose the versions that they serve; files stay."""
    transport = f"model_update_transport={transport}"
    trainer = launch(*TRAINER, transport, *more)
    explorer = launch(*EXPLORER, transport)
    trainer.wait_for_steps(5)
    kill(trainer)
    again = launch(*TRAINER, transport, *more)
    assert (again.end(), explorer.end()) == (0, 0), again.output + explorer.output
    accounts(again.dir, validated=None)


@pytest.mark.slow
def test_an_explorer_waits_for_weights_that_the_trainer_has_in_memory_until_it_is_back(launch, accounts):
    trainer = launch(*TRAINER)
    explorer = launch(*EXPLORER)
    trainer.wait_for_steps(4)
    kill(trainer)
    kill(explorer)
    explorer = launch(*EXPLORER)
    explorer.wait_for_output("trying again until the trainer is there")
    trainer = launch(*TRAINER)
    assert (trainer.end(), explorer.end()) == (0, 0), trainer.output + explorer.output
    accounts(trainer.dir, validated=None)


def wait_until_trained(run):
    """Until the trainer has trained every batch that is complete, and published what it made of the last."""
    ready = "SELECT count(*) FROM groups WHERE state = 'buffered'"
    done = "SELECT newest * 4 = trained FROM runs"
    run.wait_for("rest", lambda: in_database(run, ready)[0][0] < 4 and in_database(run, done)[0][0])


@pytest.mark.slow
def test_a_weight_file_that_is_cut_short_ends_who_reads_it_with_one_error_and_nothing_is_lost(launch, accounts):
    trainer = launch(*TRAINER, FILES)
    explorer = launch(*EXPLORER, FILES)
    trainer.wait_for_steps(3)
    kill(explorer)
    wait_until_trained(trainer)
    newest = in_database(trainer, "SELECT newest FROM runs")[0][0]
    [file] = (trainer.dir / "weights" / f"version-{newest}").glob("*.safetensors")
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    cut = launch(*EXPLORER, FILES)
    assert cut.end() == 1 and "Traceback" not in cut.output, cut.output
    reason = json.loads((trainer.dir / "explorers" / "explorer" / "summary.json").read_text())["reason"]
    assert f"weight bucket '{file}' cannot be read" in reason
    file.write_bytes(whole)
    again = launch(*EXPLORER, FILES)
    assert (trainer.end(), again.end()) == (0, 0), trainer.output + again.output
    accounts(trainer.dir, validated=None)


@pytest.mark.slow
@pytest.mark.parametrize("transport", [FILES, "model_update_transport=object_store"])
def test_a_folder_of_weights_that_cannot_be_written_to_ends_the_run_with_one_error_and_nothing_is_lost(
    launch, accounts, transport
):
    trainer = launch(*TRAINER, transport, before=obey_modes)
    explorer = launch(*EXPLORER, transport)
    trainer.wait_for_steps(3)
    weights = trainer.dir / "weights"
    weights.chmod(0o555)
    ends = trainer.end(), explorer.end()
    weights.chmod(0o755)
    assert ends == (1, 1) and "Traceback" not in trainer.output + explorer.output, trainer.output + explorer.output
    reason = trainer.summary()["reason"]
    assert "Permission denied" in reason and str(weights) in reason
    assert "the trainer failed: " in explorer.output
    explorer = launch(*EXPLORER, transport)
    joined = "SELECT count(*) FROM members WHERE name = 'explorer' AND state = 'alive' AND term = 2"
    explorer.wait_for("explorer that waits", lambda: in_database(trainer, joined)[0][0] == 1)
    again = launch(*TRAINER, transport)
    assert (again.end(), explorer.end()) == (0, 0), again.output + explorer.output
    accounts(trainer.dir, validated=None)


@pytest.mark.slow
def test_a_trainer_that_trains_groups_again_is_killed_and_goes_on_from_its_checkpoint(launch):
    reuse = ("async_generation_ratio=4", "max_reuse=2", "save_steps=2")
    trainer = launch(*TRAINER, *reuse)
    explorer = launch(*EXPLORER, *reuse)
    trainer.wait_for_steps(5)
    kill(trainer)
    again = launch(*TRAINER, *reuse)
    assert (again.end(), explorer.end()) == (0, 0), again.output + explorer.output
    assert list(violations(read_run(again.dir))) == []
    groups = again.summary()["groups"]
    assert groups["trained"] + groups["reused"] == STEPS * 4 and groups["reused"] > 0
    assert in_database(again, "SELECT count(*) FROM reuses") == [(groups["reused"],)]


@pytest.mark.slow
def test_explorers_are_killed_come_back_and_join_late_and_no_prompt_is_lost_or_doubled(launch, accounts):
    trainer = launch(*TRAINER)
    first = launch(*EXPLORER)
    wait_for_groups(trainer, 6)
    kill(first)
    second = launch(*EXPLORER, "explorer_name=second")
    trainer.wait_for_steps(4)
    again = launch(*EXPLORER)
    trainer.wait_for_steps(6)
    kill(second)  # nobody starts it again: after member_timeout others roll out its groups
    assert (trainer.end(), again.end()) == (0, 0), trainer.output + again.output
    accounts(trainer.dir, validated=None)
    assert trainer.summary()["validation"][-1]["step"] == STEPS
    states = dict(in_database(trainer, "SELECT name, state FROM members"))
    assert states["second"] in ("lost", "alive") and states["explorer"] == states["trainer"] == "left"


@pytest.mark.slow
def test_the_same_with_agents(launch):
    trainer = launch(*TRAINER, agentic=True)
    explorer = launch(*EXPLORER, agentic=True)
    trainer.wait_for_steps(3)
    kill(explorer)
    again = launch(*EXPLORER, agentic=True)
    assert (trainer.end(), again.end()) == (0, 0), trainer.output + again.output
    assert trainer.summary()["groups"]["trained"] == STEPS * 4


HANGS = """
import subprocess, sys, time
try:
    marker = open({marker!r}, "x")
except FileExistsError:
    pass
else:
    hidden = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], env={{}}, start_new_session=True)
    marker.write(f"{{os.getpid()}} {{hidden.pid}}\\n")
    marker.close()
    time.sleep(300)
"""


@pytest.mark.slow
@pytest.mark.parametrize("preload", ["[]", "[json]"], ids=["anew", "preloaded"])
def test_no_program_outlives_an_explorer_that_is_killed_and_another_one_goes_on(launch, tmp_path, preload):
    """Nor what a program has started and hidden."""
    marker, agent = tmp_path / "marker", (HERE / "letters_agent" / "agent.py").read_text()
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "agent.py").write_text(f"import os{HANGS.format(marker=str(marker))}{agent}")
    program = "custom_envs.letters.program"
    own = (f"{program}.folder={tmp_path / 'agent'}", f"+{program}.preload={preload}")
    trainer = launch(*TRAINER, *own, agentic=True, programs=True)
    explorer = launch(*EXPLORER, *own, agentic=True, programs=True)
    explorer.wait_for("program that hangs", lambda: marker.exists() and marker.read_text().endswith("\n"))
    pids = [int(each) for each in marker.read_text().split()]
    assert all(map(psutil.pid_exists, pids))
    kill(explorer)
    trainer.wait_for("end of the programs", lambda: not any(map(psutil.pid_exists, pids)), 30)
    again = launch(*EXPLORER, *own, agentic=True, programs=True)
    assert (trainer.end(), again.end()) == (0, 0), trainer.output + again.output
    assert list(violations(read_run(trainer.dir))) == []


@pytest.mark.slow
def test_two_of_a_name_and_figures_that_differ_are_refused_before_a_worker_starts(launch):
    explorer = launch(*EXPLORER)
    wait_for_groups(explorer, 1)
    same_name = launch(*EXPLORER)
    assert same_name.end() == 2 and "explorer_name = 'explorer': " in same_name.output
    assert "is in use by process" in same_name.output and "or write another explorer_name" in same_name.output
    other = launch(*EXPLORER, "explorer_name=other", "async_generation_ratio=2")
    assert other.end() == 2, other.output
    assert "async_generation_ratio = 2" in other.output and "starting" not in other.output


@pytest.mark.slow
def test_a_trainer_that_gives_up_keeps_what_it_has_trained(launch):
    """Its explorer was here before, and comes back after it."""
    explorer = launch(*EXPLORER, FILES)
    explorer.wait_for("the bound", lambda: waits_at_the_bound(explorer))
    explorer.signal(signal.SIGINT)
    assert explorer.end() == 130, explorer.output
    trainer = launch(*TRAINER, FILES, "save_steps=100", "peer_timeout=3")
    assert trainer.end() == 1, trainer.output
    summary = trainer.summary()
    steps = summary["steps"]
    assert steps > 0 and "there was no explorer for" in summary["reason"]
    assert summary["checkpoint"] == {"step": steps, "lost": ""} and f"step {steps}" in trainer.output
    assert (trainer.dir / f"checkpoints/step-{steps}/manifest.json").exists()
    again = launch(*TRAINER, FILES, "save_steps=100", "peer_timeout=3")
    assert again.end() == 1, again.output
    assert (again.summary()["resumed_from_step"], again.summary()["steps"]) == (steps, steps), "no step is trained twice"


def waits_at_the_bound(explorer):
    """A step's groups are complete, and no other is under way."""
    try:
        ((flying, complete),) = in_database(explorer, "SELECT sum(state = 'in_flight'), sum(state = 'buffered') FROM groups")
    except sqlite3.OperationalError:
        return False
    return flying == 0 and (complete or 0) >= 4
