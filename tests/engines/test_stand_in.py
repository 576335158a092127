"""What a silent engine was asked is asked of another one, too, and the first answer counts."""

import asyncio

import pytest

from roll.core.data.sample import VersionSpan
from roll.core.engines.rollout_client import RolloutClient
from roll.core.engines.router import Router
from roll.core.errors import WorkerDied
from roll.core.workers.infer_interface import GenerateRequest, GenerateResult, SamplingParams

SAMPLING = SamplingParams(max_new_tokens=16)


class Engines:
    """A cluster whose answers the test gives: `asked[engine, request id]`."""

    def __init__(self, count):
        self.workers = [object() for _ in range(count)]
        self.asked: dict[tuple[int, str], asyncio.Future] = {}
        self.aborted: list[tuple[int, str]] = []

    def __len__(self):
        return len(self.workers)

    async def call(self, engine, method, argument):
        if method == "abort":
            self.aborted += [(engine, each) for each in argument]
            return None
        answer = self.asked[engine, argument.request_id] = asyncio.get_running_loop().create_future()
        return await answer

    def answer(self, engine, name, tokens=3, reason="stop"):
        spans = [VersionSpan(0, tokens, engine)]
        result = GenerateResult(name, list(range(tokens)), [-1.0] * tokens, spans, reason, f"of {engine}")
        self.asked[engine, name].set_result(result)


class Keeper:
    def __init__(self):
        self.dead = []

    def report(self, engine, error):
        self.dead.append(engine)


def run(body, engines=2, capacity=8):
    async def main():
        cluster, keeper = Engines(engines), Keeper()
        client = RolloutClient(cluster, Router(engines, capacity), None, 0, keeper)
        await asyncio.wait_for(body(cluster, client, keeper), 5)

    asyncio.run(main())


def ask(client, name="a", priority=1):
    request = GenerateRequest(name, (1, 2), SAMPLING, priority=priority)
    return asyncio.ensure_future(client.complete(name, [request], priority))


async def until(condition):
    while not condition():
        await asyncio.sleep(0)


async def asked(cluster, engine, name="a"):
    await until(lambda: (engine, name) in cluster.asked)


def test_the_other_engine_is_first_and_the_silent_one_is_told_to_stop():
    async def body(cluster, client, keeper):
        answer = ask(client)
        await asked(cluster, 0)
        client.doubt(0)
        await asked(cluster, 1)
        cluster.answer(1, "a")
        (done,) = await answer
        assert (client.text(done), [span.engine for span in done.versions]) == ("of 1", [1])
        await until(lambda: cluster.aborted == [(0, "a")])
        client.open(0)
        assert keeper.dead == [] and client._router.load == [0, 0], "no place is lost"

    run(body)


def test_the_silent_engine_is_first_and_its_stand_in_is_told_to_stop():
    async def body(cluster, client, keeper):
        answer = ask(client)
        await asked(cluster, 0)
        client.doubt(0)
        await asked(cluster, 1)
        cluster.answer(0, "a")
        (done,) = await answer
        assert client.text(done) == "of 0"
        await until(lambda: cluster.aborted == [(1, "a")])
        assert client._router.load == [0, 0]

    run(body)


def test_the_silent_engine_dies_and_the_stand_in_goes_on():
    async def body(cluster, client, keeper):
        answer = ask(client)
        await asked(cluster, 0)
        client.doubt(0)
        await asked(cluster, 1)
        cluster.asked[0, "a"].set_exception(WorkerDied("gone"))
        await asyncio.sleep(0)
        cluster.answer(1, "a")
        (done,) = await answer
        assert client.text(done) == "of 1"
        assert len(cluster.asked) == 2, "nothing was asked a third time"
        assert keeper.dead == [0]

    run(body)


def test_the_stand_in_falls_silent_too():
    async def body(cluster, client, keeper):
        answer = ask(client)
        await asked(cluster, 0)
        client.doubt(0)
        await asked(cluster, 1)
        client.doubt(1)
        await asked(cluster, 2)
        cluster.answer(2, "a")
        (done,) = await answer
        assert client.text(done) == "of 2"
        await until(lambda: sorted(cluster.aborted) == [(0, "a"), (1, "a")])
        assert client._router.load == [0, 0, 0]

    run(body, engines=3)


def test_whoever_gives_the_call_up_aborts_both():
    async def body(cluster, client, keeper):
        answer = ask(client)
        await asked(cluster, 0)
        client.doubt(0)
        await asked(cluster, 1)
        answer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await answer
        await until(lambda: sorted(cluster.aborted) == [(0, "a"), (1, "a")])
        assert client._router.load == [0, 0]

    run(body)


def test_a_stand_in_that_has_no_place_yet_costs_nothing():
    async def body(cluster, client, keeper):
        first, second = ask(client), ask(client, "b")
        await asked(cluster, 0, "a")
        await asked(cluster, 1, "b")
        client.doubt(0)
        await asyncio.sleep(0)
        assert (1, "a") not in cluster.asked, "the other engine is full"
        cluster.answer(0, "a")
        await first
        cluster.answer(1, "b")
        await second
        assert (1, "a") not in cluster.asked and cluster.aborted == []
        assert client._router.load == [0, 0] and client._router.queued == 0

    run(body, capacity=1)


def test_an_interrupted_stand_in_goes_on_from_its_tokens():
    async def body(cluster, client, keeper):
        answer = ask(client)
        await asked(cluster, 0)
        client.doubt(0)
        await asked(cluster, 1)
        cluster.answer(1, "a", tokens=2, reason="abort")
        del cluster.asked[1, "a"]
        await asked(cluster, 1)
        cluster.answer(1, "a", tokens=3)
        (done,) = await answer
        assert (len(done.token_ids), done.finish_reason) == (5, "stop")

    run(body)


def test_nothing_is_asked_twice_of_engines_that_answer():
    async def body(cluster, client, keeper):
        answers = [ask(client, name) for name in "abcd"]
        await until(lambda: len(cluster.asked) == 4)
        for engine, name in list(cluster.asked):
            cluster.answer(engine, name)
        await asyncio.gather(*answers)
        assert len(cluster.asked) == 4 and cluster.aborted == []

    run(body)
