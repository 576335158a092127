"""The packages of the trackers themselves: a run that is killed after step 5 and goes on from the checkpoint of step 3 continues
its record. Run by `make test-trackers`, in an environment of its own."""

import json
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytest.importorskip("wandb", reason="the trackers' packages are in an environment of their own: make test-trackers")
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "MLFLOW_ALLOW_FILE_STORE": "true", "WANDB_SILENT": "true", "CI": "1"}


def tell(name, folder, kwargs, *arguments):
    command = [sys.executable, str(Path(__file__).with_name("tracked_run.py")), name, json.dumps(kwargs), str(folder)]
    done = subprocess.run(
        [*command, *map(str, arguments)], env=ENVIRONMENT, cwd=folder, capture_output=True, text=True, timeout=240
    )
    expected = -signal.SIGKILL if arguments[-1] == "kill" else 0
    assert done.returncode == expected, done.stderr[-3000:]
    return done.stderr


@pytest.fixture
def resumed(tmp_path):
    """Starts a run that is killed, and goes on; in a folder."""

    def start(name, **kwargs):
        tell(name, tmp_path, kwargs, -1, 1, 5, "kill")
        tell(name, tmp_path, kwargs, 3, 4, 8, "finished")
        return tmp_path

    return start


def test_tensorboard_has_each_step_once(resumed):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(resumed("tensorboard") / "tensorboard"))
    events.Reload()
    assert [(each.step, round(each.value, 4)) for each in events.Scalars("loss")] == [(n, round(1 / n, 4)) for n in range(1, 9)]
    assert sorted(each.step for each in events.Scalars("accuracy")) == [1, 3, 5, 7]


@pytest.mark.parametrize("store", ["file:{}/mlruns", "sqlite:///{}/mlflow.db"])
def test_mlflow_goes_on_with_its_run_and_has_each_step_once(resumed, tmp_path, monkeypatch, store):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    import mlflow

    resumed("mlflow", tracking_uri=store.format(tmp_path))
    client = mlflow.MlflowClient(store.format(tmp_path))
    (found,) = client.search_runs([client.get_experiment_by_name("roll").experiment_id])
    assert found.info.status == "FINISHED" and found.info.run_name == "my_run"
    assert found.data.params == {"exp_name": "my_run", "actor_train.lr": "0.1", "api_key": "***"}

    def history(name):
        return sorted((metric.step, metric.value) for metric in client.get_metric_history(found.info.run_id, name))

    assert history("loss") == [(n, 1 / n) for n in range(1, 9)]
    assert history("wide/_at_name") == [(n, float(n)) for n in range(1, 9)]
    assert history("accuracy") == [(1, 0.2), (3, 0.4), (5, 0.6), (7, 0.8)]
    assert history("staleness/histogram/0") == [(n, 2.0) for n in range(1, 9)]


def wandb_records(file):
    """The records of an offline run: a log in blocks of 32 KiB, as LevelDB has it."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, part = file.read_bytes(), 7, b""
    assert data[:4] in (b":W&B", b"")
    while place + 7 <= len(data):
        left = 32_768 - place % 32_768
        if left < 7:
            place += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, place)
        part += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or its last part
            record = Record()
            record.ParseFromString(part)
            part = b""
            yield record


def test_wandb_offline_goes_on_under_its_id_and_hides_secrets(resumed):
    folder = resumed("wandb", mode="offline")
    files = sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))
    ids = {file.stem.removeprefix("run-") for file in files}
    assert len(files) == 2 and len(ids) == 1, "what is synchronised is one run"
    records = [record for file in files for record in wandb_records(file)]
    config = {item.key: json.loads(item.value_json) for r in records for item in r.run.config.update}
    assert config["exp_name"] == "my_run" and config["api_key"] == "***"
    assert all(b"sk-very-secret" not in file.read_bytes() for file in files)
    second = [
        {(item.key or "/".join(item.nested_key)): json.loads(item.value_json) for item in record.history.item}
        for record in wandb_records(files[1])
        if record.HasField("history")
    ]
    assert [(row["step"], row["loss"]) for row in second if "loss" in row] == [(n, 1 / n) for n in range(4, 9)]
    assert [(row["step"], row["accuracy"]) for row in second if "accuracy" in row] == [(3, 0.4), (5, 0.6), (7, 0.8)]
    assert [record.exit.exit_code for record in records if record.HasField("exit")] == [0]


def test_swanlab_offline_goes_on_under_its_id(resumed):
    from swanlab.sdk.internal.core_python.store import DataStoreReader

    folder = resumed("swanlab", mode="offline")
    files = sorted(folder.glob("swanlog/run-*/run-*.swanlab"))
    assert len(files) == 2 and len({file.stem for file in files}) == 1
    reader = DataStoreReader()
    reader.open(files[1])
    records = []
    while (record := reader.scan()) is not None:
        records.append(record)
    assert any(b"loss" in record for record in records) and any(b"accuracy" in record for record in records)
    assert all(b"sk-very-secret" not in file.read_bytes() for file in folder.glob("swanlog/**/*") if file.is_file())


def test_a_store_that_is_gone_costs_a_warning(tmp_path):
    """The tracker's database is deleted under it."""
    script = f"""
import logging, sys
logging.basicConfig()
from pathlib import Path
from roll.reports.trackers import Trackers
run = Trackers(["mlflow"], Path({str(tmp_path)!r}), "e", {{}}, {{"tracking_uri": "sqlite:///{tmp_path}/mlflow.db"}})
run.on_step(1, {{"loss": 1.0}})
import sqlite3
connection = sqlite3.connect("{tmp_path}/mlflow.db", timeout=30)
connection.execute("drop table metrics"); connection.commit()
for step in range(2, 5): run.on_step(step, {{"loss": 1.0}})
run.finish("finished")
print("went on", run.all[0].alive)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], env=ENVIRONMENT, cwd=tmp_path, capture_output=True, text=True, timeout=240
    )
    assert "went on False" in done.stdout, done.stderr[-2000:]
    assert "tracker mlflow is switched off, training goes on" in done.stderr
