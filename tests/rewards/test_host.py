"""Rewards that block their event loop, with real threads: a sample is lost, not the run."""

import asyncio
import importlib
import sys
import threading

import pytest

from roll.core.data.sample import Prompt, Sample
from roll.core.distributed import user_code
from roll.core.rewards.host import RewardHost
from roll.core.rewards.worker import RewardResult

pytestmark = pytest.mark.slow

REWARDS = """
import asyncio, threading
from roll.core.rewards.worker import RewardWorker

released, begun = threading.Event(), []

class Judge(RewardWorker):
    def __init__(self, config):
        super().__init__(config)
        self.lock = asyncio.Lock()

    async def start(self):
        await asyncio.sleep(0)
        self.loop = asyncio.get_running_loop()
        begun.append(self)

    async def close(self):
        begun.remove(self)

    async def grade(self, sample):
        text = sample.response_text
        assert asyncio.get_running_loop() is self.loop, "what start has opened belongs to this loop"
        if text == "block":
            blocking_call()
        if text == "block in a task":
            await asyncio.create_task(in_a_task())
        if text == "slow":
            await asyncio.sleep(60)
        async with self.lock:  # belongs to the loop on which somebody has waited for it
            await asyncio.sleep(0.2)
        return float(text)

def blocking_call():
    released.wait(60)

async def in_a_task():
    blocking_call()

class Exits(RewardWorker):
    async def start(self):
        raise SystemExit("no key")

class Broken(RewardWorker):
    def __init__(self, config):
        raise FileNotFoundError("no such model")
"""


@pytest.fixture
def judges(tmp_path, monkeypatch):
    (tmp_path / "blocking_judges.py").write_text(REWARDS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "blocking_judges", raising=False)
    module = importlib.import_module("blocking_judges")
    yield module
    module.released.set()


def sample(text):
    return Sample(Prompt("sums/0/7", [1], "1 + 1 =", "sums", "sums", "2"), 0, [], [], [], "stop", response_text=text)


def config(name="Judge", timeout_s=1.0, max_concurrency=8):
    return {"worker_cls": f"blocking_judges.{name}", "timeout_s": timeout_s, "max_concurrency": max_concurrency}


def run(scenario, **settings):
    async def main():
        host = RewardHost(config(**settings))
        await host.start()
        try:
            return await scenario(host)
        finally:
            await host.close()

    return asyncio.run(asyncio.wait_for(main(), 60))


def grading_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("grading blocking_judges")]


def test_a_sample_that_blocks_the_loop_is_an_error_and_the_others_are_judged(judges):
    async def scenario(host):
        results = await host.compute_rewards([sample(text) for text in ("1", "block", "2", "slow", "3")])
        assert [result.value for result in results] == [1.0, None, 2.0, None, 3.0]
        assert results[1].error.startswith("timeout: it blocks its event loop, in ")
        assert "threading.py" in results[1].error
        assert results[3] == RewardResult(error="timeout")
        assert len(grading_threads()) == 2 and len(judges.begun) == 2, "the stuck one is left behind, with its worker"
        judges.released.set()
        while len(grading_threads()) > 1:
            await asyncio.sleep(0.01)
        assert len(judges.begun) == 1, "when it turns again, it ends in order"

    run(scenario)
    for thread in grading_threads():
        thread.join(20)
    assert judges.begun == [] and grading_threads() == []


def test_a_task_that_grade_has_made_is_its_own(judges):
    async def scenario(host):
        results = await host.compute_rewards([sample(text) for text in ("1", "block in a task", "2", "3")])
        assert [result.value for result in results] == [1.0, None, 2.0, 3.0], results

    run(scenario, max_concurrency=2)


def test_a_reward_that_blocks_again_and_again_costs_every_sample_until_it_returns(judges, monkeypatch):
    monkeypatch.setattr(user_code, "MOST_STUCK", 2)

    async def scenario(host):
        for _ in range(2):
            (result,) = await host.compute_rewards([sample("block")])
            assert result.error.startswith("timeout")
        for result in await host.compute_rewards([sample("block"), sample("1")]):
            assert result.error.startswith("2 threads of blocking_judges.Judge hang")
            assert "the last hangs in" in result.error and "threading.py" in result.error
        judges.released.set()
        while grading_threads():
            await asyncio.sleep(0.01)
        (result,) = await host.compute_rewards([sample("1")])
        assert result.value == 1.0

    run(scenario, timeout_s=0.3)


def test_threads_that_turn_again_do_not_count(judges, monkeypatch):
    monkeypatch.setattr(user_code, "MOST_STUCK", 2)

    async def scenario(host):
        for _ in range(4):
            judges.released.clear()
            (result,) = await host.compute_rewards([sample("block")])
            assert result.error.startswith("timeout")
            judges.released.set()
            while len(grading_threads()) > 1:
                await asyncio.sleep(0.01)

    run(scenario, timeout_s=0.3)


@pytest.mark.parametrize(
    ("name", "error", "says"), [("Exits", RuntimeError, "SystemExit: no key"), ("Broken", FileNotFoundError, "no such model")]
)
def test_a_worker_that_cannot_start_says_why(name, error, says, judges):
    async def scenario(host):
        raise AssertionError("it has started")

    with pytest.raises(error, match=says):
        run(scenario, name=name)
