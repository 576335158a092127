"""An engine that computes nothing takes the time that its table says, and tells the truth about versions."""

import asyncio

import pytest
import torch
from faulty import CheckedEngine

from roll.core.weights.bucket import Bucket, checksum, manifest_of
from roll.core.workers.infer_interface import GenerateRequest, SamplingParams
from roll.simulate.costs import Costs, Spread
from roll.simulate.shared_devices import Part
from roll.simulate.virtual_loop import run_virtually

RATES = ((1.0, 10.0), (2.0, 16.0))
"""Alone a request has 10 tokens a second, of two each has 8."""


def engine(slots=8, tokens=40.0, wrong=None, part=None, **costs):
    table = Costs(tokens_per_s=RATES, response_tokens=Spread(tokens), **costs)
    return CheckedEngine(table, slots, 1, 0, part or Part([0], {}, table.overlap_speed), wrong=[] if wrong is None else wrong)


def request(name, most=1000, partial=()):
    return GenerateRequest(name, (1, 2), SamplingParams(max_new_tokens=most, seed=1), tuple(partial))


def now():
    return asyncio.get_running_loop().time()


def bucket(trained):
    tensors = {"rank": torch.tensor([trained])}
    return Bucket(tensors, checksum(tensors))


def test_a_request_alone_takes_its_tokens_at_the_rate_of_one():
    async def main():
        result = await engine().generate(request("a"))
        return now(), len(result.token_ids), result.finish_reason

    assert run_virtually(main()) == (pytest.approx(4.0), 40, "stop")


def test_two_requests_share_the_engine_from_the_moment_that_the_second_comes():
    """The first has 20 tokens when the second comes after 2 s; its other 20 take 2.5 s at 8 a second. The second has 20 by then,
    and its other 20 take 2 s alone."""

    async def main():
        serving, ends = engine(), {}

        async def one(name):
            await serving.generate(request(name))
            ends[name] = now()

        first = asyncio.ensure_future(one("a"))
        await asyncio.sleep(2)
        await asyncio.gather(first, one("b"))
        return ends, serving.busy_s

    assert run_virtually(main()) == ({"a": pytest.approx(4.5), "b": pytest.approx(6.5)}, pytest.approx(6.5))


def test_what_finds_no_slot_waits_for_one():
    async def main():
        serving = engine(slots=1)
        await asyncio.gather(serving.generate(request("a")), serving.generate(request("b")))
        return now()

    assert run_virtually(main()) == pytest.approx(8.0)


def test_an_aborted_request_keeps_its_tokens_and_needs_only_the_others_when_it_comes_again():
    async def main():
        serving = engine()
        answer = asyncio.ensure_future(serving.generate(request("a")))
        await asyncio.sleep(1.5)
        await serving.abort(["a"])
        first = await answer
        second = await serving.generate(request("a", partial=first.token_ids))
        return first.finish_reason, len(first.token_ids), len(second.token_ids), now()

    assert run_virtually(main()) == ("abort", 15, 25, pytest.approx(4.0))


def test_a_response_that_would_be_longer_ends_at_its_limit():
    async def main():
        result = await engine().generate(request("a", most=10))
        return len(result.token_ids), result.finish_reason

    assert run_virtually(main()) == (10, "length")


def test_a_flip_stands_still_and_divides_the_tokens_by_version():
    async def main():
        serving = engine(flip_s=0.5)
        answer = asyncio.ensure_future(serving.generate(request("a")))
        await asyncio.sleep(1)
        sent = bucket(1)
        await serving.receive_bucket(1, sent)
        pause = await serving.activate_weights(manifest_of(1, [sent]), "interrupt")
        result = await answer
        return pause, [tuple(span)[:3] for span in result.versions], now()

    assert run_virtually(main()) == (pytest.approx(0.5), [(0, 10, 0), (10, 40, 1)], pytest.approx(4.5))


def test_weights_that_are_not_those_of_their_version_are_found_out():
    wrong = []

    async def main():
        serving, sent = engine(wrong=wrong), bucket(2)
        await serving.receive_bucket(3, sent)
        await serving.activate_weights(manifest_of(3, [sent]), "interrupt")

    run_virtually(main())
    assert wrong == ["version 3 came with the weights of [2]"]


def test_weights_of_another_set_are_refused():
    async def main():
        serving, sent = engine(), bucket(1)
        await serving.receive_bucket(1, sent)
        await serving.activate_weights(manifest_of(1, [bucket(5)]), "interrupt")

    with pytest.raises(ValueError, match="checksums differ"):
        run_virtually(main())


def test_an_engine_sleeps_when_its_requests_have_ended_and_serves_what_came_when_it_wakes():
    async def main():
        serving = engine(turn_s=1.0)
        first = asyncio.ensure_future(serving.generate(request("a")))
        await asyncio.sleep(1)
        await serving.sleep()
        asleep = now()
        second = asyncio.ensure_future(serving.generate(request("b")))
        await asyncio.sleep(10)
        assert first.done() and not second.done()
        await serving.wake()
        await second
        return asleep, now()

    assert run_virtually(main()) == (pytest.approx(5.0), pytest.approx(20.0))
