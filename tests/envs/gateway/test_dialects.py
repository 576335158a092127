"""The three dialects through their own clients, whole and as streams: what they hear is one, and so is what is recorded."""

import asyncio
import json

import pytest
from gateway_world import PRICE, World, call, user

openai = pytest.importorskip("openai")
anthropic = pytest.importorskip("anthropic")

SAYS = [f"<think>why</think>\nLet me look.\n{call(item='pear')}\n{call(item='plum')}", "It costs 7."]
PARAMETERS = {"type": "object", "properties": {"item": {"type": "string"}}}
EXPECTED = ("why", "Let me look.", [("price", {"item": "pear"}), ("price", {"item": "plum"})])


def of_openai(world):
    return openai.AsyncOpenAI(base_url=f"{world.address}/v1", api_key=world.session.model_key, max_retries=0)


def of_anthropic(world):
    return anthropic.AsyncAnthropic(base_url=world.address, api_key=world.session.model_key, max_retries=0)


async def by_chat(world, stream):
    client, tools = of_openai(world), [{"type": "function", "function": {"name": "price", "parameters": PARAMETERS}}]
    messages = [{"role": "system", "content": "rules"}, user("how much?")]

    async def ask():
        if not stream:
            done = await client.chat.completions.create(model="m", messages=messages, tools=tools)
            message = done.choices[0].message
            return message.model_dump(exclude_none=True), done.choices[0].finish_reason, done.usage
        chunks = client.chat.completions.create(
            model="m", messages=messages, tools=tools, stream=True, stream_options={"include_usage": True}
        )
        message, ending, usage = {"role": "assistant", "content": "", "tool_calls": []}, None, None
        async for chunk in await chunks:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                delta, ending = choice.delta, choice.finish_reason or ending
                message["content"] += delta.content or ""
                if thought := getattr(delta, "reasoning_content", None):
                    message["reasoning_content"] = message.get("reasoning_content", "") + thought
                message["tool_calls"] += [each.model_dump(exclude={"index"}) for each in delta.tool_calls or ()]
        return message, ending, usage

    first, ending, usage = await ask()
    assert ending == "tool_calls" and usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    calls = [(each["function"]["name"], json.loads(each["function"]["arguments"])) for each in first["tool_calls"]]
    assert (first["reasoning_content"], first["content"], calls) == EXPECTED
    messages += [first, *({"role": "tool", "tool_call_id": each["id"], "content": "3"} for each in first["tool_calls"])]
    last, ending, _ = await ask()
    assert (last["content"], ending) == ("It costs 7.", "stop")


async def by_messages(world, stream):
    client, tools = of_anthropic(world), [{"name": "price", "input_schema": PARAMETERS}]
    messages = [user("how much?")]

    async def ask():
        asked = {"model": "m", "max_tokens": 100, "system": "rules", "messages": messages, "tools": tools}
        if not stream:
            return await client.messages.create(**asked)
        async with client.messages.stream(**asked) as events:
            return await events.get_final_message()

    first = await ask()
    assert first.stop_reason == "tool_use" and first.usage.output_tokens == len(world.answered[0].token_ids)
    thinking, text, *calls = first.content
    assert (thinking.thinking, text.text, [(each.name, each.input) for each in calls]) == EXPECTED
    counted = await client.messages.count_tokens(model="m", system="rules", messages=messages, tools=tools)
    assert counted.input_tokens == first.usage.input_tokens == len(world.asked[0][0])
    results = [{"type": "tool_result", "tool_use_id": each.id, "content": "3"} for each in calls]
    messages.append({"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in first.content]})
    messages.append({"role": "user", "content": results})
    last = await ask()
    assert (last.content[0].text, last.stop_reason) == ("It costs 7.", "end_turn")


async def by_responses(world, stream, by_id=False):
    client, tools = of_openai(world), [{"type": "function", "name": "price", "parameters": PARAMETERS, "strict": False}]
    items = [user("how much?")]

    async def ask(given, **more):
        asked = {"model": "m", "instructions": "rules", "input": given, "tools": tools, **more}
        if not stream:
            return await client.responses.create(**asked)
        async with client.responses.stream(**asked) as events:
            kinds = [event.type async for event in events]
            assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
            return await events.get_final_response()

    first = await ask(items)
    assert first.status == "completed" and first.usage.input_tokens == len(world.asked[0][0])
    thinking, text, *calls = first.output
    made = [(each.name, json.loads(each.arguments)) for each in calls]
    assert (thinking.content[0].text, text.content[0].text, made) == EXPECTED
    results = [{"type": "function_call_output", "call_id": each.call_id, "output": "3"} for each in calls]
    if by_id:
        last = await ask(results, previous_response_id=first.id)
    else:
        last = await ask([*items, *(item.model_dump(exclude_none=True) for item in first.output), *results])
    assert last.output_text == "It costs 7."


async def by_id(world, stream):
    await by_responses(world, stream, by_id=True)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", [by_chat, by_messages, by_responses, by_id])
def test_a_conversation_with_tools_is_one_branch_in_every_dialect(dialect, stream):
    async def main():
        async with World(SAYS) as world:
            await dialect(world, stream)
            (context, *_), (following, *_) = world.asked
            assert following[: len(context)] == context
            assert following[len(context) :][: len(world.answered[0].token_ids)] == world.answered[0].token_ids
            shown = world.text(following)
            assert shown.count("<tool_response>") == 2 and shown.count("<im_start>system\nrules") == 1
            (leaf,) = world.session.forest.leaves()
            assert len(leaf.path()) == 2 and world.session.forest.rendered_anew == 0

    asyncio.run(main())


def test_two_dialects_speak_of_one_history():
    """A program with both clients in it: what one has heard, the other may go on from."""

    async def main():
        async with World(["one", "two"]) as world:
            said = await of_anthropic(world).messages.create(model="m", max_tokens=9, messages=[user("a")])
            history = [user("a"), {"role": "assistant", "content": said.content[0].text}, user("b")]
            await of_openai(world).chat.completions.create(model="m", messages=history)
            assert len(world.session.forest.leaves()) == 1

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
def test_each_dialect_is_refused_in_its_own_words(stream):
    async def main():
        async with World(["one"], calls=0) as world:
            with pytest.raises(openai.BadRequestError) as chat:
                await of_openai(world).chat.completions.create(model="m", messages=[user("a")], stream=stream)
            with pytest.raises(openai.BadRequestError) as responses:
                await of_openai(world).responses.create(model="m", input="a", stream=stream)
            with pytest.raises(anthropic.BadRequestError) as messages:
                await of_anthropic(world).messages.create(model="m", max_tokens=3, messages=[user("a")], stream=stream)
            assert chat.value.code == responses.value.code == "max_steps"
            assert messages.value.body["error"]["type"] == "invalid_request_error"
            await world.post("end", {})
            with pytest.raises(anthropic.ConflictError):
                await of_anthropic(world).messages.create(model="m", max_tokens=3, messages=[user("a")])
        with pytest.raises(anthropic.AuthenticationError):
            async with World() as world:
                world.session.model_key = "another"
                client = anthropic.AsyncAnthropic(base_url=world.address, api_key="mine", max_retries=0)
                await client.messages.create(model="m", max_tokens=3, messages=[user("a")])

    asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("v1/messages", {"messages": [user("a")]}),
        ("v1/messages", {"max_tokens": 3, "messages": []}),
        ("v1/messages", {"max_tokens": 3, "system": "alone", "messages": []}),
        ("v1/messages", {"max_tokens": 3, "messages": [{"role": "tool", "content": "x"}]}),
        ("v1/messages", {"max_tokens": 3, "messages": [user([{"type": "image", "source": {}}])]}),
        ("v1/messages", {"max_tokens": 3, "messages": [user("a")], "stop_sequences": [""]}),
        ("v1/messages", {"max_tokens": 3, "messages": [user("a"), {"role": "assistant", "content": "{"}]}),
        ("v1/messages", {"max_tokens": 3, "messages": [user("a")], "tools": [{"type": "bash_20250124", "name": "bash"}]}),
        ("v1/responses", {"input": []}),
        ("v1/responses", {"input": "a", "conversation": "conv_1"}),
        ("v1/responses", {"input": "a", "prompt": {"id": "pmpt_1"}}),
        ("v1/responses", {"input": "a", "previous_response_id": "none"}),
        ("v1/responses", {"input": "a", "background": True}),
        ("v1/responses", {"input": [{"type": "web_search_call"}]}),
        ("v1/responses", {"input": "a", "tools": [{"type": "web_search"}]}),
    ],
)
def test_what_the_other_dialects_cannot_say_here_is_refused(path, body):
    async def main():
        async with World() as world:
            answer = await world.post(path, body)
            assert answer.status_code == 400 and answer.json()["error"]["message"] and not world.asked

    asyncio.run(main())


def test_a_system_message_may_stand_between_messages_of_anthropics_form():
    async def main():
        async with World(["one"]) as world:
            told = [user("a"), {"role": "system", "content": [{"type": "text", "text": "be brief"}]}]
            await of_anthropic(world).messages.create(model="m", max_tokens=9, system="rules", messages=told)
            shown = world.text(world.asked[0][0])
            assert [line for line in shown.splitlines() if "<im_start>" not in line] == [
                "rules<im_end>",
                "a<im_end>",
                "be brief<im_end>",
            ]

    asyncio.run(main())


def test_a_stream_is_kept_alive_and_a_lost_one_is_not_recorded(monkeypatch):
    monkeypatch.setattr("roll.envs.gateway.server.PING_S", 0.02)

    async def main():
        async with World(["one"]) as world:
            world.held = asyncio.Event()
            body = {"messages": [user("a")], "stream": True, "tools": [PRICE]}
            headers = {"authorization": f"Bearer {world.session.model_key}"}
            url = f"{world.address}/v1/chat/completions"
            async with world.client.stream("POST", url, json=body, headers=headers) as answer:
                assert answer.status_code == 200 and await anext(answer.aiter_lines()) == ": keep-alive"
            gone = world.session.forest.answers
            world.held.set()
            again = await world.client.post(url, json=body, headers=headers | {"x-stainless-retry-count": "1"})
            assert again.text.endswith("data: [DONE]\n\n") and '"content": "one"' in again.text
            assert len(world.asked) == 1 and len(gone) == 1

    asyncio.run(main())


def test_a_stream_says_so_if_the_policy_fails():
    async def main():
        async with World(lambda number, context: 1 / 0) as world:
            with pytest.raises(openai.APIError, match="cannot answer"):
                async for _ in await of_openai(world).chat.completions.create(model="m", messages=[user("a")], stream=True):
                    pass
            assert not world.session.forest.answers

    asyncio.run(main())
