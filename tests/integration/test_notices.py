"""Notices of whole runs: what a command is told of a run that gives an alarm, has a best checkpoint, is resumed and finishes."""

import json
import sys

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
