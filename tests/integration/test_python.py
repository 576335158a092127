"""Runs that a script starts: without YAML, with a function as reward, also where an event loop runs already."""

import asyncio
import contextlib
import json
import os
import re
import signal
import tempfile
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from roll import AsyncTrainingFlow
from roll.core.configs.plain import to_mapping
from roll.core.configs.problems import ConfigError
from roll.core.distributed.device_locks import VISIBLE
from roll.core.distributed.machine import Machine
from roll.core.record.callbacks import Callback
from roll.prepare import pipeline
from roll.prepare.rlvr_run import RLVRPipeline

ROOT = Path(__file__).parents[2]


def short(sample):
    return 1.0 / (1 + len(sample.response_ids))


def with_reward(config, reward):
    return replace(config, rewards={"sums": replace(config.rewards["sums"], worker_cls=reward)})


def test_a_function_of_the_script_is_a_reward(make_config):
    config = with_reward(make_config(), short)
    summary = AsyncTrainingFlow(config, local=True).run()
    assert summary["status"] == "finished", summary["reason"]
    written = yaml.safe_load((Path(config.run_dir) / "config.yaml").read_text())
    assert written == to_mapping(config) | {"model_update_transport": "ipc"}, "auto, on one machine"
    assert written["rewards"]["sums"]["worker_cls"] == f"{__name__}.short"


def test_it_runs_where_an_event_loop_runs_already(make_config):
    """As in a notebook's cell, which is code of a running loop."""

    async def cell():
        return RLVRPipeline(with_reward(make_config(), short), local=True).run()

    assert asyncio.run(cell())["status"] == "finished"


def test_it_is_awaited_as_verls_is_and_the_callers_loop_goes_on(make_config):
    """`AsyncTrainingFlow(trainer=trainer, enable_async_rl=True)`, `await flow.run()`."""
    turns = []

    class Steps(Callback):
        def on_step(self, step, metrics):
            taken = threading.Event()
            loop.call_soon_threadsafe(lambda: (turns.append(step), taken.set()))
            assert taken.wait(20), "the caller's loop stands still"

    async def main():
        nonlocal loop
        loop = asyncio.get_running_loop()
        trainer = make_config(async_generation_ratio=1.0)
        flow = AsyncTrainingFlow(trainer=trainer, enable_async_rl=True, local=True, callbacks=[Steps()])
        return await flow.run()

    loop = None
    summary = asyncio.run(main())
    assert summary["status"] == "finished" and turns == [1, 2]


def test_cancelling_what_is_awaited_ends_the_run_in_order_with_a_checkpoint(make_config):
    """So does Ctrl-C, which cancels what asyncio.run() runs."""

    class Cancels(Callback):
        def on_step(self, step, metrics):
            if step == 2:
                os.kill(os.getpid(), signal.SIGINT)

    config = make_config(max_steps=200)

    async def main():
        await AsyncTrainingFlow(config, local=True, callbacks=[Cancels()]).run()

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    summary = json.loads((Path(config.run_dir) / "summary.json").read_text())
    assert summary["status"] == "interrupted" and 2 <= summary["steps"] < 200
    assert (Path(config.run_dir) / "checkpoints" / f"step-{summary['steps']}" / "manifest.json").is_file()


def test_enable_async_rl_is_a_schedule_and_a_contradiction_is_refused(make_config):
    ahead, at_once = make_config(async_generation_ratio=1.0), make_config(async_generation_ratio=0.0)
    assert AsyncTrainingFlow(trainer=ahead, enable_async_rl=False).pipeline.config.async_generation_ratio == 0
    assert AsyncTrainingFlow(trainer=ahead, enable_async_rl=True).pipeline.config == ahead
    with pytest.raises(ConfigError, match=r"enable_async_rl = True: async_generation_ratio is 0.*generate_ahead_steps: 2"):
        AsyncTrainingFlow(trainer=at_once, enable_async_rl=True)


def test_interrupting_the_cell_ends_the_run_in_order_with_a_checkpoint(make_config):
    """A notebook's Ctrl-C is a KeyboardInterrupt of its main thread."""

    class Interrupts(Callback):
        def on_step(self, step, metrics):
            if step == 2:
                os.kill(os.getpid(), signal.SIGINT)

    async def cell():
        return RLVRPipeline(config, local=True, callbacks=[Interrupts()]).run()

    config = make_config(max_steps=200)
    with contextlib.closing(asyncio.new_event_loop()) as loop:  # which leaves SIGINT as it is, as a notebook's does
        summary = loop.run_until_complete(cell())
    assert summary["status"] == "interrupted" and 2 <= summary["steps"] < 200
    assert (Path(config.run_dir) / "checkpoints" / f"step-{summary['steps']}" / "manifest.json").is_file()


def test_two_runs_of_a_machine_with_accelerators_take_others_of_them(make_config, monkeypatch, tmp_path, capsys):
    """Both are content with two of the four that this machine is taken to have."""
    machine = Machine(4, 1 << 36, (80 << 30,) * 4)
    monkeypatch.setattr(pipeline, "this_machine", lambda: machine)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv(VISIBLE, raising=False)
    seen = []

    class Second(Callback):
        def on_step(self, step, metrics):
            seen.append(os.environ[VISIBLE])
            if len(seen) == 1:
                monkeypatch.delenv(VISIBLE)  # as another process has it
                inner = make_config(num_gpus_per_node=2, exp_name="second")
                assert RLVRPipeline(inner, local=True, callbacks=[Second()]).run()["status"] == "finished"

    config = make_config(num_gpus_per_node=2, max_steps=1)
    assert RLVRPipeline(config, local=True, callbacks=[Second()]).run()["status"] == "finished"
    assert seen[:2] == ["0,1", "2,3"]
    assert re.search(
        r"on GPU 2(, 3)? of this machine: 0, 1 are used by .*/run \(mode both, process \d+ on .*\)", capsys.readouterr().out
    )


def test_two_runs_follow_each_other_in_one_process_and_the_first_is_moved_aside(make_config, capsys):
    for _ in range(2):
        assert AsyncTrainingFlow(make_config(), local=True).run()["status"] == "finished"
    assert "the earlier run of this name was moved to" in capsys.readouterr().out


def test_a_start_that_is_refused_leaves_the_earlier_run_where_it_was(make_config, tmp_path):
    AsyncTrainingFlow(make_config(max_steps=1), local=True).run()
    folder = Path(make_config().run_dir)
    before = sorted(folder.rglob("*"))
    with pytest.raises(ConfigError, match="pip install swanlab"):
        AsyncTrainingFlow(make_config(track_with=["tensorboard", "swanlab"]), local=True).run()
    assert sorted(folder.rglob("*")) == before and not list(folder.parent.glob("*.old-*"))


@pytest.mark.slow
def test_the_documented_script_trains(embedded_task, forks, tmp_path):
    (tmp_path / "examples" / "embedded").mkdir(parents=True)
    (tmp_path / "examples" / "embedded" / "cache").symlink_to(embedded_task)
    text = (ROOT / "examples" / "train_in_python.py").read_text()
    assert len(text.splitlines()) <= 30
    (tmp_path / "script.py").write_text(text.replace("max_steps=20", "max_steps=2"))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    told = forks.run([str(tmp_path / "script.py")], tmp_path, environment, tmp_path / "log.txt")
    assert "finished" in told.splitlines(), told
