"""Notices of whole runs: what a command is told of a run that gives an alarm, has a best checkpoint, is resumed and finishes."""

import json
import socket
import sys
from dataclasses import replace

from roll.prepare.replayed import replayed

SAVES = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read() + '\\n')"


def test_a_run_and_its_resumption_tell_each_event_once(lab, make_config, with_validation, tmp_path):
    told = tmp_path / "told.jsonl"
    command = [sys.executable, "-c", SAVES, str(told)]
    given = {
        **with_validation,
        "keep_best": {"metric": "val/score/mean"},
        "alarms": [{"metric": "actor_train/lr", "above": 0.0}],
        "on_event": {**dict.fromkeys(("finished", "failed", "alarm", "best"), command), "timeout_s": 60},
    }
    first = lab.run(make_config(given, save_steps=1, max_steps=2))
    second = lab.run_local(make_config(given, save_steps=1, max_steps=3, resume_from_checkpoint=True))
    found = [json.loads(line) for line in told.read_text().splitlines()]
    keys = [(row["event"], row["step"]) for row in found]
    assert len(set(keys)) == len(keys)
    assert ("finished", 2) in keys and ("finished", 3) in keys and "failed" not in {event for event, _ in keys}
    assert ("alarm", 1) in keys and first.summary["alarms"]
    best = {run.summary["best"]["step"] for run in (first, second)}
    assert {step for event, step in keys if event == "best"} >= best
    assert {row["folder"] for row in found} == {str(first.run_dir.absolute())}


def test_an_evaluation_and_a_replay_of_a_run_are_nobodys_news_and_leave_its_port_alone(
    lab, make_config, with_validation, tmp_path
):
    told = tmp_path / "told.jsonl"
    command = [sys.executable, "-c", SAVES, str(told)]
    watched = {"on_event": {"finished": command, "timeout_s": 60}, "rollout_log_per_step": "all"}
    config = make_config({**with_validation, **watched}, save_steps=1, max_steps=1)
    trained = lab.run(config)
    before = told.read_text()
    with socket.create_server(("127.0.0.1", 0)) as taken:  # by the run, which may go on
        config = replace(config, metrics_address=f"127.0.0.1:{taken.getsockname()[1]}")
        lab.run_local(replace(config, mode="bench", bench_checkpoints=["pretrain"], exp_name="benched"))
        lab.run_local(replayed(config, trained.run_dir, trained.run_dir.with_name("again"), None))
    assert told.read_text() == before
