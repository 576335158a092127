"""A long request of one episode holds up no other, and one that cannot fit is refused without being rendered."""

import asyncio
import threading

import pytest
from gateway_world import World, user

from roll.chat.aside import CHARACTERS_A_TOKEN, SHORT, too_long
from roll.chat.dialogue import Dialogue
from roll.chat.session import Session, SessionLimits

LONG = "word " * SHORT


def played(test, *args, **kwargs):
    async def main():
        async with World(*args, **kwargs) as world:
            await asyncio.wait_for(test(world), 60)

    asyncio.run(main())


class Held(Dialogue):
    """Renders when it is told to."""

    def __init__(self, tokenizer):
        super().__init__(tokenizer, "native")
        self.rendering, self.go, self.count = threading.Event(), threading.Event(), 0

    def whole(self, messages, tools=()):
        self.count += 1
        self.rendering.set()
        assert self.go.wait(30), "nobody was answered meanwhile"
        return super().whole(messages, tools)


def second(world, dialogue, limits=None):
    """Another episode of the same gateway, and how it asks."""
    session = Session("second", dialogue, world.ask, limits or SessionLimits(500_000, 100, 10))
    address = world.gateway.open(session)

    async def ask(path="chat/completions", retry=0, **body):
        headers = {"authorization": f"Bearer {session.model_key}", "x-stainless-retry-count": str(retry)}
        return await world.client.post(f"{address}/v1/{path}", json=body, headers=headers)

    return session, ask


async def rendering(held):
    while not held.rendering.is_set():
        await asyncio.sleep(0)


PATHS = [
    ("chat/completions", {"messages": [user(LONG)]}),
    ("messages", {"messages": [user(LONG)], "max_tokens": 5}),
    ("messages/count_tokens", {"messages": [user(LONG)], "max_tokens": 5}),
    ("responses", {"input": [user(LONG)]}),
    ("chat/completions", {"messages": [user("a")] * (SHORT // 16)}),
]


@pytest.mark.parametrize(("path", "body"), PATHS, ids=["chat", "messages", "count_tokens", "responses", "many messages"])
def test_others_are_answered_while_a_long_request_is_rendered(path, body):
    async def test(world):
        held = Held(world.tokenizer)
        _, ask = second(world, held)
        long = asyncio.ensure_future(ask(path, model="any", **body))
        await rendering(held)
        assert (await world.say([user("hello")]))["content"] == "said 0", "before the long one is rendered"
        assert not long.done()
        held.go.set()
        answer = await long
        assert answer.status_code == 200, answer.text

    played(test, lambda number, context: f"said {number}")


def test_what_is_rendered_aside_is_what_is_rendered_here(monkeypatch):
    async def test(world):
        messages = [user(LONG)]
        _, ask = second(world, world.dialogue)
        first = await ask(messages=messages, model="any")
        said = first.json()["choices"][0]["message"]
        again = await ask(messages=[*messages, said, user(LONG)], model="any")
        assert (first.status_code, again.status_code) == (200, 200)
        one, both = (context for context, *_ in world.asked)
        assert one == world.dialogue.whole(messages).ids and both[: len(one)] == one, "the conversation goes on from its answer"

    played(test, ["one", "two"])


def test_a_request_that_is_repeated_while_it_is_rendered_is_one():
    async def test(world):
        held = Held(world.tokenizer)
        session, ask = second(world, held)
        body = {"messages": [user(LONG)], "model": "any"}
        first = asyncio.ensure_future(ask(**body))
        await rendering(held)
        again = asyncio.ensure_future(ask(retry=1, **body))
        while not session._rendering:
            await asyncio.sleep(0)
        held.go.set()
        answers = await asyncio.gather(first, again)
        assert [answer.json()["id"] for answer in answers] == [answers[0].json()["id"]] * 2
        assert len(world.asked) == 1 and held.count == 1

    played(test, ["one", "two"])


def test_calls_are_counted_and_the_end_is_heard_when_it_is_rendered():
    async def test(world):
        held = Held(world.tokenizer)
        session, ask = second(world, held, SessionLimits(500_000, 100, 1))
        long = asyncio.ensure_future(ask(messages=[user(LONG)], model="any"))
        await rendering(held)
        held.go.set()
        short = asyncio.ensure_future(ask(messages=[user(LONG + "b")], model="any"))
        codes = sorted([(await long).status_code, (await short).status_code])
        assert codes == [200, 400] and session.end == "max_steps"

        other = Held(world.tokenizer)
        late = Session("late", other, world.ask, SessionLimits(500_000, 100, 5))
        address = world.gateway.open(late)
        headers = {"authorization": f"Bearer {late.model_key}"}
        body = {"messages": [user(LONG)], "model": "any"}
        asking = asyncio.ensure_future(world.client.post(f"{address}/v1/chat/completions", json=body, headers=headers))
        await rendering(other)
        late.finish()
        other.go.set()
        answer = await asking
        assert answer.status_code == 409 and answer.json()["error"]["code"] == "episode_ended"

    played(test, ["one", "two", "three"])


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ([user("a")] * 101, "the conversation has 101 messages, and sequence_length is 100"),
        ([user("a" * 60_000), {"role": "tool", "content": "b" * 50_000}], "has 110,000 characters, and sequence_length is 100"),
        ([user("a" * 2_000_000)], "the request has more than 1,458,176 bytes, and sequence_length is 100"),
    ],
)
def test_what_cannot_fit_is_refused_by_its_size(messages, told):
    async def test(world):
        held = Held(world.tokenizer)
        session, ask = second(world, held, SessionLimits(100, 10, 10))
        answer = await ask(messages=messages, model="any")
        assert answer.status_code == 400 and answer.json()["error"]["code"] == "context_length_exceeded"
        assert told in answer.json()["error"]["message"] and session.end == "context"
        assert held.count == 0 and not world.asked

    played(test)


def test_thinking_that_a_template_leaves_out_is_not_counted():
    said = {"role": "assistant", "content": "x" * 100 * CHARACTERS_A_TOKEN * 2}
    assert too_long([user("a"), said, user("b")], 100) == ""
    assert too_long([user("a" * 100 * CHARACTERS_A_TOKEN)], 100) == ""
