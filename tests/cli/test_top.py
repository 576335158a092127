"""`roll top`: all runs at one look, from their files or from a database."""

import json
import os
import time
from dataclasses import asdict, replace

import pytest
from database_party import with_explorers
from rich.console import Console
from run_files import HOSTILE, lines, make_run, metric

from roll.cli import top
from roll.cli.main import main
from roll.core.distributed.processes import Process
from roll.view import overview
from roll.view.overview import Overview


def summarise(folder, **changes):
    path = folder / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.fixture
def runs(tmp_path):
    """One that runs, one that has ended, one whose process is gone."""
    make_run(tmp_path / "output/ended", steps=4)
    running = make_run(tmp_path / "output/deep/running", steps=2, status="running")
    best = {"metric": "val_correct/all/mean", "value": 0.75, "step": 2}
    told = {"alarms": [{"text": "step 2: actor/ess is 0.1"}], "warnings": ["a warning"], "advice": ["an advice"], "best": best}
    summarise(running, process=asdict(Process.this()), **told)
    crashed = make_run(tmp_path / "output/crashed", steps=3, status="running")
    summarise(crashed, process=asdict(replace(Process.this(), pid=2**22 + 1)))
    old = time.time() - 5000
    for name in overview.LATEST:
        if (crashed / name).exists():
            os.utime(crashed / name, (old, old))
    return tmp_path / "output"


def as_json(capsys, *arguments):
    assert main(["top", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_each_run_has_a_row_with_what_an_operator_asks_first(runs, capsys):
    rows = {row["name"]: row for row in as_json(capsys, runs)}
    assert next(iter(rows)) == "deep/running" and {*rows} == {"ended", "deep/running", "crashed"}
    running = rows["deep/running"]
    assert (running["state"], running["step"], running["max_steps"], running["bound"]) == ("running", 2, 10, 1)
    assert running["left_s"] == pytest.approx(24.0) and running["staleness"] == 1.0
    assert running["idle"] == {"actor_train": 0.25} and running["best"]["value"] == 0.75
    assert running["warnings"] == ["alarm: step 2: actor/ess is 0.1", "a warning"] and running["warned"] == 2
    assert running["verdict"]["kind"] == "learning"
    assert rows["ended"]["best"] == {"metric": "val_correct/all/mean", "value": 0.75, "step": 4}
    assert rows["ended"]["left_s"] is None
    assert rows["crashed"]["state"] == "crashed" and rows["crashed"]["written_s_ago"] > 4000


def test_the_screen_shows_the_running_ones_first_and_says_how_many_are_hidden(runs):
    console = Console(width=200, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(top.screen(Overview([runs]).rows(), most=2))
    text = console.export_text().splitlines()
    assert text[0].startswith("3 runs, 1 running")
    assert text[2].split()[:3] == ["deep/running", "running", "2/10"] and "1.00/1" in text[2] and "train 25%" in text[2]
    assert "0.750 at 2" in text[2] and text[2].split()[-1] == "2"
    assert "and 1 more" in text and "deep/running: a warning" in text


def test_where_the_output_is_no_terminal_it_is_printed_once(runs, capsys):
    assert main(["top", str(runs)]) == 0
    assert "3 runs, 1 running" in capsys.readouterr().out


def test_a_run_that_is_over_is_read_once(runs, monkeypatch):
    read, whole = [], overview.row_of
    monkeypatch.setattr(overview, "row_of", lambda name, reader: read.append(name) or whole(name, reader))
    seen = Overview([runs])
    assert [len(seen.rows()), len(seen.rows())] == [3, 3]
    assert sorted(read) == ["crashed", "deep/running", "deep/running", "ended"]
    lines(runs / "ended/metrics.jsonl", [metric(5)])
    os.utime(runs / "ended/metrics.jsonl", (time.time() + 5, time.time() + 5))
    assert {row["name"]: row["step"] for row in seen.rows()}["ended"] == 5
    summarise(runs / "deep/running", status="finished")
    assert {row["name"]: row["state"] for row in seen.rows()}["deep/running"] == "finished"
    (runs / "crashed/summary.json").unlink()
    (runs / "crashed/config.yaml").unlink()
    assert {row["name"] for row in seen.rows()} == {"ended", "deep/running"}


def test_what_a_run_has_written_changes_no_terminal(runs, capsys):
    summarise(runs / "deep/running", warnings=[HOSTILE, "[bold red]markup[/]"], reason=HOSTILE)
    assert main(["top", str(runs), "--once"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out and "\u202e" not in out and "[bold red]markup[/]" in out


def test_a_folder_that_is_not_there_is_one_line(tmp_path, capsys):
    assert main(["top", str(tmp_path / "no")]) == 2
    assert capsys.readouterr().err.endswith("there is no such folder; name one that holds runs\n")
    assert main(["top", f"sqlite:///{tmp_path}/no.db"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and "no.db" in err and err.count("\n") == 1


def test_a_database_is_a_row_without_the_folder_of_its_run(tmp_path, capsys):
    with_explorers(make_run(tmp_path / "run"))
    (row,) = as_json(capsys, f"sqlite:///{tmp_path}/run/groups.db")
    assert (row["name"], row["folder"], row["max_steps"]) == ("party", "/runs/party", 6)
    assert row["explorers"] and all(one["groups"] for one in row["explorers"])
    Console().print(top.screen([row]))
    assert "party" in capsys.readouterr().out
