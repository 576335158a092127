"""Rollouts of a user's own, named by dotted path."""

import asyncio

from roll.core.errors import Refused


async def two_turns(chat, prompt, letter="a"):
    """Asks twice; pays the share of a letter, which is worked out here."""
    messages = [*prompt.conversation]
    first = await chat(messages, max_tokens=4)
    second = await chat([*messages, first.message, {"role": "user", "content": "1"}], max_tokens=4)
    said = first.content + second.content
    return {"reward": said.count(letter) / max(1, len(said)), "success": letter in said, "said": len(said)}


async def two_branches(chat, prompt):
    """Two conversations that begin alike; the domain's worker judges the last answer."""
    begin = [{"role": "user", "content": "12"}]
    first = await chat(begin, max_tokens=4)
    for question in "34":
        await chat([*begin, first.message, {"role": "user", "content": question}], max_tokens=4)


async def until_refused(chat, prompt):
    messages = [{"role": "user", "content": "1"}]
    while True:
        messages += [(await chat(messages)).message, {"role": "user", "content": "2"}]


async def minds_the_limit(chat, prompt):
    try:
        await until_refused(chat, prompt)
    except Refused as refused:
        return 1.0 if refused.code == "context_length_exceeded" else 0.5


async def odd_ones_fail(chat, prompt):
    answer = await chat([{"role": "user", "content": "1"}], max_tokens=4)
    if len(answer.content) % 2:
        raise KeyError("an odd answer")
    return 1.0


async def never_ends(chat, prompt):
    await chat([{"role": "user", "content": "1"}])
    await asyncio.Event().wait()


async def asks_nothing(chat, prompt):
    return 1.0


async def says_nonsense(chat, prompt):
    await chat([{"role": "user", "content": "1"}])
    return "much"


def no_coroutine(chat, prompt):
    return 1.0


async def with_tools(chat, prompt):
    return len((await chat([{"role": "user", "content": "1"}], tools=[TOOL])).content)


async def with_tools_and_patience(chat, prompt):
    try:
        return await with_tools(chat, prompt)
    except Refused:
        return 0.0


TOOL = {"type": "function", "function": {"name": "add", "parameters": {}}}
