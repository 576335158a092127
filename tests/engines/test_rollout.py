"""The client against engines that do what the test says, token by token."""

import asyncio
from dataclasses import dataclass, field

import pytest

from roll.core.data.sample import Prompt, VersionSpan
from roll.core.data.seeding import derive_seed
from roll.core.engines.rollout_client import RolloutClient
from roll.core.engines.router import Router
from roll.core.errors import EngineClosed, WorkerDied
from roll.core.workers.infer_interface import GenerateRequest, GenerateResult, SamplingParams

SEED = 5


@dataclass
class OnEngine:
    """A request that an engine has, and what it has made of it."""

    engine: int
    request: GenerateRequest
    done: asyncio.Future = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    tokens: list[int] = field(default_factory=list)
    versions: list[VersionSpan] = field(default_factory=list)

    def make(self, count, version):
        """`count` more tokens; token k of a response is 100 + k."""
        start = len(self.tokens)
        first = 100 + len(self.request.partial_ids) + start
        self.tokens += range(first, first + count)
        self.versions.append(VersionSpan(start, start + count, version))

    def end(self, reason="stop"):
        logprobs = [-token / 1000 for token in self.tokens]
        text = f"engine text of {len(self.tokens)}"
        if not self.done.done():
            self.done.set_result(GenerateResult(self.request.request_id, self.tokens, logprobs, self.versions, reason, text))


class Engines:
    """Looks like a cluster of engines. `sent`: calls of `generate` as (engine, request), in order."""

    def __init__(self, count):
        self.count = count
        self.workers = [object() for _ in range(count)]
        self.here: dict[str, OnEngine] = {}
        self.sent: list[tuple[int, GenerateRequest]] = []
        self.aborted: list[tuple[int, list[str]]] = []

    def __len__(self):
        return self.count

    async def call(self, engine, method, argument):
        if method == "abort":
            self.aborted.append((engine, argument))
            for name in argument:
                assert self.here[name].engine == engine, "the abort goes where the request is"
                self.here[name].end("abort")
            return None
        assert method == "generate"
        self.sent.append((engine, argument))
        here = self.here[argument.request_id] = OnEngine(engine, argument)
        return await here.done


def prompt(uid="p"):
    return Prompt(uid, [1, 2, 3], "abc", "tag", "domain", "truth")


class Tokenizer:
    def decode(self, ids, skip_special_tokens):
        return f"decoded {len(ids)}"


class Letters:
    """Three letters a token."""

    def decode(self, ids, skip_special_tokens):
        return "answer 4\nquestion"[: 3 * len(ids)]


class Keeper:
    """Takes engines out that are reported."""

    def __init__(self, client):
        self._client = client
        self.dead = []

    def report(self, engine, error):
        self.dead.append((engine, str(error)))
        self._client.close(engine)


def make(engines=1, capacity=8, expand=False):
    cluster, router = Engines(engines), Router(engines, capacity)
    return cluster, router, RolloutClient(cluster, router, Tokenizer(), SEED, None, expand)


async def until(condition):
    while not condition():
        await asyncio.sleep(0)


def run(main):
    asyncio.run(asyncio.wait_for(main(), 5))


SAMPLING = SamplingParams(max_new_tokens=16)


def test_an_aborted_response_is_sent_again_with_its_tokens_and_its_spans_are_merged():
    async def main():
        cluster, router, client = make()
        task = asyncio.create_task(client.rollout("g0", prompt(), 2, SAMPLING))
        await until(lambda: len(cluster.here) == 2)
        whole, cut = cluster.here["g0/0"], cluster.here["g0/1"]
        whole.make(5, version=0)
        whole.end("stop")
        cut.make(2, version=0)
        cut.make(1, version=1)
        cut.end("abort")
        await until(lambda: len(cluster.sent) == 3)
        again = cluster.sent[2][1]
        assert again.partial_ids == (100, 101, 102), "only what is unfinished is sent again, with what it has"
        assert again.request_id == "g0/1" and again.prompt_ids == (1, 2, 3)
        assert again.sampling == cut.request.sampling, "the seed is that of the response, not of the call"
        second = cluster.here["g0/1"]
        second.make(2, version=1)
        second.make(1, version=2)
        second.end("abort")
        await until(lambda: len(cluster.sent) == 4)
        assert cluster.sent[3][1].partial_ids == (100, 101, 102, 103, 104, 105)
        third = cluster.here["g0/1"]
        third.make(1, version=2)
        third.end("length")
        finished, resumed = await task
        assert list(finished.response_ids) == [100, 101, 102, 103, 104]
        assert finished.response_text == "engine text of 5"
        assert finished.finish_reason == "stop"
        assert list(resumed.response_ids) == list(range(100, 107))
        assert list(resumed.behaviour_logprobs) == pytest.approx([-token / 1000 for token in range(100, 107)])
        assert resumed.versions == [(0, 2, 0, 0), (2, 5, 1, 0), (5, 7, 2, 0)], "neighbouring spans of one version are one span"
        assert resumed.response_text == "decoded 7", "a response made in several calls is decoded as a whole"
        assert resumed.finish_reason == "length"
        assert (finished.index, resumed.index) == (0, 1)
        assert router.load == [0] and router.queued == 0

    run(main)


@pytest.mark.parametrize(("include", "text"), [(True, "answer 4\n"), (False, "answer 4")])
def test_a_resumed_response_ends_at_its_stop_string_like_any_other(include, text):
    """The stop string began in the first call, so no engine sees it whole; the judge must not see what comes after it."""

    async def main():
        cluster = Engines(1)
        client = RolloutClient(cluster, Router(1, 1), Letters(), SEED, None)
        sampling = SamplingParams(stop_strings=("\n",), include_stop_str_in_output=include)
        task = asyncio.create_task(client.rollout("g0", prompt(), 1, sampling))
        for reason in ("abort", "stop"):
            await until(lambda: "g0/0" in cluster.here)
            cluster.here["g0/0"].make(2, version=0)
            cluster.here.pop("g0/0").end(reason)
        (sample,) = await task
        assert len(sample.response_ids) == 4, "the tokens stay"
        assert sample.response_text == text

    run(main)


def test_an_abort_before_the_first_token_costs_nothing():
    async def main():
        cluster, _, client = make()
        task = asyncio.create_task(client.rollout("g0", prompt(), 1, SAMPLING))
        await until(lambda: cluster.here)
        cluster.here["g0/0"].end("abort")
        await until(lambda: len(cluster.sent) == 2)
        cluster.here["g0/0"].make(3, version=1)
        cluster.here["g0/0"].end()
        (sample,) = await task
        assert sample.versions == [(0, 3, 1, 0)] and list(sample.response_ids) == [100, 101, 102]

    run(main)


def test_a_group_cancelled_in_the_queue_never_reaches_an_engine():
    async def main():
        cluster, router, client = make(capacity=2)
        first, second, third = (asyncio.create_task(client.rollout(f"g{i}", prompt(f"p{i}"), 2, SAMPLING)) for i in range(3))
        await until(lambda: router.queued == 2)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert router.queued == 1
        for name in ("g0/0", "g0/1"):
            cluster.here[name].end()
        await first
        await until(lambda: "g2/1" in cluster.here)
        for name in ("g2/0", "g2/1"):
            cluster.here[name].end()
        await third
        assert not any(request.request_id.startswith("g1") for _, request in cluster.sent)
        assert cluster.aborted == []
        assert router.load == [0]

    run(main)


@pytest.mark.parametrize("expand", [False, True])
def test_a_group_cancelled_on_its_engines_is_aborted_there_and_its_slots_are_free_again(expand):
    async def main():
        cluster, router, client = make(engines=2, expand=expand)
        task = asyncio.create_task(client.rollout("g0", prompt(), 4, SAMPLING))
        await until(lambda: len(cluster.here) == 4)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: router.load == [0, 0] and sum(len(names) for _, names in cluster.aborted) == 4)
        assert sorted(name for _, names in cluster.aborted for name in names) == ["g0/0", "g0/1", "g0/2", "g0/3"]
        assert len(cluster.sent) == 4, "nothing is sent again"

    run(main)


def test_an_abort_that_meets_a_closed_engine_at_the_end_of_a_run_says_nothing(caplog):
    async def main():
        cluster, _, client = make()
        generate = cluster.call

        async def call(engine, method, argument):
            if method == "generate":
                return await generate(engine, method, argument)
            try:
                await asyncio.Event().wait()
            finally:  # the loop ends, and the engine is closed by then
                raise EngineClosed("the inference engine was closed")

        cluster.call = call
        task = asyncio.create_task(client.rollout("g0", prompt(), 4, SAMPLING))
        await until(lambda: len(cluster.here) == 4)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)

    run(main)
    assert not caplog.records


def test_a_group_goes_to_one_engine_together_and_gives_its_places_back_one_by_one():
    async def main():
        cluster, router, client = make(engines=2, capacity=4)
        first, second = (asyncio.create_task(client.rollout(f"g{i}", prompt(f"p{i}"), 3, SAMPLING)) for i in range(2))
        await until(lambda: len(cluster.sent) == 6)
        assert [engine for engine, _ in cluster.sent] == [0, 0, 0, 1, 1, 1] and router.load == [3, 3]
        third = asyncio.create_task(client.rollout("g2", prompt("p2"), 3, SAMPLING))
        await until(lambda: router.queued == 1)
        cluster.here["g1/0"].end()
        await until(lambda: router.load == [3, 2])
        assert router.queued == 1, "there is room for two of three"
        cluster.here["g1/2"].end()
        await until(lambda: len(cluster.sent) == 9)
        assert [engine for engine, _ in cluster.sent[6:]] == [1, 1, 1] and not second.done()
        for task in (first, second, third):
            task.cancel()

    run(main)


def test_a_group_that_is_cancelled_before_it_has_begun_keeps_no_place():
    async def main():
        cluster, router, client = make()
        task = asyncio.create_task(client.complete("a", [GenerateRequest(f"a/{i}", (1,), SAMPLING) for i in range(3)]))
        await asyncio.sleep(0)  # its answers are tasks by now, none of which has begun
        assert router.load == [3] and not cluster.sent
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert router.load == [0] and not client._waiting

    run(main)


def test_where_one_answer_fails_the_engine_is_told_to_leave_the_others():
    async def main():
        cluster, router, client = make()
        task = asyncio.create_task(client.rollout("g0", prompt(), 3, SAMPLING))
        await until(lambda: len(cluster.here) == 3)
        cluster.here["g0/1"].done.set_exception(RuntimeError("the engine is on fire"))
        with pytest.raises(RuntimeError, match="on fire"):
            await task
        await until(lambda: sorted(cluster.aborted) == [(0, ["g0/0"]), (0, ["g0/2"])])
        assert router.load == [0] and not client._waiting

    run(main)


def test_expanded_every_sample_is_routed_alone_and_the_order_of_samples_stays():
    """`is_num_return_sequences_expand`: two engines share the group once its prompt's engine is full."""

    async def main():
        cluster, _, client = make(engines=2, capacity=2, expand=True)
        task = asyncio.create_task(client.rollout("g0", prompt(), 4, SAMPLING))
        await until(lambda: len(cluster.sent) == 4)
        assert sorted(engine for engine, _ in cluster.sent) == [0, 0, 1, 1]
        for i in (2, 0, 3, 1):
            cluster.here[f"g0/{i}"].make(i + 1, version=0)
            cluster.here[f"g0/{i}"].end()
        samples = await task
        assert [sample.index for sample in samples] == [0, 1, 2, 3]
        assert [len(sample.response_ids) for sample in samples] == [1, 2, 3, 4]

    run(main)


@pytest.mark.parametrize("expand", [False, True])
def test_a_sample_is_a_function_of_seed_prompt_and_index_alone(expand):
    async def main():
        cluster, _, client = make(expand=expand)
        tasks = [asyncio.create_task(client.rollout(f"g{i}", prompt(uid), 2, SAMPLING)) for i, uid in enumerate("aab")]
        await until(lambda: len(cluster.here) == 6)
        seeds = {name: one.request.sampling.seed for name, one in cluster.here.items()}
        assert seeds["g0/0"] == seeds["g1/0"] == derive_seed(SEED, "a", 0), "not of the group's number"
        assert len({seeds["g0/0"], seeds["g0/1"], seeds["g2/0"], seeds["g2/1"]}) == 4
        for task in tasks:
            task.cancel()

    run(main)


def test_validation_goes_before_training_in_the_queue():
    async def main():
        cluster, router, client = make(capacity=1)
        tasks = [asyncio.create_task(client.rollout(f"g{i}", prompt(f"p{i}"), 1, SAMPLING)) for i in range(2)]
        await until(lambda: router.queued == 1 and cluster.here)
        tasks.append(asyncio.create_task(client.rollout("v", prompt("v"), 1, SAMPLING, priority=0)))
        await until(lambda: router.queued == 2)
        cluster.here["g0/0"].end()
        await until(lambda: len(cluster.sent) == 2)
        assert cluster.sent[1][1].request_id == "v/0" and cluster.sent[1][1].priority == 0
        for task in tasks:
            task.cancel()

    run(main)


def test_an_engine_that_fails_is_heard_and_its_slots_are_given_back():
    async def main():
        cluster, router, client = make(capacity=1)
        failing = asyncio.create_task(client.rollout("g0", prompt("a"), 1, SAMPLING))
        waiting = asyncio.create_task(client.rollout("g1", prompt("b"), 1, SAMPLING))
        await until(lambda: router.queued == 1 and cluster.here)
        cluster.here["g0/0"].done.set_exception(RuntimeError("the engine is on fire"))
        with pytest.raises(RuntimeError, match="on fire"):
            await failing
        await until(lambda: "g1/0" in cluster.here)
        cluster.here["g1/0"].end()
        await waiting
        assert router.load == [0]

    run(main)


def test_requests_of_an_engine_that_dies_go_elsewhere_with_the_tokens_they_had():
    async def main():
        cluster, router, client = make(engines=2, capacity=1)
        client._keeper = keeper = Keeper(client)
        rollout = asyncio.ensure_future(client.rollout("g0", prompt(), 1, SAMPLING))
        await until(lambda: "g0/0" in cluster.here)
        first = cluster.here["g0/0"]
        first.make(3, version=0)
        first.end("abort")  # interrupted once: three tokens are safe
        await until(lambda: len(cluster.sent) == 2)
        second = cluster.here["g0/0"]
        second.make(2, version=1)
        second.done.set_exception(WorkerDied("killed"))
        await until(lambda: len(cluster.sent) == 3)
        third = cluster.here["g0/0"]
        assert third.engine != second.engine and keeper.dead == [(second.engine, "killed")]
        assert third.request.partial_ids == (100, 101, 102)
        third.make(2, version=2)
        third.end()
        (sample,) = await rollout
        assert list(sample.response_ids) == [100, 101, 102, 103, 104]
        assert sample.versions == [VersionSpan(0, 3, 0, engine=0), VersionSpan(3, 5, 2, engine=1)]
        assert router.load == [0, 0]

    run(main)


def test_late_news_of_a_worker_that_was_replaced_closes_nothing():
    async def main():
        cluster, _, client = make(engines=1)
        client._keeper = keeper = Keeper(client)
        rollout = asyncio.ensure_future(client.rollout("g0", prompt(), 1, SAMPLING))
        await until(lambda: "g0/0" in cluster.here)
        first = cluster.here["g0/0"]
        cluster.workers[0] = object()  # its successor is there before the call has failed
        first.done.set_exception(WorkerDied("killed"))
        await until(lambda: len(cluster.sent) == 2)
        cluster.here["g0/0"].make(1, version=0)
        cluster.here["g0/0"].end()
        await rollout
        assert keeper.dead == []

    run(main)


def test_without_anyone_to_replace_it_an_engine_that_dies_is_the_callers_error():
    async def main():
        cluster, router, client = make()
        rollout = asyncio.ensure_future(client.rollout("g0", prompt(), 1, SAMPLING))
        await until(lambda: "g0/0" in cluster.here)
        cluster.here["g0/0"].done.set_exception(WorkerDied("killed"))
        with pytest.raises(WorkerDied, match="killed"):
            await rollout
        assert router.load == [0]

    run(main)


def test_a_caller_that_goes_away_leaves_no_request_on_the_engine():
    """The engine is another process: cancelling the call alone would let it generate for nobody."""

    async def main():
        cluster, router, client = make()
        task = asyncio.create_task(client.complete("e0", [GenerateRequest("e0/1", (1, 2), SAMPLING)]))
        await until(lambda: "e0/1" in cluster.here)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: cluster.aborted == [(0, ["e0/1"])])
        assert router.load == [0]

    run(main)
