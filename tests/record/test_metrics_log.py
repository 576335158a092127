"""metrics.jsonl is always complete, and goes on from a checkpoint."""

import json

from roll.core.record.journals import MetricsLog


def steps(run_dir):
    return [json.loads(line)["step"] for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def logged(run_dir, *numbers):
    log = MetricsLog(run_dir)
    for step in numbers:
        log.log(step, {"loss": 0.0})
    return log


def resumed(run_dir, step, position=0, digest=None):
    log = MetricsLog(run_dir)
    log.rewind(position, step, digest)
    return log


def test_metrics_jsonl_is_on_disk_line_by_line(tmp_path):
    log = MetricsLog(tmp_path)
    log.log(1, {"loss": 0.5, "staleness/histogram": {"0": 2}})
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"step": 1, "loss": 0.5, "staleness/histogram": {"0": 2}}
    log.journal.close()


def test_resume_cuts_later_steps_and_a_fresh_run_starts_anew(tmp_path):
    logged(tmp_path, 0, 1, 2, 3, 2).journal.close()  # the validation of step 2 ended after step 3
    log = resumed(tmp_path, 2)
    log.log(3, {"loss": 1.0})
    log.journal.close()
    assert steps(tmp_path) == [0, 1, 2, 2, 3]
    resumed(tmp_path, -1).journal.close()
    assert steps(tmp_path) == []
    rolled_back = (tmp_path / "metrics.rolled-back.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in rolled_back] == [3, 0, 1, 2, 2, 3]


def test_metrics_that_were_lost_since_the_checkpoint_are_noticed_and_the_others_stay(tmp_path, caplog):
    log = logged(tmp_path, *range(4))
    position, digest = log.journal.position(), log.journal.digest()
    log.log(2, {"late": 1.0})  # a validation that ended after the checkpoint of step 3
    log.log(4, {"loss": 0.0})
    log.journal.close()
    resumed(tmp_path, 3, position).journal.close()
    assert steps(tmp_path) == [0, 1, 2, 3, 2]
    whole = (tmp_path / "metrics.jsonl").read_text()
    for damaged, message, left in (
        ("".join(whole.splitlines(keepends=True)[:3]), "rows were lost", [0, 1, 2]),
        ("x" * position + "\n", "no line border", []),
        (whole.replace('"step": 1', '"stop": 1'), "were changed or lost", [0, 2, 3, 2]),
    ):
        (tmp_path / "metrics.jsonl").write_text(damaged)
        caplog.clear()
        resumed(tmp_path, 3, position, digest).journal.close()
        assert message in caplog.text and steps(tmp_path) == left
