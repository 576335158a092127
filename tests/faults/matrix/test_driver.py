"""The driver, killed at thirty moments of one run, its start included, and at five on Ray; and two drivers on one folder."""

from __future__ import annotations

import json
import random
import signal
import time

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

AUTO = "resume_from_checkpoint=auto"
ENDLESS = ("max_steps=100000", "save_steps=2", "max_ckpt_to_keep=2", AUTO)


def kill_at_random(run, chance: random.Random) -> str:
    """SIGKILL within the first seconds of the process, whatever it does then, or within half a second of a step that is due."""
    if chance.random() < 0.25:
        time.sleep(chance.uniform(0.0, 12.0))
        when = "in its start"
    else:
        run.wait_for_steps(len(run.steps()) + chance.randint(1, 3), 400)
        time.sleep(chance.uniform(0.0, 0.5))
        when = "at work"
    run.look_up_family()
    assert run.process.poll() is None, f"the run was over before it could be killed:\n{run.output}"
    run.signal(signal.SIGKILL)
    assert run.end() == -signal.SIGKILL
    assert "Traceback" not in run.output, run.output
    return when


def kill_and_resume(launch, row, verified, kills: int, seed: int, **options) -> None:
    line = row("rlvr", "driver", f"SIGKILL {kills} times{'' if options['local'] else ', Ray'}")
    chance = random.Random(seed)
    # A policy that has learned the task in a hundred steps has no group left that teaches anything, and its run no next step.
    learning = "actor_train.training_args.learning_rate=1.0e-6"
    begun, steps, moments = time.monotonic(), [], []
    for number in range(kills):
        run = launch(*ENDLESS, learning, **options)
        moments.append(kill_at_random(run, chance))
        if not options["local"]:
            run.wait_for_family_to_end()
        if (run.dir / "config.yaml").exists():
            verified(run.dir)
        steps.append(len(run.steps()))
        print(f"kill {number + 1:>2} {moments[-1]:<12} after step {steps[-1]}", flush=True)
    at_work = moments.count("at work")
    assert 0 < at_work < kills, "the seed hits one kind of moment only"
    line.begins()
    last = launch("save_steps=2", "max_ckpt_to_keep=2", AUTO, learning, f"max_steps={steps[-1] + 6}", **options)
    assert last.end(400) == 0, last.output
    assert "Traceback" not in last.output, last.output
    verified(last.dir)
    summary = last.summary()
    assert (summary["status"], summary["steps"]) == ("finished", steps[-1] + 6)
    assert last.steps() == list(range(1, steps[-1] + 7)), "a step is lost or told twice"
    line.ends(f"{summary['steps']} steps, each once; {at_work} kills at work, {kills - at_work} in the start")
    print(f"{time.monotonic() - begun:.0f} s in all")


def test_killed_thirty_times(launch, row, verified):
    kill_and_resume(launch, row, verified, kills=30, seed=30, local=True)


@pytest.mark.ray
def test_killed_five_times_with_ray(launch, row, verified):
    kill_and_resume(launch, row, verified, kills=5, seed=7, local=False)


@pytest.mark.parametrize("agentic", [False, True], ids=["rlvr", "agentic"])
def test_of_two_that_start_together_one_has_the_folder(launch, row, verified, agentic):
    line = row("agentic" if agentic else "rlvr", "driver", "two started together on one folder")
    runs = [launch(AUTO, agentic=agentic) for _ in range(2)]
    line.begins()
    codes = [run.end(400) for run in runs]
    assert sorted(codes) == [0, 2], "\n".join(run.output for run in runs)
    winner, loser = (runs[codes.index(code)] for code in (0, 2))
    (error,) = [text for text in loser.output.splitlines() if text.startswith("error: ")]
    assert f"process {winner.process.pid} on " in error or "is in use by another process" in error
    assert not any("Traceback" in run.output for run in runs)
    assert winner.steps() == list(range(1, 13)) and not (winner.folder / "run.old-1").exists()
    verified(winner.dir)
    line.ends("one refused in one line, the other finished")


@pytest.mark.ray
def test_a_second_driver_is_refused_while_the_first_one_trains_on_ray(launch, row, verified):
    line = row("rlvr", "driver", "a second one on the folder, Ray")
    first = launch("max_steps=100000", AUTO, local=False)
    first.wait_for_steps(2, 400)
    line.begins()
    second = launch("max_steps=100000", AUTO, local=False)
    assert second.end(240) == 2, second.output
    line.ends("refused in one line, the first one not disturbed")
    assert f"process {first.process.pid} on " in second.output and "Traceback" not in second.output
    first.wait_for_steps(len(first.steps()) + 3, 240)
    first.signal(signal.SIGTERM)
    assert first.end(240) == 130, first.output
    verified(first.dir)
    ids = [json.loads(text)["group_id"] for text in (first.dir / "groups.jsonl").read_text().splitlines()]
    assert len(ids) == len(set(ids))
