"""Whatever dies, hangs, fails or comes late, a run keeps its promises (test_mutations.py: were one broken, it would be found)."""

import json
import os
import re
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import again
import pytest
from fault_schedules import Fault, Schedule, schedules
from hypothesis import HealthCheck, given, settings
from party import PartySchedule, broken_promises_of, parties
from programs import environment
from promises import BROKEN, FAULTS, broken_promises, held
from test_mutations import admission_off_by_one

from roll.cli.main import main
from roll.view.runs import Runs

COUNT = int(os.environ.get("ROLL_SCHEDULES", "60"))
"""Of schedules: `ROLL_SCHEDULES=10000 pytest -n 0 tests/simulate/test_faults.py` takes half an hour of a core."""
PARTIES = max(12, COUNT // 20)
"""Of schedules with explorers as processes of their own: statements of SQL make one ten times as long."""
LONGEST_S = 900 + COUNT
"""Of a busy machine; the shortest schedule takes some minutes to find."""
QUIET = Schedule(
    seed=1, engines=2, trainers=1, steps=4, batch=3, ratio=1.0, save_steps=2, eval_steps=2, validated=2, push=1, pull=0,
    redundant=0, policy="wait", mode="interrupt", expand=False, on_arrival=False, shared=False, copy="",
    newest_first=False, reuse=1, synchronous_after=0, watched=False, latency_s=0.05, pass_rate=0.5, train_s=1.5, faults=(),
)  # fmt: skip


@pytest.mark.timeout(LONGEST_S)
@settings(max_examples=COUNT, suppress_health_check=list(HealthCheck))
@given(schedules())
def test_no_schedule_of_faults_breaks_a_promise(memory_folder, schedule):
    held(broken_promises, schedule, memory_folder)


@pytest.mark.slow
@pytest.mark.timeout(LONGEST_S)
@settings(max_examples=PARTIES, suppress_health_check=list(HealthCheck))
@given(parties())
def test_explorers_join_and_leave_and_the_trainer_starts_again_and_no_promise_is_broken(memory_folder, schedule):
    held(broken_promises_of, schedule, memory_folder)


def test_a_schedule_replays_exactly(memory_folder):
    deaths = (
        Fault(5.0, "engine dies", 1),
        Fault(9.0, "trainer dies", 0),
        Fault(14.0, "signal", 0),
        Fault(20.0, "engine hangs", 0),
    )
    schedule = replace(QUIET, faults=deaths, latency_s=1.0)
    journals = []
    for place in ("once", "again"):
        folder = memory_folder / place
        assert broken_promises(schedule, folder) == []
        journals.append([(folder / "run" / f"{name}.jsonl").read_text() for name in ("groups", "metrics")])
    assert journals[0] == journals[1], "every status and every figure, to the last digit of a second"


def test_a_schedule_that_breaks_a_promise_can_be_opened_in_the_pages_time_view(memory_folder, tmp_path, monkeypatch):
    """All attempts on one line of time, on which the faults lie where the schedule has them, and what nobody ended is there."""
    admission_off_by_one(monkeypatch)
    monkeypatch.setattr("promises.KEPT", kept := tmp_path / "kept")
    monkeypatch.setattr("promises.LONGEST_S", 50.0)
    faults = (Fault(5.0, "engine dies", 1), Fault(9.0, "signal", 0), Fault(12.0, "trainer dies", 0))
    with pytest.raises(AssertionError, match=r"1\.25 s: 8 groups are live, at most 6 may be") as broken:
        held(broken_promises, replace(QUIET, faults=faults), memory_folder)
    program, *command = str(broken.value).rpartition(": ")[2].split()
    assert program == "roll" and main([*command, "--report", str(page := tmp_path / "page.html")]) == 0
    assert "trainer dies (0)" in page.read_text()
    rows = {row["name"]: row["spans"] for row in Runs([kept]).run("run").picture(None, None, 1000)["rows"]}
    assert [(what, begin) for begin, _, what, *_ in rows[FAULTS]] == [
        (f"{fault.kind} ({fault.whom})", pytest.approx(fault.at_s, abs=0.1)) for fault in faults
    ]
    assert rows[BROKEN][0][0] == pytest.approx(1.25, abs=0.1) and "does not end within 50 s" in str(broken.value)
    ends = [end for _, end, *_ in rows["stage.lease"]]
    assert ends == sorted(ends) and ends[-1] == pytest.approx(59.0, abs=0.1), "9 s, and the 50 that the second was given"


class Stops:
    """In the place of Python's debugger: what is to be seen where it stops."""

    def __init__(self, monkeypatch):
        self.seen = []
        monkeypatch.setattr(sys, "breakpointhook", self)

    def __call__(self):
        told = sys._getframe(1).f_locals
        self.seen.append((told["at_s"], told["in_play"]))


def kept(judge, schedule, folder, monkeypatch, tmp_path):
    """The file of a schedule that breaks a promise, by the command that was printed."""
    monkeypatch.setattr("promises.KEPT", tmp_path / "kept")
    with pytest.raises(AssertionError, match="promises are broken") as broken:
        held(judge, schedule, folder)
    (line,) = [line for line in str(broken.value).splitlines() if line.startswith("the same again")]
    _, program, file, stop = line.rpartition(": ")[2].split()
    assert Path(program).is_file() and stop == "--break"
    return file


def test_a_schedule_that_breaks_a_promise_is_run_again_alone_and_opens_in_the_debugger(
    memory_folder, tmp_path, monkeypatch, capsys
):
    """At the broken promise, or at a second, of an attempt that was resumed, too; the run is the same without and with it."""
    admission_off_by_one(monkeypatch)
    monkeypatch.setattr("promises.LONGEST_S", 50.0)
    faults = (Fault(5.0, "engine dies", 1), Fault(9.0, "signal", 0))
    file = kept(broken_promises, replace(QUIET, faults=faults), memory_folder, monkeypatch, tmp_path)
    stops = Stops(monkeypatch)
    assert again.main([file, "--break", "1e6"]) == 1 and stops.seen == []
    told, _, missed = capsys.readouterr().out.partition("the debugger was not reached")
    assert "after 1.25 s: 8 groups are live, at most 6 may be" in told and missed
    for where, at_s in (([], 1.25), (["20"], 20.0)):
        assert again.main([file, "--break", *where]) == 1
        assert capsys.readouterr().out == told, "nothing happens otherwise"
        (at, (run,)) = stops.seen.pop()
        assert at == pytest.approx(at_s, abs=0.5) and run.state.groups.admission.live


def test_the_debugger_is_pythons_and_shows_the_run(tmp_path):
    (file := tmp_path / "schedule.json").write_text(json.dumps(asdict(QUIET)))
    command = [sys.executable, again.__file__, str(file), "--break", "6"]
    looks = "p round(at_s), [run.state.record.step for run in in_play]\nc\n"
    own = environment() | {"PYTHONBREAKPOINT": ""}  # which Ray sets in a process that has started it
    told = subprocess.run(command, input=looks, capture_output=True, text=True, env=own, timeout=100, check=True).stdout
    assert re.search(r"\(Pdb\) \(6, \[\d\]\)", told) and told.endswith("all promises are kept\n")


def test_a_schedule_with_explorers_apart_is_run_again_alone(memory_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("party.after_the_end", lambda summary: ["a promise of this test"])
    schedule = PartySchedule(replace(QUIET, engines=1, steps=2), 1, (Fault(3.0, "explorer joins", 0),))
    file = kept(broken_promises_of, schedule, memory_folder, monkeypatch, tmp_path)
    assert again.read(Path(file).read_text()) == schedule
    stops = Stops(monkeypatch)
    assert again.main([file, "--break", "4"]) == 1 and "a promise of this test" in capsys.readouterr().out
    ((at, runs),) = stops.seen
    assert at == pytest.approx(4.0, abs=0.5) and len(runs) >= 2


@pytest.mark.parametrize("ratio", [0.0, 2.0])
def test_an_engine_that_is_lost_while_it_loads_after_the_trainers_restart_is_replaced(memory_folder, ratio):
    """The weights that it is to load fail right after the trainer has died."""
    faults = (Fault(7.9, "weights fail", 0), Fault(8.0, "weights fail", 1), Fault(8.0, "trainer dies", 0))
    assert broken_promises(replace(QUIET, ratio=ratio, faults=faults), memory_folder) == []


def test_a_trainer_that_dies_waits_for_the_node_of_the_engine_on_its_devices(memory_folder):
    deaths = (Fault(32.0, "engine's node goes", 0, 10.0), Fault(40.0, "trainer dies", 0))
    held(broken_promises, replace(QUIET, engines=3, batch=2, ratio=0.0, shared=True, train_s=6.0, faults=deaths), memory_folder)


def test_an_explorer_whose_only_engine_is_lost_while_it_loads_replaces_it_and_does_not_take_the_run_for_over(memory_folder):
    """The second explorer joins after the first version was published, and its engine loads."""
    faults = (Fault(20.0, "explorer joins", 0), Fault(21.5, "engine dies", 1))
    run = replace(QUIET, engines=1, steps=4, pull=0, ratio=1.0, train_s=6.0)
    assert broken_promises_of(PartySchedule(run, 1, faults), memory_folder) == []


def test_explorers_that_hear_late_that_the_trainer_failed_explore_on_with_the_one_that_is_back(memory_folder):
    """They take part anew, for its versions were taken back, and what they had heard of the end is no longer so."""
    faults = [Fault(0.0, "explorer joins", 0)] * 2 + [Fault(35.5, "links are slow", 0, 24.2), Fault(57.87, "trainer dies", 0)]
    run = replace(QUIET, seed=280, engines=1, steps=5, train_s=6.0, latency_s=0.0)
    assert broken_promises_of(PartySchedule(run, 1, tuple(faults)), memory_folder) == []


def test_a_trainer_that_hangs_at_the_last_checkpoint_of_an_interrupted_run_fails_it_and_it_can_be_resumed(memory_folder):
    """`rpc_timeout` finds it. Links are so slow that the signal comes while the last step ends."""
    faults = (Fault(14.17, "links are slow", 3, 19.0), Fault(15.02, "trainer hangs", 1), Fault(30.56, "signal", 2))
    before = (Fault(0.0, "trainer hangs", 0), Fault(0.0, "writing fails", 1), Fault(0.94, "trainer hangs", 0))
    run = replace(QUIET, seed=325, engines=1, trainers=2, batch=4, ratio=0.0, save_steps=3, mode="in_flight", on_arrival=True)
    assert broken_promises(replace(run, train_s=0.5, faults=(*before, *faults)), memory_folder) == []


def test_a_task_in_flight_at_the_last_checkpoint_which_a_dead_trainer_goes_back_to_waits_for_a_longer_run(memory_folder):
    faults = (Fault(32.0, "trainer dies", 2), Fault(5.45, "engine's node goes", 1, 19.7), Fault(26.12, "judging fails", 2, 1.2))
    ahead = {"ratio": 2.0, "push": 2, "pull": 2, "redundant": 1, "policy": "drop", "newest_first": True, "reuse": 1}
    run = replace(QUIET, seed=200, engines=3, steps=3, save_steps=3, validated=12, expand=True, watched=True, **ahead)
    assert broken_promises(replace(run, latency_s=0.0, train_s=0.5, faults=faults), memory_folder) == []


@pytest.mark.parametrize("kind", ["signal", "SIGTERM"])
def test_a_trainer_that_dies_while_the_last_checkpoint_of_an_interrupted_run_is_written_fails_it_and_it_can_be_resumed(
    memory_folder, kind
):
    """Nothing is left that watches it: the call to write says so."""
    run = replace(QUIET, seed=0, engines=1, steps=2, batch=2, eval_steps=100, push=2, latency_s=0.0, pass_rate=0.9)
    assert broken_promises(replace(run, faults=(Fault(20.0, kind, 0), Fault(21.0, "trainer dies", 0))), memory_folder) == []
