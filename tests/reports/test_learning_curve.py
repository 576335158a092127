"""The picture is drawn from whatever metrics.jsonl has, also while a run is writing it."""

import json
import warnings

import pytest

from roll.core.record.run_lock import RunLock
from roll.core.record.run_progress import RunProgress
from roll.reports import learning_curve
from roll.reports.learning_curve import LearningCurve, moving_average, plot, read_curves

PNG = b"\x89PNG\r\n\x1a\n"


def write(path, rows, tail=""):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + tail)
    return path


def test_curves_are_ordered_by_step_and_nulls_left_out():
    rows = [{"step": 2, "a": 1.0}, {"step": 1, "a": None, "b": 3}, {"step": 0, "a": 5.0}, {"step": 2, "a": 2.0}]
    assert read_curves(rows, ("a", "b", "c")) == {"a": [(0, 5.0), (2, 2.0)], "b": [(1, 3)], "c": []}


def test_moving_average_is_centred():
    assert moving_average([0.0, 3.0, 6.0, 9.0], reach=1) == pytest.approx([1.5, 3.0, 6.0, 7.5])
    assert moving_average([1.0, 5.0], reach=0) == [1.0, 5.0]


@pytest.mark.parametrize(
    ("steps", "validation"), [(1, "val_correct/all/mean"), (3, "val/score/mean"), (80, "val_correct/all/mean")]
)
def test_plot_writes_a_png(tmp_path, steps, validation):
    rows = [{"step": 0, validation: 0.3}]
    for step in range(1, steps + 1):
        rows.append({"step": step, "critic/score/mean": -0.5 if steps == 3 else 0.5, "staleness/mean": 0.4, "staleness/max": 1})
    metrics = write(tmp_path / "metrics.jsonl", rows, tail='{"step": 99, "critic/sc')
    assert plot(metrics, tmp_path / "curve.png", "a run", staleness_bound=1)
    assert (tmp_path / "curve.png").read_bytes().startswith(PNG)


@pytest.mark.parametrize("title", ["试验", "実験 run", "\U0001f600"])
def test_a_title_that_the_font_cannot_write_is_drawn_without_a_warning(tmp_path, title):
    (tmp_path / "m.jsonl").write_text("".join(f'{{"step": {i}, "critic/score/mean": 0.{i}}}\n' for i in range(1, 5)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert plot(tmp_path / "m.jsonl", tmp_path / "c.png", title)


def test_nothing_to_draw_is_no_picture(tmp_path):
    metrics = write(tmp_path / "metrics.jsonl", [{"step": 0, "loss": 1.0}])
    assert not plot(metrics, tmp_path / "curve.png", "a run")
    assert not (tmp_path / "curve.png").exists()


@pytest.fixture
def run_dir(tmp_path):
    (tmp_path / "run").mkdir()
    write(tmp_path / "run/metrics.jsonl", [{"step": 1, "critic/score/mean": 0.5}])
    return tmp_path / "run"


def refresh(report):
    """Waits for a picture that has begun."""
    report.on_refresh(RunProgress(1, 2))
    report._thread.submit(bool).result()


def test_the_picture_waits_until_it_costs_no_more_than_its_share_and_is_there_at_the_end(run_dir, monkeypatch):
    picture = run_dir / "learning_curve.png"
    monkeypatch.setattr(learning_curve, "FIRST_S", 0.0)
    monkeypatch.setattr(learning_curve, "SHARE", 1e-12)
    report = LearningCurve(run_dir, "a run", 1, lock=None)
    refresh(report)
    assert picture.exists()
    picture.unlink()
    refresh(report)
    refresh(report)
    assert not picture.exists()
    report.on_run_end({"status": "finished"})
    assert picture.exists()


def test_a_picture_that_cannot_be_drawn_is_one_warning(run_dir, monkeypatch, caplog):
    def broken(*_):
        raise ImportError("libfreetype")

    monkeypatch.setattr(learning_curve, "FIRST_S", 0.0)
    monkeypatch.setattr(learning_curve, "SHARE", 1e12)
    monkeypatch.setattr(learning_curve, "plot", broken)
    report = LearningCurve(run_dir, "a run", 1, lock=None)
    for _ in range(3):
        refresh(report)
    report.on_run_end({"status": "finished"})
    assert [record.getMessage() for record in caplog.records] == ["learning_curve.png is not up to date: libfreetype"]


def test_who_lost_the_folder_draws_nothing_there(run_dir):
    lock = RunLock(run_dir)
    owner = json.loads((run_dir.parent / ".run.owner.json").read_text())
    (run_dir.parent / ".run.owner.json").write_text(json.dumps(owner | {"id": "another"}))
    LearningCurve(run_dir, "a run", 1, lock).on_run_end({"status": "failed"})
    assert not (run_dir / "learning_curve.png").exists()
    lock.close()
