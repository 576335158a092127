"""Keys, rewards, retries and ends: who may speak for an episode, and what then belongs to it."""

import asyncio
import contextlib
import json

import pytest
from gateway_world import World, user


def played(test, *args, **kwargs):
    async def main():
        async with World(*args, **kwargs) as world:
            await test(world)

    asyncio.run(main())


@pytest.mark.parametrize("path", ["v1/chat/completions", "reward", "end"])
def test_who_knows_no_key_learns_nothing(path):
    async def test(world):
        for key in ("?", "wrong", world.session.model_key[:-1]):
            answer = await world.post(path, {"messages": [user("a")], "value": 1}, key)
            assert answer.status_code == 401 and answer.json()["error"]["code"] == "invalid_api_key"
        other = await world.client.post(f"{world.address}x/{path}", headers={"x-api-key": world.session.model_key})
        assert other.status_code == 401, "an episode that is not there looks like one whose key is wrong"
        assert world.session.reward is None and not world.session.ended

    played(test)


def test_a_key_is_of_256_bits_and_either_header_carries_it():
    async def test(world):
        keys = {world.session.model_key, world.session.reward_key}
        assert len(keys) == 2 and all(len(key) >= 43 for key in keys)
        body = {"messages": [user("a")]}
        answer = await world.client.post(
            f"{world.address}/v1/chat/completions", json=body, headers={"x-api-key": world.session.model_key}
        )
        assert answer.status_code == 200

    played(test, ["one"])


def test_a_late_call_hears_that_the_episode_has_ended():
    async def test(world):
        assert (await world.post("end", {})).status_code == 200
        for answer in (await world.chat([user("a")]), await world.reward({"value": 1.0})):
            assert answer.status_code == 409 and answer.json()["error"]["code"] == "episode_ended"
        world.gateway.end(world.session)
        assert (await world.chat([user("a")])).status_code == 409
        assert (await world.chat([user("a")], retry=1)).status_code == 409
        assert not world.asked

    played(test)


def test_what_is_being_sampled_when_the_episode_ends_is_not_recorded():
    async def test(world):
        world.held = asyncio.Event()
        asking = asyncio.create_task(world.chat([user("a")]))
        await world.asking.wait()
        assert (await world.post("end", {}, world.session.reward_key)).status_code == 200
        assert (await asking).status_code == 409
        assert not world.session.forest.answers

    played(test, ["one"])


def test_equal_requests_side_by_side_are_all_given_up_when_the_episode_ends():
    """As an agent sends that asks several times and takes the best: no engine goes on with any of them."""

    async def test(world):
        world.held, begun, ended, ask = asyncio.Event(), [], [], world.session._ask

        async def asked(*given):
            begun.append(given)
            try:
                return await ask(*given)
            finally:
                ended.append(given)

        world.session._ask = asked
        asking = [asyncio.create_task(world.chat([user("a")])) for _ in range(3)]
        while len(begun) < 3:
            world.asking.clear()
            await world.asking.wait()
        world.session.finish()
        assert [answer.status_code for answer in await asyncio.gather(*asking)] == [409] * 3
        assert len(ended) == 3 and not world.session.forest.answers

    played(test, ["one", "two", "three"])


def test_a_retry_in_flight_waits_for_the_same_answer():
    async def test(world):
        world.held = asyncio.Event()
        first = asyncio.create_task(world.chat([user("a")]))
        await world.asking.wait()
        again = [asyncio.create_task(world.chat([user("a")], retry=retry)) for retry in (1, 2)]
        world.held.set()
        answers = [answer.json()["id"] for answer in await asyncio.gather(first, *again)]
        assert len(set(answers)) == 1 and len(world.asked) == 1 and len(world.session.forest.answers) == 1

    played(test, ["one"])


def test_a_retry_after_the_answer_hears_it_again_and_an_equal_request_does_not():
    async def test(world):
        first = (await world.chat([user("a")])).json()
        again = (await world.chat([user("a")], retry=1)).json()
        other = (await world.chat([user("a")])).json()
        assert first == again and other["id"] != first["id"]
        assert [answer.reply.content for answer in world.session.forest.answers] == ["one", "two"]

    played(test, ["one", "two"])


def test_who_has_gone_before_the_answer_has_not_heard_it_and_may_ask_again():
    async def test(world):
        world.held = asyncio.Event()
        answered = world.session.reply

        async def told(call):
            reply = await answered(call)
            told.done.set()
            return reply

        told.done, world.session.reply = asyncio.Event(), told
        asking = asyncio.create_task(world.chat([user("a")]))
        await world.asking.wait()
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking
        await world.client.aclose()
        world.client = type(world.client)(timeout=30, verify=False)
        await world.client.get(f"{world.address}/v1/models")  # by then the server has seen the other connection's end
        world.held.set()
        await told.done.wait()
        await world.client.get(f"{world.address}/v1/models")
        assert not world.session.forest.answers, "nobody has heard it"
        world.session.reply = answered
        answer = await world.chat([user("a")], retry=1)
        assert answer.json()["choices"][0]["message"]["content"] == "one" and len(world.asked) == 1
        assert len(world.session.forest.answers) == 1

    played(test, ["one"])


def test_a_reward_is_given_once_and_only_by_who_may():
    async def test(world):
        assert (await world.reward({"value": 1}, world.session.model_key)).status_code == 403
        assert (await world.chat([user("a")])).status_code == 200
        answer = await world.post("v1/chat/completions", {"messages": [user("a")]}, world.session.reward_key)
        assert answer.status_code == 403
        assert (await world.reward({"value": 0.5, "success": True})).status_code == 200
        assert (await world.reward({"value": 0.5})).status_code == 200, "a repeated request changes nothing"
        assert (await world.reward({"value": 0.6})).status_code == 409
        assert (await world.reward({"value": 0.5, "success": False})).status_code == 409
        assert (world.session.reward, world.session.success) == (0.5, True)

    played(test, ["one"])


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999", "1e33", "9" * 400, "null", "true", '"1"', "[1]"])
def test_what_is_no_finite_number_is_no_reward(value):
    async def test(world):
        answer = await world.reward(f'{{"value": {value}}}'.encode())
        assert answer.status_code == 400 and world.session.reward is None

    played(test)


def test_a_reward_before_any_call_is_taken_and_unknown_fields_are_not():
    async def test(world):
        assert (await world.reward({"value": 1, "valeu": 2})).status_code == 400
        assert (await world.reward({"value": 1, "success": "yes"})).status_code == 400
        assert world.session.reward is None
        assert (await world.reward({"value": 1})).status_code == 200 and world.session.reward == 1.0

    played(test)


def test_single_calls_have_rewards_of_their_own():
    async def test(world):
        answer = (await world.chat([user("a")])).json()
        assert (await world.reward({"value": 0.25, "call_id": answer["id"]})).status_code == 200
        assert (await world.reward({"value": 0.25, "call_id": "none"})).status_code == 400
        assert (await world.reward({"value": 1, "call_id": answer["id"]})).status_code == 409
        assert (await world.reward({"value": 0.25, "call_id": answer["id"], "success": True})).status_code == 400
        (recorded,) = world.session.forest.answers
        assert recorded.reward == 0.25 and world.session.reward is None

    played(test, ["one"])


def test_a_body_may_not_be_larger_than_any_history(monkeypatch):
    monkeypatch.setattr("roll.envs.gateway.server.LARGEST_BODY", 1000)

    async def test(world):
        answer = await world.post("v1/chat/completions", json.dumps({"messages": [user("a" * 2000)]}).encode())
        assert answer.status_code == 413 and not world.asked

    played(test)
