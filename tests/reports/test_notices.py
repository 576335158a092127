"""Notices: each event is told at most once, also across a resumption; a receiver that fails costs a warning."""

import json
import logging
import socket
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from tiny_world import wait_for

from roll.core.configs.watching import OnEventConfig
from roll.reports import notices
from roll.reports.notices import FILE, Notices, end_of, events_of
from roll.reports.receivers import Receiver, receivers_of

PROGRESS = SimpleNamespace(step=3)
ALARM = {"step": 3, "metric": "actor/ess", "value": 0.2, "action": "warn", "text": "step 3: actor/ess is 0.2, below 0.3"}
BEST = {
    "metric": "val_correct/all/mean",
    "mode": "max",
    "step": 2,
    "value": 0.5,
    "last_step": 2,
    "last_value": 0.5,
    "better": None,
}
ENDED = {"status": "finished", "reason": "", "steps": 9, "verdict": {"kind": "learning", "text": "0.1 → 0.5"}}
SAVES = "import pathlib, sys; file = pathlib.Path(sys.argv[1]); file.open('a').write(sys.stdin.read() + '\\n')"


@pytest.fixture
def told(tmp_path):
    """Starts notices of a run in `tmp_path`, to a program that saves what it is told."""
    file = tmp_path / "told.jsonl"

    def begin(*events, **more):
        command = [sys.executable, "-c", SAVES, str(file)]
        config = OnEventConfig(**dict.fromkeys(events, command), **more)
        return Notices(tuple(receivers_of(config)), "my_run", tmp_path)

    begin.read = lambda: [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return begin


@pytest.fixture
def webhook():
    got = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            got.append(
                (self.path, self.headers["Content-Type"], json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            )
            self.send_response(self.server.answer)
            self.end_headers()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.got, server.answer = got, 200
        server.address = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def end(run, **changes):
    summary = ENDED | changes
    run.on_summary(summary, PROGRESS)
    run.on_run_end(summary)


def test_events_reach_their_command_as_json_with_who_and_where(told, tmp_path):
    run = told("finished", "alarm", "best")
    run.on_summary({"alarms": [ALARM], "best": BEST}, PROGRESS)
    end(run, alarms=[ALARM], best=BEST)
    assert [(row["event"], row["step"]) for row in told.read()] == [("alarm", 3), ("best", 2), ("finished", 9)]
    alarm, best, finished = told.read()
    assert alarm["text"] == "alarm: step 3: actor/ess is 0.2, below 0.3" and alarm["metric"] == "actor/ess"
    assert "best checkpoint" in best["text"] and best["value"] == 0.5
    assert finished["run"] == "my_run" and finished["folder"] == str(tmp_path) and finished["verdict"] == "0.1 → 0.5"
    assert finished["text"] == "finished after step 9: 0.1 → 0.5"


def test_an_event_is_told_once_in_a_run_and_its_resumptions(told):
    first = told("finished", "alarm", "best")
    for _ in range(3):
        first.on_summary({"alarms": [ALARM], "best": BEST}, PROGRESS)
    end(first, alarms=[ALARM], best=BEST)
    again = told("finished", "alarm", "best")
    value_now = ALARM | {"value": 0.1, "text": "step 3: actor/ess is 0.1, below 0.3"}
    other = ALARM | {"step": 5, "text": "step 5: actor/ess is 0.1, below 0.3"}
    end(again, alarms=[value_now, other], best=BEST | {"step": 4}, steps=12)
    found = [(row["event"], row["step"]) for row in told.read()]
    assert sorted(found) == [("alarm", 3), ("alarm", 5), ("best", 2), ("best", 4), ("finished", 9), ("finished", 12)]
    end(told("finished"), steps=12)
    assert len(told.read()) == 6


def test_an_event_is_written_down_before_it_is_sent(told, tmp_path, monkeypatch):
    known = []
    monkeypatch.setattr(Receiver, "send", lambda self, notice: known.append(json.loads((tmp_path / FILE).read_text())))
    end(told("finished"))
    assert known == [["finished 9"]]


def test_every_failure_is_told_and_no_end_by_a_signal():
    def names(status):
        return [event.name for event in end_of(ENDED | {"status": status, "reason": "CUDA error"})]

    assert [names(status) for status in ("finished", "failed", "stopped", "interrupted")] == [
        ["finished"],
        ["failed"],
        ["failed"],
        [],
    ]
    one, other = (next(end_of(ENDED | {"status": "failed"})) for _ in range(2))
    assert one.key != other.key


def test_a_webhook_gets_the_event_and_its_address_is_in_the_environment_alone(webhook, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("MY_HOOK", f"{webhook.address}/services/T0/SECRET")
    config = OnEventConfig(finished="$MY_HOOK")
    end(Notices(tuple(receivers_of(config)), "my_run", tmp_path))
    ((path, kind, body),) = webhook.got
    assert (path, kind, body["event"]) == ("/services/T0/SECRET", "application/json", "finished")
    webhook.answer = 500
    end(Notices(tuple(receivers_of(config)), "my_run", tmp_path), steps=10)
    assert "on_event.finished: the webhook answered 500" in caplog.text
    monkeypatch.setenv("MY_HOOK", "http://127.0.0.1:9/SECRET")
    end(Notices(tuple(receivers_of(config)), "my_run", tmp_path), steps=11)
    assert "the webhook cannot be reached: ConnectError" in caplog.text
    assert "SECRET" not in caplog.text and "SECRET" not in (tmp_path / FILE).read_text()


def test_what_a_command_says_when_it_fails_is_told_without_secrets(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("MY_TOKEN", "sk-very-secret")
    fails = [sys.executable, "-c", "import sys; sys.exit('refused for ' + sys.argv[1])", "$MY_TOKEN"]
    end(Notices(tuple(receivers_of(OnEventConfig(finished=fails))), "r", tmp_path))
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.endswith("ended with 1: refused for *** (the run goes on)") and "sk-very-secret" not in caplog.text


def test_a_word_of_a_command_stays_one_word_and_no_shell_reads_it(tmp_path, monkeypatch):
    monkeypatch.setenv("ODD", "a b; touch x $(touch y) $HOME")
    says = "import sys, pathlib, json; pathlib.Path(sys.argv[1]).write_text(json.dumps(sys.argv[2:]))"
    Receiver("best", [sys.executable, "-c", says, str(tmp_path / "words"), "$ODD", "a$$b"], 10.0).send({})
    assert json.loads((tmp_path / "words").read_text()) == ["a b; touch x $(touch y) $HOME", "a$b"]


@pytest.mark.parametrize("forks", [False, True])
def test_a_command_that_hangs_is_ended_with_its_children(tmp_path, forks):
    pid = tmp_path / "pid"
    fork = "os.fork(); " if forks else ""
    hangs = f"import os, time, pathlib; {fork}pathlib.Path({str(pid)!r}).write_text(str(os.getpid())); time.sleep(600)"
    began = time.monotonic()
    why = Receiver("best", [sys.executable, "-c", hangs], 2.0).send({})
    assert why == f"{sys.executable} was ended after 2 s (on_event.timeout_s)"
    assert time.monotonic() - began < 60

    def gone():
        with suppress(FileNotFoundError, ProcessLookupError):
            return Path(f"/proc/{pid.read_text()}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
        return True

    wait_for("the end of its processes", gone, 30)  # the kernel ends a killed process when it is its turn


def test_a_webhook_that_never_answers_is_given_up():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        why = Receiver("best", f"http://127.0.0.1:{silent.getsockname()[1]}/x", 0.2).send({})
    assert why in ("the webhook at 127.0.0.1 gave no answer in time", "the webhook at 127.0.0.1 cannot be reached: ReadTimeout")


def test_a_slow_receiver_keeps_the_run_neither_waiting_nor_from_its_end(tmp_path, monkeypatch, caplog):
    released = threading.Event()
    monkeypatch.setattr(Receiver, "send", lambda self, notice: released.wait())
    monkeypatch.setattr(notices, "PENDING", 2)
    run = Notices(tuple(receivers_of(OnEventConfig(alarm=["x"], timeout_s=0.05))), "r", tmp_path)
    for step in range(10):
        run.on_summary({"alarms": [ALARM | {"step": step}]}, PROGRESS)
    run.on_run_end(ENDED)
    assert "2 notices wait already: this one is left out" in caplog.text and "left unsent" in caplog.text
    released.set()


@pytest.mark.parametrize("damage", [b"", b"{}", b"[1, 2]", b"\xff"])
def test_a_damaged_record_of_what_was_told_ends_nothing(told, tmp_path, damage):
    (tmp_path / FILE).write_bytes(damage)
    end(told("finished"))
    assert [row["event"] for row in told.read()] == ["finished"]


def test_a_summary_before_the_first_step_has_no_events():
    assert list(events_of({"best": None, "alarms": []})) == []
