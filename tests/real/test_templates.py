"""The chat templates of models, as their makers wrote them, with a real tokenizer: conversations keep the tokens that were
sampled, and what is put behind them is what the template writes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from gateway_world import World, call, user
from random_conversations import check_paths, play, tokenizer_with

from roll.chat.conversation import read_message

FOLDER = Path(__file__).parents[2] / "build" / "templates" / "trl" / "chat_templates"
"""Of TRL's package, which keeps templates as they are in the models' folders."""
ENDS = {"qwen2_5": "<|im_end|>", "qwen3": "<|im_end|>", "llama3": "<|eot_id|>", "llama3_1": "<|eot_id|>"}
SHOW_TOOLS = ("qwen2_5", "qwen3")
"""With calls in the form that the gateway reads."""
CONVERSATIONS = 200
"""For each template; three agents talk in each."""
PRICE = {"type": "function", "function": {"name": "price", "description": "Of one.", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module", params=["smollm2", *ENDS])
def named(request, model_path, tokenizer):
    """A template's name, and the tokenizer with it."""
    if request.param == "smollm2":
        return request.param, tokenizer
    file = FOLDER / f"{request.param}.jinja"
    if not file.exists():
        pytest.skip(f"there is no {file}: make test-real fetches it")
    return request.param, tokenizer_with(model_path, file.read_text(encoding="utf-8"), ENDS[request.param])


def test_every_recorded_path_has_the_tokens_that_were_given_and_sampled(named):
    _, tokenizer = named
    worlds = [asyncio.run(play(seed, "", tokenizer)) for seed in range(CONVERSATIONS)]
    for seed, world in enumerate(worlds):
        check_paths(world, seed)
    answers = [answer for world in worlds for answer in world.session.forest.answers]
    assert len(answers) > 15 * CONVERSATIONS and sum(answer.parent is not None for answer in answers) > len(answers) / 2


def test_a_conversation_that_only_grows_is_what_the_template_writes_of_it(named):
    """Answers as the template itself would write them; tools where it shows them."""
    name, tokenizer = named
    tools = [PRICE] if name in SHOW_TOOLS else None
    calls = [f"<tool_call>\n{inner}\n</tool_call>" for inner in (_inner(item="pear"), _inner(item="a plum"))]
    with_calls = [calls[0], "It is 3.", "\n".join(calls), f"So:\n{calls[1]}"]
    says = ["Hello there.", *(with_calls if tools else []), "Two\nlines.", "Done"]

    async def main() -> None:
        async with World(says, tokenizer=tokenizer) as world:
            messages = [{"role": "system", "content": "Be kind."}, user("hi")]
            for number in range(len(says)):
                said = await world.say(messages, tools)
                written = world.dialogue.whole([read_message(each) for each in messages], tools or ()).ids
                assert world.text(world.asked[number][0]) == world.text(written), number
                made = said.get("tool_calls", ())
                results = [{"role": "tool", "tool_call_id": each["id"], "content": "3 & <4>"} for each in made]
                messages += [said, *(results or [user(f"and {number}?")])]
            assert len(world.session.forest.leaves()) == 1

    asyncio.run(main())


def _inner(**arguments: str) -> str:
    return call(**arguments).removeprefix("<tool_call>").removesuffix("</tool_call>")


def test_tools_that_a_template_leaves_out_are_refused(named):
    name, tokenizer = named

    async def main() -> None:
        async with World(["3"], tokenizer=tokenizer) as world:
            answer = await world.chat([user("hi")], [PRICE])
            shown = name not in ("smollm2", "llama3")
            assert answer.status_code == (200 if shown else 400), json.dumps(answer.json())
            assert shown or "does not show tools: price" in answer.json()["error"]["message"]

    asyncio.run(main())
