"""An alarm in whole runs: it is told everywhere, and one that stops leaves a run that can go on."""

import json

from roll.cli.show import as_text, facts
from roll.cli.train import EXIT_CODES
from roll.reports.watched_rollouts import FILE, GROUPS, read_domains
from roll.view.run import RunReader

HIGH = {"metric": "staleness/max", "below": 1.0}


def test_an_alarm_warns_everywhere_and_the_run_goes_on(lab, make_config, capsys):
    unseen = {"metric": "rewards/sums/elegance", "above": 0.0}
    run = lab.run_local(make_config(alarms=[HIGH, unseen]))
    assert run.summary["status"] == "finished" and run.summary["steps"] == 2
    (row,) = run.rows("alarms")
    assert row == {"step": 1, "metric": "staleness/max", "value": 0.0, "action": "warn", "text": row["text"]}
    assert row["text"] == "step 1: staleness/max is 0, below 1"
    assert json.loads((run.run_dir / "summary.json").read_text())["alarms"] == [row]
    assert any("rewards/sums/elegance" in warning for warning in run.summary["warnings"])
    assert f"alarm: {row['text']}" in capsys.readouterr().out
    assert f"{'alarm':<10}{row['text']}" in list(as_text(facts(run.run_dir)))
    assert {"level": "error", "text": f"alarm: {row['text']}"} in RunReader(run.run_dir).status()["events"]


def test_an_alarm_stops_after_its_step_with_a_checkpoint_from_which_the_run_goes_on(lab, make_config):
    stop = {**HIGH, "for_steps": 2, "action": "stop"}
    changes = {"max_steps": 5, "async_generation_ratio": 0}
    run = lab.run_local(make_config(changes, alarms=[stop]))
    assert run.summary["status"] == "stopped" and EXIT_CODES["stopped"] == 3
    assert run.summary["reason"] == "alarm: step 2: staleness/max is 0, below 1, 2 times in a row"
    assert [row["step"] for row in run.steps()] == [1, 2], "what follows the alarm is not trained"
    assert (run.run_dir / "checkpoints/step-2/manifest.json").exists()
    assert run.summary["groups"]["dropped"] == {}
    again = lab.run_local(make_config(changes, alarms=[], resume_from_checkpoint=True))
    assert again.summary["status"] == "finished" and [row["step"] for row in again.steps()] == [1, 2, 3, 4, 5]


def test_reward_watch_leaves_the_beginning_of_a_run_for_one_that_is_resumed(lab, make_config):
    """Ten steps of four groups are one window; the second run goes on with it, and does not make its own."""
    config = {"save_steps": 5, "async_generation_ratio": 0}
    begun = lab.run(make_config(config, max_steps=10))
    beginning = read_domains(begun.run_dir)
    (rows,) = [row["first"] for row in beginning.values()]
    assert len({group for group, *_ in rows}) == GROUPS
    run = lab.run(make_config(config, max_steps=20, resume_from_checkpoint=True))
    assert [row["first"] for row in read_domains(run.run_dir).values()] == [rows]
    unwritten = lab.run(make_config(config, max_steps=10, exp_name="unwritten", rollout_log_per_step=0))
    assert not (unwritten.run_dir / FILE).exists(), "texts are written down where rollouts are"
