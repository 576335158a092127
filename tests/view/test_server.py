"""The page over HTTP: only for who knows the token, only what lies in the runs, however many read, however large the files."""

import asyncio
import contextlib
import json
import os
import shutil
import socket
import threading
import tracemalloc

import httpx
import pytest
from run_files import HOSTILE, ended, lines, make_run, metric, sample

from roll.view import server
from roll.view.runs import MOST_OPEN, Runs
from roll.view.server import app

TOKEN = "t0ken-" * 6


@pytest.fixture
def folder(tmp_path):
    make_run(tmp_path / "runs/one")
    make_run(tmp_path / "runs/deep/two", steps=2)
    return tmp_path / "runs"


def the_app(folder):
    runs = Runs([folder])
    return app(runs, server.Watch(runs), TOKEN, "roll_ui")


def ask(folder, *paths, **headers):
    """The answers to several requests, one after the other."""

    async def asked():
        transport = httpx.ASGITransport(the_app(folder))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
            return [await client.get(path, headers=headers) for path in paths]

    found = asyncio.run(asked())
    return found if len(paths) > 1 else found[0]


def question(what, **params):
    return httpx.URL(f"/api/{what}", params={"token": TOKEN} | params)


def test_every_question_of_the_page_has_an_answer(folder):
    (key,) = [row["key"] for row in ask(folder, question("groups", run="one", kept="true", step_to=1)).json()["rows"]]
    answers = ask(
        folder,
        question("runs"),
        question("status", run="one"),
        question("curves", run="one", name="critic/score/mean"),
        question("clock", run="one"),
        question("funnel", run="one"),
        question("group", run="one", key=key),
        question("prompt", run="one", uid="math/7/row0"),
        question("lanes", run="one", width=50),
        question("weighed"),
        httpx.URL("/api/compare", params=[("token", TOKEN), ("run", "one"), ("run", "deep/two")]),
    )
    assert {answer.status_code for answer in answers} == {200}
    runs, status, curves, clock, _, group, prompt, lanes, weighed, compared = (answer.json() for answer in answers)
    assert {run["name"] for run in runs} == {"one", "deep/two"} and status["step"] == 4
    assert curves["critic/score/mean"]["values"] == [0.01, 0.02, 0.03, 0.04] and clock[-1][:2] == [4, 12.0]
    assert len(group["samples"]) == 2 and [place["key"] for place in prompt["places"]] == ["1/0"]
    assert lanes["rows"][0]["spans"][1][2:] == ["waiting for input", 1, {"reason": "3 of 8"}]
    assert [(row["step_s"], row["lag"]) for row in weighed] == [(3.0, 1.0)] * 2 and sum(row["best"] for row in weighed) == 1
    assert [run["steps"] for run in compared["runs"]] == [4, 2] and compared["differences"] == []


def test_without_the_token_nothing_is_answered(folder):
    for path in (
        "/",
        "/static/app.js",
        "/api/runs",
        "/api/runs?token=",
        "/api/runs?token=wrong",
        f"/api/runs?token={TOKEN}x",
        "/no",
    ):
        answer = ask(folder, path)
        assert answer.status_code == 401 and "one" not in answer.text
    assert ask(folder, "/api/runs", cookie="roll_ui=wrong").status_code == 401
    first = ask(folder, f"/?token={TOKEN}")
    assert first.status_code == 303 and first.headers["location"] == "/"
    assert "httponly" in first.headers["set-cookie"].lower() and "samesite=strict" in first.headers["set-cookie"].lower()
    assert ask(folder, "/", cookie=f"roll_ui={TOKEN}").text.startswith("<!doctype html>")


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:80", "localhost.evil.example", "", "[::2]:80", "127.0.0.1:80@evil"]
)
def test_another_host_is_refused_with_the_token_too(folder, host):
    assert ask(folder, question("runs"), host=host).status_code == 421


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:1", "localhost", "[::1]:9"])
def test_loopback_has_several_names(folder, host):
    assert ask(folder, question("runs"), host=host).status_code == 200


def test_it_is_read_only(folder):
    async def posted():
        transport = httpx.ASGITransport(the_app(folder))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return [
                (await client.request(method, question("runs"))).status_code for method in ("POST", "PUT", "DELETE", "OPTIONS")
            ]

    assert asyncio.run(posted()) == [405] * 4


def test_every_answer_has_the_policy(folder):
    for answer in ask(folder, f"/static/app.js?token={TOKEN}", question("runs"), "/", question("status", run="no")):
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'") and "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff" and answer.headers["cache-control"] == "no-store"


def test_paths_lead_nowhere_else(folder, tmp_path):
    make_run(tmp_path / "outside")
    secret = tmp_path / "secret.txt"
    secret.write_text("a secret")
    (folder / "linked").symlink_to(tmp_path / "outside")
    names = ["../outside", "one/../../outside", "linked", str(tmp_path / "outside"), "one/", "", "one\x00", "%2e%2e/outside", "~"]
    for name in names:
        answers = ask(folder, question("status", run=name), question("group", run=name, key="1/0"), question("stream", run=name))
        assert [answer.status_code for answer in answers] == [404] * 3
    for name in ("../server.py", "..%2fserver.py", "%2e%2e/server.py", "/etc/passwd", "no.js", "uPlot.LICENSE.txt", "."):
        assert ask(folder, f"/static/{name}?token={TOKEN}").status_code in (404, 307)
    for what in ("__class__", "run", "constructor"):
        assert ask(folder, f"/api/{what}?token={TOKEN}&run=one").status_code == 404


def test_files_of_a_run_that_are_links_are_not_read(folder, tmp_path):
    secret = lines(tmp_path / "secret.jsonl", [metric(77), ended(1, 77), sample(77, 1, 0)])
    for name in ("metrics.jsonl", "groups.jsonl", "samples.jsonl", "summary.json", "config.yaml"):
        (folder / "one" / name).unlink()
        (folder / "one" / name).symlink_to(secret)
    os.rename(folder / "one/trace", tmp_path / "trace")
    (folder / "one/trace").symlink_to(tmp_path / "trace")
    status, groups, lanes = ask(
        folder, question("status", run="one"), question("groups", run="one"), question("lanes", run="one")
    )
    assert status.json()["step"] is None and "is a link" in json.dumps(status.json()["events"])
    assert groups.json()["total"] == 0 and lanes.json()["rows"] == [] and "is a link" in lanes.json()["problem"]


def test_what_makes_no_sense_is_one_line(folder):
    for params in ({"step_from": "x"}, {"sort": "no"}, {"limit": "1e9"}):
        answer = ask(folder, question("groups", run="one", **params))
        assert answer.status_code == 400 and "\n" not in answer.text
    assert ask(folder, question("compare", run="one")).status_code == 400
    assert ask(folder, question("lanes", run="one", width="wide")).status_code == 400
    assert ask(folder, question("group", run="one", key="99/99")).status_code == 404
    assert len(ask(folder, question("groups", run="one", limit=10**6, offset=-5)).json()["rows"]) == 12


def test_hostile_text_is_data_and_a_hostile_run_harms_no_other(folder):
    names = {HOSTILE: 1.0, "__proto__": 2.0, "critic/score/mean": 1e308}
    lines(folder / "one/metrics.jsonl", [metric(9, **names), {"step": 10**30}, {"step": -5, "a": 10**400}])
    lines(folder / "one/groups.jsonl", [ended(1, 9, HOSTILE, HOSTILE, uid=HOSTILE, rewards=[1e308, 1e308, HOSTILE], tokens=-1)])
    lines(
        folder / "one/samples.jsonl",
        [sample(9, 1, HOSTILE, reward=HOSTILE, uid=HOSTILE, prompt={"a": [1]}, response="x" * 10**6)],
    )
    (folder / "one/summary.json").write_text(
        json.dumps({"status": HOSTILE, "groups": 1, "roles": [1, {"name": HOSTILE}], "warnings": [HOSTILE]})
    )
    answers = ask(
        folder,
        *(question(what, run="one", key="9/1", name="__proto__") for what in ("status", "groups", "funnel", "group", "curves")),
    )
    for answer in answers:
        assert answer.status_code == 200, answer.text
        assert not {"\x1b", "\u202e", "\x00"} & set(str(answer.json()))
    assert ask(folder, question("status", run="deep/two")).json()["step"] == 2


def test_fifty_readers_of_a_run_that_is_running_see_each_step_and_cost_one_look(folder, monkeypatch):
    monkeypatch.setattr(server, "LOOK_S", 0.01)
    looks, real = [], server._status_event
    monkeypatch.setattr(server, "_status_event", lambda runs, name: looks.append(name) or real(runs, name))
    last = 12

    async def read(watch, steps):
        async for event in watch.statuses("one"):
            steps.append(json.loads(event.decode().removeprefix("data: "))["step"])
            if steps[-1] == last:
                return

    async def readers():
        watch = server.Watch(Runs([folder]))
        seen = [[] for _ in range(50)]
        tasks = [asyncio.create_task(read(watch, steps)) for steps in seen]
        for step in range(5, last + 1):
            while not all(steps and steps[-1] >= step - 1 for steps in seen):
                await asyncio.sleep(0.001)  # every reader has this step before the next is written
            lines(folder / "one/metrics.jsonl", [metric(step)])
        await asyncio.gather(*tasks)
        return seen, watch

    seen, watch = asyncio.run(asyncio.wait_for(readers(), 60))
    assert all(steps[0] == 4 and steps[-1] == last for steps in seen)
    assert all(set(range(4, last + 1)) <= set(steps) for steps in seen)
    assert not watch._tasks and not watch._news and not watch._watchers
    assert len(looks) < 50 * last


def test_what_fifty_readers_ask_at_once_is_worked_out_once_until_a_file_changes(folder, monkeypatch):
    asked, real = [], server.answer
    monkeypatch.setattr(server, "answer", lambda runs, what, question: asked.append(what) or real(runs, what, question))
    questions = {"curves": [("run", "one")], "groups": [("run", "one"), ("limit", "5")], "lanes": [("run", "one")]}

    async def all_ask(answers, token):
        return await asyncio.gather(
            *(answers.answer(what, [*given, ("token", f"{token}{i}")]) for what, given in questions.items() for i in range(50))
        )

    async def ask_twice():
        answers = server.SharedAnswers(Runs([folder]))
        first = await all_ask(answers, "a")
        lines(folder / "one/metrics.jsonl", [metric(5)])
        second = await all_ask(answers, "b")
        with pytest.raises(LookupError):
            await answers.answer("curves", [("run", "none")])
        return first, second

    first, second = asyncio.run(asyncio.wait_for(ask_twice(), 60))
    assert sorted(asked) == ["curves", "curves", "groups", "lanes"]
    assert first[0] != second[0] and first[50:] == second[50:] and json.loads(second[49])["time/step_s"]["steps"][-1] == 5


def test_a_watcher_that_goes_ends_the_looking(folder, monkeypatch):
    monkeypatch.setattr(server, "MOST_WATCHERS", 0)
    assert ask(folder, question("stream", run="one")).status_code == 503


def test_threads_that_ask_at_once_get_whole_answers(folder):
    runs, failures = Runs([folder]), []

    def asks():
        for _ in range(20):
            found = runs.run("one").page(server_selection())
            if found.total != 12:
                failures.append(found.total)

    threads = [threading.Thread(target=asks) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def server_selection():
    from roll.view.groups import GroupQuery

    return GroupQuery(limit=1)


def test_memory_is_bounded_by_the_runs_that_are_open_and_lines_are_not_kept(tmp_path):
    for number in range(MOST_OPEN + 5):
        make_run(tmp_path / f"run{number}", steps=1)
    runs = Runs([tmp_path])
    for number in range(MOST_OPEN + 5):
        runs.run(f"run{number}").status()
    assert len(runs._open) == MOST_OPEN
    big = sample(2, 50, 0, response="x" * 1_000_000)
    lines(tmp_path / "run0/samples.jsonl", [big | {"index": i} for i in range(40)])
    run = runs.run("run0")
    tracemalloc.start()
    try:
        run.look(run.samples)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(run.samples.groups["2/50"].samples) == 40 and kept < 2e6 and peak < 2e7


@pytest.fixture
def serving(folder, monkeypatch):
    """The server of `roll ui`, with a deadline that a test can wait for."""
    monkeypatch.setattr(server, "REQUEST_S", 0.5)
    serving = server.Serving([folder], 0)
    thread = threading.Thread(target=serving.run)
    thread.start()
    yield serving
    serving.stop()
    thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "], ids=["nothing", "half a request"])
@pytest.mark.parametrize("before", [False, True], ids=["first", "second"])
def test_a_connection_that_makes_no_request_is_closed_however_slowly_it_speaks(serving, said, before):
    with socket.create_connection(("127.0.0.1", serving.port), 10) as connection:
        if before:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            answer = b""
            while not answer.endswith(b"it has the token"):
                answer += connection.recv(4096)
        connection.sendall(said)
        connection.settimeout(0.1)
        spoken = 0
        with contextlib.suppress(ConnectionError):
            while spoken < 80:
                if said:
                    connection.sendall(b"x")
                spoken += 1
                with contextlib.suppress(TimeoutError):
                    if not connection.recv(1):
                        break
        assert 1 < spoken < 80


def test_an_answer_may_take_longer_than_a_request(serving, folder, monkeypatch):
    """A page that watches has its stream for hours."""
    monkeypatch.setattr(server, "LOOK_S", 3 * server.REQUEST_S)
    params = {"token": serving.address.partition("token=")[2], "run": "one"}
    with httpx.stream("GET", f"http://127.0.0.1:{serving.port}/api/stream", params=params, timeout=20) as answer:
        events = (line for line in answer.iter_lines() if line)
        first = next(events)
        shutil.rmtree(folder / "one")
        assert next(events) != first
