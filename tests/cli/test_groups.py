"""`roll show RUN` and `roll show RUN groups`: what the database of a run says of it, while it runs and when it is over."""

import json
import os
import socket

import pyarrow.parquet as pq
import pytest
from database_party import B, Party, explore, run

from roll.cli import main, show


def play(folder):
    """A step is trained, a batch lies ready, a group is in flight; an explorer has left."""

    async def play():
        party = Party(f"sqlite:///{folder}/groups.db")
        async with party.trainer() as trainer, party.joined("first") as first:
            await explore(first, 2 * B)
            await trainer.trained(await trainer.lease(0))
            await trainer.set_published(1)
            await first.set_served(1)
            await first.start()
        return party

    run(play())


def test_status_names_steps_versions_members_and_groups(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(show, "LOOK_S", 0.0)
    play(tmp_path)
    assert main.main(["show", str(tmp_path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "run running" in shown and "steps 1 of 6" in shown
    assert "versions 1 is published, all explorers serve 1 or newer; at most 1 late" in shown
    assert "groups 5 admitted, 2 trained, 2 buffered, 0 in flight, 1 dropped (1 explorer_lost)" in shown
    assert "trainer trainer has left, process 1 on here" in shown
    assert "explorer first has left, serves version 1; 4 groups, 0.07 groups/s" in shown
    assert main.main(["show", str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["database"]
    assert (told["steps"], told["groups"]["dropped"], told["trainers"][0]["state"]) == (1, {"explorer_lost": 1}, "left")
    assert (told["explorers"][0]["name"], told["explorers"][0]["groups"]) == ("first", 4)


@pytest.mark.parametrize(
    ("status", "shown"),
    [
        ("interrupted", "run interrupted: stopped by a signal; its groups are kept"),
        ("failed", "run failed: "),
        ("running", "run running"),
    ],
)
def test_status_and_verdict_say_the_same_of_a_trainer_that_has_stopped(tmp_path, capsys, monkeypatch, status, shown):
    monkeypatch.setattr(show, "LOOK_S", 0.0)
    play(tmp_path)
    summary = {"status": status, "reason": "stopped by a signal", "pid": os.getpid(), "host": socket.gethostname()}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    (tmp_path / "config.yaml").write_text("mode: train\n")
    assert main.main(["show", str(tmp_path)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert told.startswith(shown) and ("verdict stopped" in told) == (status != "running")


def test_groups_are_listed_and_exported_with_their_samples(tmp_path, capsys):
    play(tmp_path)
    assert main.main(["show", str(tmp_path), "groups", "--state", "buffered"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["group", "state", "explorer"]
    assert [line.split()[:4] for line in lines[1:]] == [[str(i), "buffered", "first", f"d/0/{i}"] for i in (2, 3)]
    assert main.main(["show", str(tmp_path), "groups", "--state", "buffered", "--json"]) == 0
    assert [json.loads(line)["group"] for line in capsys.readouterr().out.splitlines()] == [2, 3]
    out = tmp_path / "groups.jsonl"
    assert main.main(["show", str(tmp_path), "groups", "--last", "0", "--export", str(out)]) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["state"] for row in rows] == ["trained", "trained", "buffered", "buffered", "dropped"]
    assert rows[2]["content"]["samples"][1]["response_ids"] == [5, 7]
    assert rows[4]["content"] is None and rows[4]["why"] == "its samples are gone"


def test_groups_are_exported_as_parquet_a_row_a_sample(tmp_path, capsys):
    play(tmp_path)
    out = tmp_path / "groups.parquet"
    assert main.main(["show", str(tmp_path), "groups", "--last", "0", "--export", str(out)]) == 0
    assert "5 groups written" in capsys.readouterr().out
    rows = pq.read_table(out).to_pylist()
    assert [row["group"] for row in rows] == [0, 0, 1, 1, 2, 2, 3, 3, 4]
    ready = rows[5]
    assert (ready["state"], ready["explorer"], ready["sample"], ready["response_ids"]) == ("buffered", "first", 1, [5, 7])
    assert len(ready["behaviour_logprobs"]) == 2 and ready["versions"] == [{"start": 0, "stop": 2, "version": 0, "engine": 0}]
    assert rows[8]["response_ids"] is None and rows[8]["reason"] == "explorer_lost"


def test_what_is_no_run_or_has_no_database_is_one_line(tmp_path, capsys):
    (tmp_path / "empty.db").write_bytes(b"")
    (tmp_path / "config.yaml").write_text(f"groups_database: sqlite:///{tmp_path}/empty.db")
    for view, words in (([], "no such table: runs"), (["groups"], "no such table: groups")):
        assert main.main(["show", str(tmp_path), *view]) == 2
        assert words in capsys.readouterr().err
    (tmp_path / "config.yaml").write_text(f"groups_database: sqlite:///{tmp_path}/gone.db")
    assert main.main(["show", str(tmp_path), "groups"]) == 2
    assert "there is no file" in capsys.readouterr().err and not (tmp_path / "gone.db").exists()
    (tmp_path / "config.yaml").unlink()
    assert main.main(["show", str(tmp_path)]) == 2
    assert "neither groups.db nor summary.json" in capsys.readouterr().err
