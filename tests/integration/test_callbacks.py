"""Callbacks in whole runs: who is told what, and what an error in one of them does."""

import asyncio
import json
import threading
from pathlib import Path

import integration_stages
import numpy as np
import pytest
import torch

from roll.cli.verify import read_run, violations
from roll.core.configs.problems import ConfigError
from roll.core.pipeline import run as run_page
from roll.core.record.callbacks import Callback
from roll.prepare.rlvr_run import RLVRPipeline

EVENTS = ("on_run_begin", "on_step", "on_validation", "on_group", "on_refresh", "on_summary", "on_run_end")


class Told(Callback):
    def __init__(self):
        self.steps, self.validations, self.groups, self.ends, self.threads = {}, {}, {}, [], set()

    def on_step(self, step, metrics):
        self.threads.add(threading.current_thread().name)
        self.steps[step] = metrics

    def on_validation(self, step, metrics):
        self.validations[step] = metrics

    def on_group(self, group, reason):
        self.threads.add(threading.current_thread().name)
        self.groups[group.group_id] = (reason, group.rewards)

    def on_run_end(self, summary):
        self.ends.append(summary)


def test_a_callback_is_told_of_steps_validations_groups_and_the_end(make_config, with_validation):
    told = Told()
    filtered = {"rewards.sums.query_filter_config": {"type": "std_filter", "filter_args": {"std_threshold": 0.44}}}
    summary = RLVRPipeline(make_config({**with_validation, **filtered}), local=True, callbacks=[told]).run()
    assert summary["status"] == "finished", summary["reason"]
    assert list(told.steps) == [1, 2] and all("actor_train/grad_norm" in metrics for metrics in told.steps.values())
    assert list(told.validations) == [0, 1, 2] and all("val_correct/all/mean" in row for row in told.validations.values())
    reasons = [reason for reason, _ in told.groups.values()]
    assert reasons.count(None) == 8 and reasons.count("filter_std") == summary["groups"]["dropped"]["filter_std"]
    assert [end["status"] for end in told.ends] == ["finished"] and told.ends[0]["groups"] == summary["groups"]
    assert len(told.threads) == 1 and threading.current_thread().name not in told.threads, "one thread, not the event loop's"


@pytest.mark.parametrize("event", EVENTS)
def test_an_error_in_a_callback_ends_the_run_with_its_name(lab, make_config, with_validation, monkeypatch, event):
    monkeypatch.setattr(integration_stages.Fails, "where", event)
    run = lab.run_local(make_config({**with_validation, "flow.callbacks": ["integration_stages.Fails"]}))
    assert run.summary["status"] == "failed"
    assert f"Fails.{event}: LookupError: no such luck" in run.summary["reason"]


ODD = [StopIteration, KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError, integration_stages.Odd]


@pytest.mark.parametrize("what", ODD)
@pytest.mark.parametrize("event", ["on_step", "on_validation", "on_group"])
def test_whatever_a_callback_raises_ends_the_run_with_its_name_and_a_checkpoint(
    lab, make_config, with_validation, monkeypatch, event, what
):
    monkeypatch.setattr(integration_stages.Raises, "where", event)
    monkeypatch.setattr(integration_stages.Raises, "what", what)
    run = lab.run_local(make_config({**with_validation, "flow.callbacks": ["integration_stages.Raises"]}))
    assert run.summary["status"] == "failed" and f"Raises.{event}: {what.__name__}: because" in run.summary["reason"]
    steps = run.summary["steps"]
    assert steps or event != "on_step"
    assert run.summary.get("checkpoint", {"step": 0, "lost": ""}) == {"step": steps, "lost": ""}
    assert [path.name for path in (run.run_dir / "checkpoints").glob("step-*")] == [f"step-{steps}"] * bool(steps)


@pytest.mark.parametrize("what", ODD)
def test_a_callback_may_raise_anything_at_the_end(lab, make_config, monkeypatch, what):
    monkeypatch.setattr(integration_stages.Raises, "where", "on_run_end")
    monkeypatch.setattr(integration_stages.Raises, "what", what)
    run = lab.run_local(make_config({"flow.callbacks": ["integration_stages.Raises"]}))
    assert f"Raises.on_run_end: {what.__name__}: because" in run.summary["reason"]


class StopsAt(Callback):
    def __init__(self, event, step=1):
        self.event, self.at = event, step

    def on_step(self, step, metrics):
        if (self.event, self.at) == ("on_step", step):
            self.stop("good enough")

    def on_validation(self, step, metrics):
        if (self.event, self.at) == ("on_validation", step):
            self.stop("good enough")

    def on_group(self, group, reason):
        if self.event == "on_group" and group.group_id == 4 * self.at:
            self.stop("good enough")


@pytest.mark.parametrize("event", ["on_step", "on_validation", "on_group"])
def test_a_callback_ends_the_run_in_order(make_config, with_validation, event):
    config = make_config({**with_validation, "resume_from_checkpoint": "auto"}, max_steps=6, async_generation_ratio=1.0)
    summary = RLVRPipeline(config, local=True, callbacks=[StopsAt(event)]).run()
    done = summary["steps"]
    assert summary["status"] == "finished" and 0 < done < 6
    assert summary["reason"] == f"after step {done}, as StopsAt: good enough"
    assert (Path(config.run_dir) / f"checkpoints/step-{done}/manifest.json").exists()
    assert list(violations(read_run(Path(config.run_dir)))) == []
    again = RLVRPipeline(config, local=True).run()
    assert (again["status"], again["steps"], again["resumed_from_step"]) == ("finished", 6, done)


class Adds(Callback):
    def __init__(self, **more):
        self.more = more

    def on_step(self, step, metrics):
        metrics["mine/double"] = 2 * metrics["actor_train/grad_norm"]
        metrics["mine/torch"] = torch.tensor(step)
        metrics.update(self.more)

    def on_validation(self, step, metrics):
        metrics["mine/validated"] = np.float32(step)


def test_a_metric_of_a_callback_is_one_of_the_run(make_config, with_validation):
    logged = []

    class Heard(Callback):
        def on_step(self, step, metrics):
            logged.append(metrics["mine/double"])

    config = make_config(with_validation)
    assert RLVRPipeline(config, local=True, callbacks=[Adds(), Heard()]).run()["status"] == "finished"
    rows = [json.loads(line) for line in (Path(config.run_dir) / "metrics.jsonl").read_text().splitlines()]
    found = {
        name: {row["step"]: row[name] for row in rows if name in row} for name in ("mine/double", "mine/torch", "mine/validated")
    }
    norms = {row["step"]: row["actor_train/grad_norm"] for row in rows if "actor_train/grad_norm" in row}
    assert found["mine/double"] == {step: 2 * norm for step, norm in norms.items()}
    assert found["mine/torch"] == {1: 1.0, 2: 2.0} and found["mine/validated"] == {0: 0.0, 1: 1.0, 2: 2.0}
    assert logged == [*found["mine/double"].values()], "those that come later see it"


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("actor_train/grad_norm", 0.0, "is the run's own, give yours another name"),
        ("val_correct/all/mean", 1.0, "is the run's own"),
        ("step", 7, "is the run's own"),
        ("mine/text", "0.5", "is a text, '0.5', not a number"),
        ("mine/none", None, "is no number, but NoneType"),
        ("mine/many", np.zeros(2), "is no number, but ndarray"),
        ("mine/huge", int("9" * 400), "is no number, but int"),
        ("", 1.0, "has no name that can be written"),
    ],
)
def test_a_metric_that_cannot_be_one_is_told_once_and_left_out(make_config, caplog, name, value, told):
    config = make_config()
    assert RLVRPipeline(config, local=True, callbacks=[Adds(**{name: value})]).run()["status"] == "finished"
    (said,) = [record.getMessage() for record in caplog.records if "is left out" in record.getMessage()]
    assert said.startswith(f"Adds.on_step: the metric {name!r}") and told in said
    rows = [json.loads(line) for line in (Path(config.run_dir) / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 1, 2, 2] and all(
        set(row) == {"step", "mine/double", "mine/torch"} for row in rows[1::2]
    )


def test_the_first_reason_counts(lab, make_config, monkeypatch):
    monkeypatch.setattr(integration_stages.Fails, "where", "on_run_end")
    stage = {"after": "reward", "name": "zero", "worker": "integration_stages.divides_by_zero"}
    run = lab.run_local(make_config({"flow.callbacks": ["integration_stages.Fails"], "flow.stages": [stage]}))
    assert run.summary["reason"].startswith("zero at group ")
    assert "ZeroDivisionError" in run.summary["reason"]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"on_steps": lambda self, step, metrics: None}, f"on_steps is no event: {', '.join(EVENTS)}"),
        ({"on_step": lambda self, step: None}, "on_step must take (self, step: "),
    ],
)
def test_a_method_that_nobody_could_call_is_refused(make_config, body, told):
    with pytest.raises(ValueError) as caught:
        RLVRPipeline(make_config(), callbacks=[type("Mine", (Callback,), body)()])
    assert told in str(caught.value)


def test_a_coroutine_is_refused(make_config):
    class Mine(Callback):
        async def on_step(self, step, metrics):
            pass

    with pytest.raises(ValueError, match=r"Mine.on_step is a coroutine"):
        RLVRPipeline(make_config(), callbacks=[Mine()])


@pytest.mark.parametrize("path", ["integration_stages.NoProcess", "integration_stages.Nothing"])
def test_what_is_no_callback_is_refused_before_a_worker_starts(make_config, path):
    with pytest.raises(ConfigError, match=r"flow\.callbacks"):
        RLVRPipeline(make_config({"flow.callbacks": [path]}), local=True).run()


class Watches(Callback):
    """All that a monitor needs: where the run begins, how it goes, and a place in its summary."""

    def __init__(self, entry=1):
        self.begun, self.seen, self.statuses, self.entry, self.end = [], [], [], entry, None

    def on_run_begin(self, step, rows):
        self.begun.append((step, [row["step"] for row in rows if "critic/score/mean" in row]))

    def on_refresh(self, progress):
        self.seen.append(progress)

    def on_summary(self, summary, progress):
        self.statuses.append(summary.get("status", "running"))
        summary["mine"] = self.entry
        summary["steps"] = -1

    def on_run_end(self, summary):
        self.end = summary


def test_a_callback_sees_a_run_begin_go_on_and_write_its_summary(make_config, monkeypatch):
    monkeypatch.setattr(run_page, "REFRESH_S", 0.001)
    first, second = Watches(), Watches()
    config = make_config(max_steps=2, save_steps=1)
    summary = RLVRPipeline(config, local=True, callbacks=[first]).run()
    assert first.begun == [(0, [])]
    steps = [progress.step for progress in first.seen]
    assert steps == sorted(steps) and {1, 2} <= set(steps) and {progress.max_steps for progress in first.seen} == {2}
    assert first.seen[-1].groups.keys() >= {"admitted", "trained", "dropped"} and first.seen[-1].places.total > 0
    assert {role.name for progress in first.seen for role in progress.roles} >= {"actor_train", "actor_infer"}
    assert first.statuses[-1] == summary["status"] == "finished" and set(first.statuses[:-1]) <= {"running"}
    written = json.loads((Path(config.run_dir) / "summary.json").read_text())
    assert written["mine"] == first.end["mine"] == 1 and written["steps"] == 2, "an entry of the run's own stays"
    assert first.end["verdict"] == written["verdict"]
    RLVRPipeline(make_config(max_steps=3, resume_from_checkpoint=True), local=True, callbacks=[second]).run()
    assert second.begun == [(2, [1, 2])]


def test_an_entry_of_the_summary_that_is_no_json_ends_the_run_with_its_name(make_config):
    config = make_config(max_steps=1)
    summary = RLVRPipeline(config, local=True, callbacks=[Watches(entry=torch.zeros(1))]).run()
    assert summary["status"] == "failed" and "Watches.on_summary: TypeError" in summary["reason"]
    assert json.loads((Path(config.run_dir) / "summary.json").read_text())["verdict"]["kind"] == "stopped"


class Halts(Callback):
    def on_step(self, step, metrics):
        self.stop("it has diverged", "stopped")


def test_a_callback_may_say_that_something_is_wrong_with_the_run(make_config):
    summary = RLVRPipeline(make_config(max_steps=4), local=True, callbacks=[StopsAt("on_step"), Halts()]).run()
    assert (summary["status"], summary["reason"], summary["steps"]) == ("stopped", "Halts: it has diverged", 1)
