"""Trackers may break without harm to the run, and never see a secret."""

import json
import logging
import signal
import sys
import threading
from types import SimpleNamespace

import pytest

from roll.core.configs.redact import redact, secrets
from roll.core.errors import TrackerError
from roll.reports import remote_trackers, trackers
from roll.reports.remote_trackers import scalars
from roll.reports.trackers import Background, Trackers

CONFIG = {"exp_name": "e", "api_key": "sk-very-secret", "nested": [{"hf_token": "hf_12345678"}], "max_new_tokens": 64}


class Recorder:
    """A tracker that remembers, and fails at a step if told to."""

    def __init__(self, fails_at=None):
        self.seen, self.status, self.fails_at = [], None, fails_at

    def log(self, step, metrics):
        if step == self.fails_at:
            raise ConnectionError("refused for sk-very-secret")
        self.seen.append(step)

    def finish(self, status):
        self.status = status


def test_a_tracker_that_fails_is_switched_off_with_one_warning_and_the_run_goes_on(tmp_path, monkeypatch, caplog):
    broken, good = Recorder(fails_at=2), Recorder()
    monkeypatch.setitem(trackers.REMOTE, "wandb", lambda run: broken)
    monkeypatch.setitem(trackers.REMOTE, "mlflow", lambda run: good)
    run = Trackers(["wandb", "mlflow"], tmp_path, "e", CONFIG)
    for step in range(5):
        run.on_step(step, {"loss": 0.0})
    run.finish("finished")
    assert good.seen == [0, 1, 2, 3, 4]
    assert good.status == "finished"
    assert broken.seen == [0, 1]
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1 and "wandb" in warnings[0] and "ConnectionError" in warnings[0]
    assert "sk-very-secret" not in caplog.text


def test_a_hanging_tracker_is_never_waited_for(caplog):
    released = threading.Event()

    class Hanging(Recorder):
        def log(self, step, metrics):
            released.wait()

    tracker = Background("slow", Hanging)
    for step in range(Background.PENDING + 2):
        tracker.log(step, {})
    assert not tracker.alive and "steps behind" in caplog.text
    patient = Background("slow", Hanging)
    patient.FINISH_S = 0.05
    patient.log(1, {})
    patient.finish("finished")
    assert "0 s after the end" in caplog.text
    released.set()


def test_trackers_see_the_config_without_secrets(tmp_path, monkeypatch):
    seen = []

    def make(run, **kwargs):
        seen.append((run.config, kwargs))
        return Recorder()

    monkeypatch.setitem(trackers.REMOTE, "wandb", make)
    Trackers(["wandb"], tmp_path, "e", CONFIG, {"project": "mine", "api_key": "k"}).finish("finished")
    config, kwargs = seen[0]
    assert config == {"exp_name": "e", "api_key": "***", "nested": [{"hf_token": "***"}], "max_new_tokens": 64}
    assert kwargs == {"project": "mine", "api_key": "k"}


def test_options_belong_to_the_tracker_they_are_named_for(tmp_path, monkeypatch):
    seen = {}
    for name in ("wandb", "mlflow"):
        monkeypatch.setitem(trackers.REMOTE, name, lambda run, name=name, **kwargs: seen.update({name: kwargs}) or Recorder())
    Trackers(["wandb", "mlflow"], tmp_path, "e", {}, {"wandb": {"project": "mine"}}).finish("finished")
    assert seen == {"wandb": {"project": "mine"}, "mlflow": {}}
    with pytest.raises(TrackerError, match="under their names"):
        Trackers(["wandb", "mlflow"], tmp_path, "e", {}, {"project": "mine"})


@pytest.mark.parametrize("name", ["wandb", "swanlab", "mlflow"])
def test_a_missing_package_is_one_clear_line(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(TrackerError, match=f"track_with: {name} .*pip install {name}"):
        Trackers([name], tmp_path, "e", {})


def test_a_tracker_that_cannot_start_says_so_without_the_key(tmp_path, monkeypatch):
    def make(run, **kwargs):
        raise RuntimeError(f"401 for\n{kwargs['api_key']}")

    monkeypatch.setitem(trackers.REMOTE, "wandb", make)
    with pytest.raises(TrackerError) as caught:
        Trackers(["wandb"], tmp_path, "e", {}, {"api_key": "sk-very-secret"})
    assert str(caught.value) == "track_with: wandb cannot start: RuntimeError: 401 for ***"
    with pytest.raises(TrackerError, match="unknown tracker 'neptune'"):
        Trackers(["neptune"], tmp_path, "e", {})


def test_redaction():
    hidden = {
        "WANDB_API_KEY": "a",
        "db": {"password": 1234},
        "tokens": ["t1", "t2"],
        "url": "postgresql://me:pw@host/db",
    }
    assert redact(hidden) == {
        "WANDB_API_KEY": "***",
        "db": {"password": "***"},
        "tokens": "***",
        "url": "postgresql://me:***@host/db",
    }
    shown = {"max_new_tokens": 8, "tokenizer": "a/b", "api_key": None, "weights": "https://host/a@b", "token_mean": 0.5}
    assert redact(shown) == shown
    assert list(secrets(hidden)) == ["a", "1234", "t1", "t2", "pw"]


def test_scalars_flattens_histograms_and_leaves_out_text():
    assert dict(scalars({"a": 1, "h": {"0": 2}, "note": "x", "none": None})) == {"a": 1.0, "h/0": 2.0}


def read_tensorboard(run_dir):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run_dir / "tensorboard"))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_shows_a_resumed_run_as_one_curve(tmp_path):
    pytest.importorskip("tensorboard")
    run = Trackers(["tensorboard"], tmp_path, "e", CONFIG)
    rows = [{"step": step, "loss": float(step), "staleness/histogram": {"0": 8}} for step in range(4)]
    for row in rows:
        run.on_step(row["step"], row)
    run.on_validation(1, {"accuracy": 0.25})
    run.finish("interrupted")
    run = Trackers(["tensorboard"], tmp_path, "e", CONFIG, last_step=1)
    run.on_run_begin(1, rows[:2])  # its validation ended after the checkpoint: it is made again
    run.on_validation(1, {"accuracy": 0.5})
    run.on_step(2, {"loss": 20.0})
    run.finish("finished")
    curves = read_tensorboard(tmp_path)
    assert curves["accuracy"] == [(1, 0.5)]
    assert curves["loss"] == [(0, 0.0), (1, 1.0), (2, 20.0)]
    assert curves["staleness/histogram/0"] == [(0, 8.0), (1, 8.0)]


def test_mlflow_continues_the_run(tmp_path):
    mlflow = pytest.importorskip("mlflow")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    for last_step, logged in ((-1, (0, 1, 3, 2)), (3, (4,))):
        run = Trackers(["mlflow"], tmp_path, "e", CONFIG, {"tracking_uri": uri}, last_step)
        for step in logged:
            run.on_step(step, {"loss": float(step)})
        run.finish("finished")
    run_id = json.loads((tmp_path / "tracker_ids.json").read_text())["mlflow"]
    client = mlflow.MlflowClient(uri)
    assert sorted(m.step for m in client.get_metric_history(run_id, "loss")) == [0, 1, 2, 3, 4]
    stored = client.get_run(run_id)
    assert stored.info.status == "FINISHED"
    assert stored.data.params["api_key"] == "***" and stored.data.params["max_new_tokens"] == "64"


@pytest.mark.parametrize("name", ["wandb", "swanlab"])
def test_offline_runs_of_the_real_packages(tmp_path, name):
    pytest.importorskip(name)
    before = signal.getsignal(signal.SIGINT)
    run = Trackers([name], tmp_path, "e", CONFIG, {"mode": "offline"})
    for step in (0, 1, 3, 2):
        run.on_step(step, {"loss": float(step)})
    assert signal.getsignal(signal.SIGINT) is before  # Ctrl-C stays the run's own
    run.finish("finished")
    assert run.all[0].alive


def test_mlflow_is_given_names_that_it_takes(tmp_path, monkeypatch):
    """MLflow refuses a whole batch for one name with a character such as @."""
    logged = []
    client = SimpleNamespace(
        get_experiment_by_name=lambda name: SimpleNamespace(experiment_id="1"),
        create_run=lambda *args, **kwargs: SimpleNamespace(info=SimpleNamespace(run_id="r")),
        log_batch=lambda run_id, metrics=(), params=(): logged.extend(metrics),
    )
    fake = SimpleNamespace(MlflowClient=lambda uri: client, Metric=lambda name, *value: name, Param=lambda *args: args)
    monkeypatch.setattr(remote_trackers, "load", lambda tracker, module=None: fake)
    tracker = remote_trackers.MlflowTracker(remote_trackers.TrackedRun(tmp_path, "e", {}, -1))
    tracker.log(0, {"eval/math/all/pass@8/low": 0.5, "loss": 1.0})
    assert logged == ["eval/math/all/pass_at_8/low", "loss"]


def test_a_run_that_goes_back_to_a_checkpoint_starts_its_trackers_again_from_there(tmp_path, monkeypatch):
    made = []

    def make(run):
        made.append((run.last_step, Recorder()))
        return made[-1][1]

    monkeypatch.setitem(trackers.REMOTE, "wandb", make)
    run = Trackers(["wandb"], tmp_path, "e", CONFIG)
    run.on_run_begin(0, [])
    run.on_step(1, {"loss": 0.0})
    run.on_validation(1, {"val": 0.0})
    run.on_step(2, {"loss": 0.0})
    run.on_run_begin(1, [{"step": 1, "loss": 0.0}])
    run.on_step(2, {"loss": 0.0})
    run.on_run_end({"status": "stopped"})
    assert [(last_step, tracker.seen, tracker.status) for last_step, tracker in made] == [
        (-1, [1, 1, 2], "interrupted"),
        (1, [2], "stopped"),
    ]
