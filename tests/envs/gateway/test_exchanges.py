"""The requests that a program sent, and what it was sent: as they are kept for people who look at an episode."""

import asyncio
import json

import pytest
from gateway_world import PRICE, World, call, user

from roll.chat.exchange import MOST
from roll.chat.samples import Outcome, episode_samples
from roll.core.data.episode import EpisodeTask
from roll.core.data.sample import Prompt, SampleGroup
from roll.core.record.group_log import SampleLog, as_row

TASK = EpisodeTask(uid="train/shop/0", tag="shop", index=2, env_seed=7)
OUTCOME = Outcome(reward=1.0, success=True, end="terminated", metrics={})
TOOLS = [PRICE, {"type": "function", "function": {"name": "count", "parameters": {"type": "object", "properties": {}}}}]


def played(test, *args, **kwargs):
    async def main():
        async with World(*args, **kwargs) as world:
            await test(world)

    asyncio.run(main())


def samples_of(world):
    return episode_samples(world.session.forest, TASK, OUTCOME)


def kept(world):
    """Of each turn, in samples.jsonl."""
    rows = [as_row(1, "trained", 0, sample) for sample in samples_of(world)]
    return [turn["exchange"] for row in rows for turn in row["trajectory"]["turns"]]


def test_a_request_is_kept_as_it_came_and_then_what_is_new_in_it():
    async def test(world):
        asked = [{"role": "system", "content": "rules"}, user("how much?")]
        first = (await world.chat(asked, TOOLS, temperature=0.5, unheard_of={"a": [1]})).json()
        message = first["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "3"}
        second = (await world.chat([*asked, message, result], TOOLS)).json()
        one, two = kept(world)
        assert one == {
            "path": "/v1/chat/completions",
            "request": {"model": "any", "messages": asked, "tools": TOOLS, "temperature": 0.5, "unheard_of": {"a": [1]}},
            "answer": first,
        }
        assert two == {
            "path": "/v1/chat/completions",
            "repeats": {"of": first["id"], "messages": 2, "tools": 2},
            "request": {"model": "any", "messages": [message, result]},
            "answer": second,
        }

    played(test, [call(item="pear"), "3"])


@pytest.mark.parametrize("stream", [False, True])
def test_every_dialect_streamed_or_not(stream):
    """Of a stream the whole answer is kept, which its events say piece by piece."""

    async def test(world):
        blocks = [{"type": "text", "text": "rules"}]
        tool = {"name": "price", "input_schema": {"type": "object", "properties": {}}}
        asked = {"model": "m", "max_tokens": 9, "system": blocks, "tools": [tool], "messages": [user("a")], "stream": stream}
        await world.post("v1/messages", asked)
        more = [user("a"), {"role": "assistant", "content": [{"type": "text", "text": "one"}]}, user("b")]
        await world.post("v1/messages", asked | {"messages": more})
        await world.post("v1/responses", {"input": "a", "instructions": "rules", "stream": stream})
        response = world.session.forest.answers[-1].reply.call_id
        later = {"input": "c", "instructions": "rules", "previous_response_id": response, "stream": stream}
        await world.post("v1/responses", later)
        message, following, first, second = kept(world)
        assert message["path"] == "/v1/messages" and message["request"] == asked
        assert message["answer"]["content"] == [{"type": "text", "text": "one"}]
        assert message["answer"]["stop_reason"] == "end_turn"
        assert following["repeats"] == {"of": message["answer"]["id"], "messages": 1, "tools": 1, "system": 1}
        assert following["request"] == {"model": "m", "max_tokens": 9, "messages": more[1:], "stream": stream}
        assert first["path"] == "/v1/responses" and first["request"]["input"] == "a" and "repeats" not in first
        assert first["answer"]["output"][0]["content"][0]["text"] == "three"
        assert second["request"] == {"input": "c", "previous_response_id": response, "stream": stream}
        assert second["repeats"] == {"of": response, "instructions": 1}

    played(test, ["one", "two", "three", "four"])


def test_no_key_is_kept():
    async def test(world):
        keys = (world.session.model_key, world.session.reward_key)
        seen = f"env\nOPENAI_API_KEY={keys[0]}\nROLL_REWARD_KEY={keys[1]}"
        world.says = [f"I have {keys[0]}"]
        more = {"api_key": "sk-1234567890", "metadata": {"authorization": "Bearer abcdefgh", "team": "blue"}}
        await world.chat([user(seen)], **more)
        (exchange,) = kept(world)
        text = json.dumps(exchange)
        assert not any(secret in text for secret in (*keys, "sk-1234567890", "abcdefgh", "Bearer"))
        assert exchange["request"]["messages"][0]["content"] == "env\nOPENAI_API_KEY=***\nROLL_REWARD_KEY=***"
        assert exchange["request"]["metadata"] == {"authorization": "***", "team": "blue"}
        assert exchange["answer"]["choices"][0]["message"]["content"] == "I have ***"

    played(test)


def test_what_is_too_long_is_cut_and_says_so():
    async def test(world):
        await world.chat([user("a")], padding="x" * 3 * MOST)
        await world.chat([user("b")])
        long, short = kept(world)
        assert long["request"].startswith('{"model": "any", "messages": [{"role": "user"')
        assert len(long["request"]) < MOST + 40 and long["request"].endswith(" more characters]")
        assert long["answer"]["choices"] and short["request"]["messages"] == [user("b")]

    played(test, ["one", "two"])


def test_branches_are_told_from_the_request_that_they_grew_out_of_and_a_new_tree_is_whole():
    async def test(world):
        first = await world.chat([user("a")])
        message = first.json()["choices"][0]["message"]
        histories = [[user("a"), message, user(text)] for text in ("b", "c")]
        await asyncio.gather(*(world.chat(history) for history in histories))
        await world.chat([user("edited"), message, user("d")])
        root, left, right, other = kept(world)
        for branch in (left, right):
            assert branch["repeats"] == {"of": first.json()["id"], "messages": 1}
            assert branch["request"]["messages"][0] == message
        assert {one["request"]["messages"][1]["content"] for one in (left, right)} == {"b", "c"}
        assert "repeats" not in root and "repeats" not in other and len(other["request"]["messages"]) == 3

    played(test, ["one", "two", "three", "four"])


def test_a_retry_is_one_request_and_one_that_nobody_heard_is_none():
    async def test(world):
        world.held = asyncio.Event()
        gone = asyncio.create_task(world.chat([user("gone")]))
        await world.asking.wait()
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        world.held.set()
        one = await world.chat([user("a")])
        again = await world.chat([user("a")], retry=1)
        assert one.json() == again.json()
        (exchange,) = kept(world)
        assert exchange["request"]["messages"] == [user("a")] and exchange["answer"] == one.json()

    played(test, ["lost", "one"])


def test_it_goes_with_its_group_and_stands_in_the_journal(tmp_path):
    async def test(world):
        await world.chat([user("a")])
        (sample,) = samples_of(world)
        group = SampleGroup(0, 0, Prompt("p", [], "", "shop", "shop", ""), [sample])
        there = SampleGroup.from_json(json.loads(json.dumps(group.to_json())))
        assert there.samples[0].trajectory == sample.trajectory
        log = SampleLog(tmp_path, "all")
        log.record(1, [there])
        log.close()
        (row,) = map(json.loads, (tmp_path / "samples.jsonl").read_text().splitlines())
        assert row["trajectory"]["turns"][0]["exchange"] == kept(world)[0]

    played(test, ["one"])
