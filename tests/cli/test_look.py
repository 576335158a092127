"""`roll samples`, `roll diff`, `roll report` and `roll ui`: what they print, and what they refuse."""

import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from run_files import HOSTILE, lines, make_run, sample

from roll.cli.main import main


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "one", steps=4)


def said(capsys, *arguments):
    assert main([*map(str, arguments)]) == 0
    return capsys.readouterr().out.splitlines()


def test_samples_are_chosen_and_sorted(run, capsys):
    lines(run / "samples.jsonl", [sample(3, 6, 2, reward=0.0, response="longer", response_ids=[1, 2, 3])])
    lines(run / "samples.jsonl", [sample(9, 6, 2, fate="dropped: equal", domain="code", uid="code/0/x")])
    shown = [
        line.split()
        for line in said(capsys, "samples", run, "--step", "2:3", "--reward", "0", "--sort", "length", "--descending")
    ]
    assert [row[:5] for row in shown[1:]] == [["3", "6", "2", "0", "3"], ["2", "3", "1", "0", "2"], ["3", "6", "1", "0", "2"]]
    assert len(said(capsys, "samples", run, "--last", 0)) == 1 + 10 and len(said(capsys, "samples", run, "--last", 2)) == 1 + 2
    (row,) = map(json.loads, said(capsys, "samples", run, "--fate", "dropped", "--reason", "equal", "--domain", "code", "--json"))
    assert row["step"] == 9
    assert said(capsys, "samples", run, "--step", "77") == ["no such rollout was written down"]
    whole = said(capsys, "samples", run, "--step", "3:", "--reward", "0:0.5", "--prompt", "row6", "--full")
    assert whole[1:4] == ["  1+1=", "  2", "  2!"]


def test_what_a_model_wrote_does_not_steer_the_terminal(run, capsys):
    lines(
        run / "samples.jsonl",
        [sample(9, 6, 2, response=HOSTILE, prompt=HOSTILE, fate=HOSTILE, finish_reason=HOSTILE, uid=HOSTILE)],
    )
    for options in ((), ("--full",), ("--json",)):
        told = "\n".join(said(capsys, "samples", run, "--step", "9", *options))
        assert "script" in told and not {"\x1b", "\u202e", "\x00"} & set(told)


@pytest.mark.parametrize("wrong", [("--step", "x"), ("--reward", "1:y")])
def test_samples_refuses_in_one_line(run, capsys, wrong):
    assert main(["samples", str(run), *wrong]) == 2 and capsys.readouterr().err.count("\n") == 1
    assert main(["samples", str(run / "none")]) == 2 and "no such folder" in capsys.readouterr().err


def test_diff_names_keys_results_and_metrics(run, tmp_path, capsys):
    other = make_run(tmp_path / "two", steps=2, actor_train={"training_args": {"learning_rate": 3e-4}})
    told = [line.split() for line in said(capsys, "diff", run, other)]
    assert ["actor_train.training_args.learning_rate", "0.0001", "0.0003"] in told
    assert ["critic/score/mean", "0.04", "0.02", "-50.0%"] in told and ["steps", "4", "2"] in told
    assert ["best", "after", "12.0", "s", "6.0", "s"] in told and ["gained", "a", "minute", "+2.5000", "+5.0000"] in told
    assert not any(
        line[:1] == ["critic/score/mean"] for line in (row.split() for row in said(capsys, "diff", run, other, "--step", "2"))
    )
    assert main(["diff", str(run), str(tmp_path)]) == 2 and "is no run" in capsys.readouterr().err


def test_status_says_that_a_run_has_crashed(run, capsys):
    summary = json.loads((run / "summary.json").read_text())
    import socket

    (run / "summary.json").write_text(json.dumps(summary | {"status": "running", "host": socket.gethostname(), "pid": 2**22 + 1}))
    assert said(capsys, "status", run)[0].startswith("run       crashed: process 4194305 is gone")


def test_a_report_says_how_large_it_is_and_an_empty_folder_that_there_is_no_run(run, tmp_path, capsys):
    (told,) = said(capsys, "report", run, "--out", tmp_path / "r.html")
    assert re.fullmatch(r".*r\.html: 0\.\d MB", told)
    page = (tmp_path / "r.html").read_text()
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page)
    assert data is not None and set(json.loads(data[1])["group"]["one"]) == {"1/0", "2/3", "3/6", "4/9"}
    (tmp_path / "empty").mkdir()
    assert main(["report", str(tmp_path / "empty")]) == 2 and "there is no run" in capsys.readouterr().err


def test_ui_prints_an_address_that_answers_and_ends_at_ctrl_c(run):
    command = [sys.executable, "-m", "roll.cli.main", "ui", "--no-open", str(run.parent)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    ) as page:
        try:
            address = page.stdout.readline().strip()
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{43}", address)
            with urllib.request.urlopen(address.replace("/?", "/api/runs?"), timeout=30) as answer:
                assert [one["name"] for one in json.load(answer)] == ["one"]
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(address.split("?")[0], timeout=30)
        finally:
            page.send_signal(signal.SIGINT)
        assert page.wait(30) == 0 and "Traceback" not in page.stderr.read()


def test_ui_refuses_a_folder_that_is_not_there_and_a_port_that_is_taken(run, capsys):
    import socket

    assert main(["ui", str(run / "none")]) == 2 and "no such folder" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["ui", str(run), "--port", str(taken.getsockname()[1])]) == 2
    assert "choose another with --port" in capsys.readouterr().err


def test_without_the_extra_ui_says_what_to_install(run, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "roll.view.serving", None)
    monkeypatch.delitem(sys.modules, "uvicorn", raising=False)
    assert main(["ui", str(run)]) == 2
    assert "pip install 'roll[ui]'" in capsys.readouterr().err
