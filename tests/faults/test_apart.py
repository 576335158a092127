"""Explorers and a trainer as processes of their own: in any order, killed and started again, coming and going."""

import json
import signal
import sqlite3

import pytest

from roll.cli.verify import read_run, violations

STEPS = 12
APART = ("model_update_transport=checkpoint_dir", "num_gpus_per_node=1", "resume_from_checkpoint=auto", "member_timeout=5")
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
def test_a_trainer_that_comes_first_is_killed_and_goes_on_from_its_checkpoint(launch, accounts):
    trainer = launch(*TRAINER)
    explorer = launch(*EXPLORER)
    trainer.wait_for_steps(5)
    kill(trainer)
    again = launch(*TRAINER)
    assert (again.end(), explorer.end()) == (0, 0), again.output + explorer.output
    accounts(again.dir, validated=None)


@pytest.mark.slow
def test_a_trainer_that_trains_groups_again_is_killed_and_goes_on_from_its_checkpoint(launch):
    replay = ("async_generation_ratio=4", "max_reuse=2", "save_steps=2")
    trainer = launch(*TRAINER, *replay)
    explorer = launch(*EXPLORER, *replay)
    trainer.wait_for_steps(5)
    kill(trainer)
    again = launch(*TRAINER, *replay)
    assert (again.end(), explorer.end()) == (0, 0), again.output + explorer.output
    assert list(violations(read_run(again.dir))) == []
    groups = again.summary()["groups"]
    assert groups["trained"] + groups["replayed"] == STEPS * 4 and groups["replayed"] > 0
    assert in_database(again, "SELECT count(*) FROM replays") == [(groups["replayed"],)]


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


@pytest.mark.slow
def test_two_of_a_name_and_figures_that_differ_are_refused_before_a_worker_starts(launch):
    explorer = launch(*EXPLORER)
    wait_for_groups(explorer, 1)
    same_name = launch(*EXPLORER)
    assert same_name.end() == 2 and "is in use by process" in same_name.output
    other = launch(*EXPLORER, "explorer_name=other", "async_generation_ratio=2")
    assert other.end() == 2, other.output
    assert "async_generation_ratio = 2" in other.output and "starting" not in other.output
