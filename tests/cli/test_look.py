"""`roll show RUN samples`, `roll diff`, `roll ui --report` and `roll ui`: what they print, and what they refuse."""

import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from run_files import HOSTILE, lines, make_run, sample

from roll.cli.main import main
from roll.core.distributed.processes import Process


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "one", steps=4)


def said(capsys, *arguments):
    assert main([*map(str, arguments)]) == 0
    return capsys.readouterr().out.splitlines()


def test_samples_are_the_newest_first_with_prompt_and_reference(run, capsys):
    told = said(capsys, "show", run, "samples", "--last", 3)
    assert told == [
        "",
        "step 4, group 9, trained, prompt math/0/row9",
        "  prompt      1+1=",
        "  reference   2",
        "  rollout 0: reward 1, 2 tokens, ended: stop",
        "    response  2!",
        "  rollout 1: reward 0, 2 tokens, ended: stop",
        "    response  2!",
        "",
        "step 3, group 6, trained, prompt math/0/row6",
        "  prompt      1+1=",
        "  reference   2",
        "  rollout 0: reward 1, 2 tokens, ended: stop",
        "    response  2!",
    ]
    steps = [json.loads(line)["step"] for line in said(capsys, "show", run, "samples", "--json")]
    assert steps == [4, 4, 3, 3, 2, 2, 1, 1]


def test_samples_are_chosen_and_sorted(run, capsys):
    lines(run / "samples.jsonl", [sample(3, 6, 2, reward=0.0, response="longer", response_ids=[1, 2, 3])])
    lines(run / "samples.jsonl", [sample(9, 6, 2, status="dropped: equal", domain="code", uid="code/0/x")])
    options = ("--step", "2:3", "--reward", "0", "--sort", "length", "--descending", "--json")
    rows = [json.loads(line) for line in said(capsys, "show", run, "samples", *options)]
    assert [(row["step"], row["group_id"], row["index"]) for row in rows] == [(3, 6, 2), (2, 3, 1), (3, 6, 1)]
    assert len(said(capsys, "show", run, "samples", "--last", 0, "--json")) == 10
    (row,) = map(
        json.loads, said(capsys, "show", run, "samples", "--status", "dropped", "--reason", "equal", "--domain", "code", "--json")
    )
    assert row["step"] == 9
    assert said(capsys, "show", run, "samples", "--step", "77") == ["no such rollout was written down"]
    lines(run / "samples.jsonl", [sample(5, 12, 0, prompt="one\ntwo", response="x" * 500, reward_parts={"right": 1.0})])
    whole = said(capsys, "show", run, "samples", "--step", "5", "--full")
    assert whole[2:4] == ["  prompt      one", "              two"] and whole[-1] == "    response  " + "x" * 500
    assert "  rollout 0: reward 1 (right 1), 2 tokens, ended: stop" in whole
    short = said(capsys, "show", run, "samples", "--step", "5")
    assert short[2] == "  prompt      one two" and short[-1].endswith("x…")


def test_an_episode_is_told_turn_by_turn_with_what_the_environment_said(run, capsys):
    def turn(observation, action):
        return {"observation": observation, "action": action, "reward": 0.5, "is_valid": True, "is_effective": True, "tokens": 1}

    episode = {"turns": [turn("a frozen lake", "left"), turn("you moved", "down")], "first_turn": 0, "num_turns": 2}
    episode |= {"success": True, "end": "terminated"}
    lines(
        run / "samples.jsonl",
        [sample(7, 12, 0, prompt="a frozen lake", ground_truth="", response="left\ndown", trajectory=episode)],
    )
    assert said(capsys, "show", run, "samples", "--step", "7")[2:] == [
        "  prompt      a frozen lake",
        "  rollout 0: reward 1, 2 tokens, ended: terminated, success",
        "    turn 1    left",
        "    saw 2     you moved",
        "    turn 2    down",
    ]


def test_what_a_program_sent_is_told_where_it_is_wanted(run, capsys):
    exchange = {
        "path": "/v1/messages",
        "repeats": {"of": "call_1", "messages": 2},
        "request": {"stream": True},
        "answer": "{[cut]",
    }
    turn = {"observation": "a", "action": "b", "reward": 0, "is_valid": True, "is_effective": True, "tokens": 1}
    episode = {"turns": [turn | {"exchange": exchange}], "first_turn": 0, "num_turns": 1, "end": "terminated"}
    lines(run / "samples.jsonl", [sample(7, 12, 0, prompt="a", ground_truth="", trajectory=episode)])
    assert said(capsys, "show", run, "samples", "--step", "7")[-1] == "    turn 1    b"
    assert said(capsys, "show", run, "samples", "--step", "7", "--requests", "--full")[-6:] == [
        "    turn 1    b",
        "    sent      /v1/messages without what it repeats of call_1: messages (2)",
        "              {",
        '                "stream": true',
        "              }",
        "    answered  {[cut]",
    ]


@pytest.mark.parametrize("command", [["show", "{}", "samples"], ["show", "{}"], ["verify", "{}"]], ids=" ".join)
def test_a_folder_of_runs_names_them(run, tmp_path, capsys, command):
    make_run(tmp_path / "two")
    assert main([word.format(tmp_path) for word in command]) == 2
    assert f"this is a folder of runs; name one of them: {run}, {tmp_path / 'two'}" in capsys.readouterr().err


def test_what_a_model_wrote_does_not_steer_the_terminal(run, capsys):
    lines(
        run / "samples.jsonl",
        [sample(9, 6, 2, response=HOSTILE, prompt=HOSTILE, status=HOSTILE, finish_reason=HOSTILE, uid=HOSTILE)],
    )
    for options in ((), ("--full",), ("--json",)):
        told = "\n".join(said(capsys, "show", run, "samples", "--step", "9", *options))
        assert "script" in told and not {"\x1b", "\u202e", "\x00"} & set(told)


@pytest.mark.parametrize("wrong", [("--step", "x"), ("--reward", "1:y")])
def test_samples_refuses_in_one_line(run, capsys, wrong):
    assert main(["show", str(run), "samples", *wrong]) == 2 and capsys.readouterr().err.count("\n") == 1
    assert main(["show", str(run / "none"), "samples"]) == 2 and "no such folder" in capsys.readouterr().err


def test_diff_names_keys_results_and_metrics(run, tmp_path, capsys):
    other = make_run(tmp_path / "two", steps=2, actor_train={"training_args": {"learning_rate": 3e-4}})
    told = [line.split() for line in said(capsys, "diff", run, other)]
    assert ["actor_train.training_args.learning_rate", "0.0001", "0.0003"] in told
    assert ["critic/score/mean", "0.04", "0.02", "-50.0%"] in told and ["steps", "4", "2"] in told
    assert ["best", "after", "12.0", "s", "6.0", "s"] in told and ["gained", "per", "minute", "+2.5000", "+5.0000"] in told
    assert not any(
        line[:1] == ["critic/score/mean"] for line in (row.split() for row in said(capsys, "diff", run, other, "--step", "2"))
    )
    assert main(["diff", str(run), str(tmp_path)]) == 2 and "is no run" in capsys.readouterr().err


def test_what_is_shown_is_also_data(run, tmp_path, capsys):
    told = json.loads("\n".join(said(capsys, "show", run, "--json")))
    assert (told["state"], told["step"], told["alarms"]) == ("finished", 4, []) and told["verdict"]["kind"]
    other = make_run(tmp_path / "two", steps=2, actor_train={"training_args": {"learning_rate": 3e-4}})
    told = json.loads("\n".join(said(capsys, "diff", run, other, "--json")))
    assert ["actor_train.training_args.learning_rate", "0.0001", "0.0003"] in told["differences"]
    assert told["metrics"]["critic/score/mean"] == [0.04, 0.02] and [each["steps"] for each in told["runs"]] == [4, 2]


def test_status_says_that_a_run_has_crashed(run, capsys):
    summary = json.loads((run / "summary.json").read_text())
    gone = asdict(replace(Process.this(), pid=2**22 + 1))
    (run / "summary.json").write_text(json.dumps(summary | {"status": "running", "process": gone}))
    told = said(capsys, "show", run)
    assert told[0].startswith("run       crashed: process 4194305 is gone")
    assert told[1].startswith("verdict   stopped: crashed; until then learning: ")


def test_status_has_the_verdict_the_validation_and_the_warnings(run, capsys):
    lines(run / "metrics.jsonl", [{"step": 9, "val/errors": 73, "val/rollouts": 128, "val/score/mean": 1.0}])
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(summary | {"warnings": ["the answers are odd"], "advice": ["go on"]}))
    told = said(capsys, "show", run)
    assert told[:2] == ["run       finished", "verdict   not judged: 73 of 128 validation rollouts of step 9 have no reward"]
    assert "validated –, score 1.000, 73 of 128 not judged (step 9)" in told
    assert told[-2:] == ["warning   the answers are odd", "advice    go on"]


def test_a_report_says_how_large_it_is_and_an_empty_folder_that_there_is_no_run(run, tmp_path, capsys):
    (told,) = said(capsys, "ui", run, "--report", tmp_path / "r.html")
    assert re.fullmatch(r".*r\.html: 0\.\d MB", told)
    page = (tmp_path / "r.html").read_text()
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page)
    assert data is not None and set(json.loads(data[1])["group"]["one"]) == {"1/0", "2/3", "3/6", "4/9"}
    (tmp_path / "empty").mkdir()
    assert (
        main(["ui", str(tmp_path / "empty"), "--report", str(tmp_path / "r.html")]) == 2
        and "there is no run" in capsys.readouterr().err
    )


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
    monkeypatch.setitem(sys.modules, "roll.view.server", None)
    monkeypatch.delitem(sys.modules, "uvicorn", raising=False)
    assert main(["ui", str(run)]) == 2
    assert "pip install starlette uvicorn" in capsys.readouterr().err
