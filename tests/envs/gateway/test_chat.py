"""Chat Completions: what a program sends, what it hears, and what is recorded of it."""

import asyncio
import dataclasses
import json

import pytest
from gateway_world import END, PRICE, STRICT, TEMPLATE, THINKING, World, call, user

from roll.chat.samples import Outcome, episode_samples
from roll.core.data.episode import EpisodeTask

TASK = EpisodeTask(uid="train/shop/0", tag="shop", index=2, env_seed=7)
OUTCOME = Outcome(reward=1.0, success=True, end="terminated", metrics={})


def played(test, *args, **kwargs):
    """Runs the coroutine function in a world of its own."""

    async def main():
        async with World(*args, **kwargs) as world:
            await test(world)

    asyncio.run(main())


def recorded(world):
    """(prompt and answer) of each recorded answer: its path in the forest, and what the policy was given and sampled."""
    return [(answer.ids, answer.sampled) for answer in world.session.forest.answers]


def test_a_conversation_goes_on_from_the_tokens_that_were_sampled():
    async def test(world):
        first = await world.say([user("hello")])
        second = await world.say([user("hello"), first, user("more")])
        assert (first["content"], second["content"]) == ("one", "two")
        one, two = world.asked
        assert two[0][: len(one[0])] == one[0]
        assert world.text(two[0]) == (
            "<im_start>user\nhello<im_end>\n<im_start>assistant\none<im_end>\n<im_start>user\nmore<im_end>\n<im_start>assistant\n"
        )
        (sample,) = episode_samples(world.session.forest, TASK, OUTCOME)
        assert list(sample.prompt.input_ids) == list(one[0])
        assert [*sample.prompt.input_ids, *sample.response_ids] == [*two[0], *world.answered[1].token_ids]

    played(test, ["one", "two"])


def test_a_weight_update_in_mid_answer_leaves_every_token_its_version():
    async def test(world):
        first = await world.say([user("a")])
        await world.say([user("a"), first, user("b")])
        (sample,) = episode_samples(world.session.forest, TASK, OUTCOME)
        version_of = {i: span.version for span in sample.versions for i in range(span.start, span.stop)}
        own = [i for i, is_own in enumerate(sample.policy_mask) if is_own]
        sizes = [len(answer.token_ids) for answer in world.answered]
        assert [version_of[i] for i in own] == [n + (i >= size // 2) for n, size in enumerate(sizes) for i in range(size)]
        assert [sample.behaviour_logprobs[i] for i in own] == [-0.5 - n for n, size in enumerate(sizes) for _ in range(size)]

    played(test, ["the first answer", "the second one"])


def test_an_answer_is_never_encoded_again():
    """The policy writes tokens whose text is encoded otherwise: they stay."""

    async def test(world):
        world.ids_of = world.ids
        world.ids = lambda text: [0, *world.ids_of(text)] if text == "odd" else world.ids_of(text)
        first = await world.say([user("hello")])
        await world.say([user("hello"), first, user("more")])
        assert world.answered[0].token_ids[0] == 0
        assert world.asked[1][0][len(world.asked[0][0])] == 0

    played(test, ["odd", "two"])


def test_tools_are_shown_as_the_template_shows_them_and_calls_are_read():
    async def test(world):
        text = f"Let me look.\n{call(item='pear', deep={'a': [1, False]})}\n{call(item='plum')}"
        world.says = [text, "done"]
        asked = [{"role": "system", "content": "rules"}, user("how much?")]
        answer = (await world.chat(asked, [PRICE])).json()["choices"][0]
        assert answer["finish_reason"] == "tool_calls"
        message = answer["message"]
        assert message["content"] == "Let me look."
        one, two = message["tool_calls"]
        assert one["function"]["name"] == "price"
        assert json.loads(one["function"]["arguments"]) == {"item": "pear", "deep": {"a": [1, False]}}
        assert one["id"] != two["id"]
        results = [{"role": "tool", "tool_call_id": each["id"], "content": price} for each, price in ((one, "3"), (two, "4"))]
        await world.say([*asked, message, *results], [PRICE])
        shown = world.text(world.asked[1][0])
        assert shown.startswith("<im_start>tools\n[{") and '"price"' in shown
        assert shown.endswith(
            f"{text}<im_end>\n<im_start>user\n<tool_response>\n3\n</tool_response>\n<tool_response>\n4\n</tool_response><im_end>\n"
            "<im_start>assistant\n"
        )
        assert len(world.session.forest.leaves()) == 1

    played(test)


@pytest.mark.parametrize("added", ["", "\nCalling tools:\n[1]"])
def test_who_writes_the_stop_string_back_and_goes_on_stays_in_the_conversation(added):
    """As smolagents' agent that writes code does: the answer ends before its stop string, the history has it, and more."""

    async def test(world):
        world.ends = False
        ask = world.ask

        async def stopped(context, number, most, stop):
            answer = await ask(context, number, most, stop)
            return dataclasses.replace(answer, text=answer.text.removesuffix("</code>"), stopped=True)

        world.session._ask = stopped
        first = await world.say([user("q")], stop=["</code>"])
        assert first["content"] == "<code>\nlook()\n"
        back = {"role": "assistant", "content": [{"type": "text", "text": f"{first['content']}</code>{added}"}]}
        history = [user("q"), back, user("Observation: 3")]
        second = await world.say(history, stop=["</code>"])
        await world.say([*history, {"role": "assistant", "content": f"{second['content']}</code>"}, user("b")])
        (leaf,) = world.session.forest.leaves()
        assert len(leaf.path()) == 3 and world.session.forest.rendered_anew == 0
        assert world.asked[1][0][: len(world.asked[0][0])] == world.asked[0][0]
        told = world.text(world.asked[1][0]).partition("</code>")[2]
        assert told == f"{added}<im_end>\n<im_start>user\nObservation: 3<im_end>\n<im_start>assistant\n"

    played(test, ["<code>\nlook()\n</code>", "<code>\nagain()\n</code>", "done"])


@pytest.mark.parametrize("back", ["one and more", "on", "One"])
def test_an_answer_that_has_ended_is_not_gone_on_with(back):
    """Its end was sampled: behind it there is no place for a text. Nor does another text go on with it."""

    async def test(world):
        await world.say([user("a")])
        await world.say([user("a"), {"role": "assistant", "content": back}, user("b")])
        assert len(world.session.forest.leaves()) == 2 and world.session.forest.rendered_anew == 1

    played(test, ["one", "two"])


def test_a_template_that_leaves_tools_out_is_said_and_asks_nothing():
    """The policy would be trained to call what it has never heard of."""

    async def main():
        async with World(["a"], template=TEMPLATE.replace("{{ tools | tojson }}", "")) as world:
            refused = await world.chat([user("hi")], [PRICE])
            assert refused.status_code == 400
            assert "does not show tools: price" in refused.json()["error"]["message"]
            assert not world.asked and (await world.chat([user("hi")])).status_code == 200

    asyncio.run(main())


def test_a_template_that_wants_results_behind_calls_is_bridged_too():
    async def test(world):
        asked = [user("how much?")]
        message = await world.say(asked, [PRICE])
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "3"}
        await world.say([*asked, message, result], [PRICE])
        (context, _, _), more = world.asked[1], "<im_end>\n<im_start>user\n<tool_response>\n3\n</tool_response><im_end>\n"
        assert world.text(context).endswith(f"{call(item='pear')}{more}<im_start>assistant\n")
        assert len(world.session.forest.leaves()) == 1

    played(test, [call(item="pear"), "done"], template=STRICT + TEMPLATE)


@pytest.mark.parametrize("changed", ["order", "spaces", "number", "ids"])
def test_arguments_that_a_client_writes_otherwise_are_the_same(changed):
    async def test(world):
        message = await world.say([user("q")], [PRICE])
        (made,) = message["tool_calls"]
        given = json.loads(made["function"]["arguments"])
        if changed == "order":
            made["function"]["arguments"] = json.dumps(dict(reversed(given.items())))
        if changed == "spaces":
            made["function"]["arguments"] = json.dumps(given, indent=3)
        if changed == "number":
            made["function"]["arguments"] = json.dumps(given | {"count": 2.0})
        if changed == "ids":
            made["id"] = "another"
        await world.say([user("q"), message, {"role": "tool", "tool_call_id": made["id"], "content": "3"}], [PRICE])
        assert len(world.session.forest.leaves()) == 1

    played(test, [call(item="pear", count=2), "done"])


@pytest.mark.parametrize("changed", ["arguments", "python", "text", "question", "tools", "name"])
def test_an_edited_history_is_another_branch(changed):
    async def test(world):
        question, tools = user("q"), [PRICE]
        message = await world.say([question], tools)
        (made,) = message["tool_calls"]
        if changed == "arguments":
            made["function"]["arguments"] = json.dumps({"item": "plum"})
        if changed == "python":
            made["function"]["arguments"] = "{'item': 'pear', 'fresh': False}"
        if changed == "text":
            message["content"] = "I never said this"
        if changed == "question":
            question = user("Q")
        if changed == "tools":
            tools = [PRICE, {**PRICE, "function": {"name": "other"}}]
        if changed == "name":
            made["function"]["name"] = "other"
        await world.say([question, message, {"role": "tool", "tool_call_id": made["id"], "content": "3"}], tools)
        assert len(world.session.forest.leaves()) == 2 and world.session.forest.rendered_anew == 1
        samples = episode_samples(world.session.forest, TASK, OUTCOME)
        assert [sum(sample.policy_mask) for sample in samples] == [len(each.token_ids) for each in world.answered]

    played(test, [call(item="pear", fresh=False), "done"])


def test_words_that_the_policy_never_wrote_are_context_and_never_trained():
    async def test(world):
        first = await world.say([user("a")])
        made_up = {"role": "assistant", "content": "fabricated"}
        await world.say([user("a"), first, user("b"), made_up, user("c")])
        (sample,) = episode_samples(world.session.forest, TASK, OUTCOME)
        trained = [token for token, own in zip(sample.response_ids, sample.policy_mask, strict=True) if own]
        assert trained == [*world.answered[0].token_ids, *world.answered[1].token_ids]
        assert "fabricated" in world.text(sample.response_ids)

    played(test, ["one", "two"])


def test_two_calls_on_one_prefix_are_two_branches_and_their_prefix_is_trained_once():
    async def test(world):
        first = await world.say([user("a")])
        await asyncio.gather(*(world.say([user("a"), first, user(text)]) for text in ("left", "right")))
        left, right = episode_samples(world.session.forest, TASK, OUTCOME)
        assert len(left.trajectory.turns) == 2 and len(right.trajectory.turns) == 1
        assert (left.trajectory.first_turn, right.trajectory.first_turn) == (0, 2)
        assert left.begins_rollout and not right.begins_rollout
        assert all(sample.trajectory.num_turns == 3 and sample.reward == 1.0 and sample.index == 2 for sample in (left, right))
        shared = len(world.answered[0].token_ids)
        assert sum(left.policy_mask) + sum(right.policy_mask) == sum(len(each.token_ids) for each in world.answered)
        assert list(right.prompt.input_ids[len(left.prompt.input_ids) :][:shared]) == world.answered[0].token_ids
        assert [turn.reward for sample in (left, right) for turn in sample.trajectory.turns] == [0.0, 0.0, 1.0]

    played(test, ["same", "same", "same"])


def test_equal_answers_to_one_question_are_told_apart_by_the_ids_of_their_calls():
    async def test(world):
        first, second = await world.say([user("q")], [PRICE]), await world.say([user("q")], [PRICE])
        for message in (first, second):
            result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "3"}
            await world.say([user("q"), message, result], [PRICE])
        assert [len(leaf.path()) for leaf in world.session.forest.leaves()] == [2, 2]
        assert [leaf.path()[0] for leaf in world.session.forest.leaves()] == world.session.forest.answers[:2]

    played(test, [call(item="pear"), call(item="pear"), "a", "b"])


def test_compaction_and_a_sub_agent_begin_trees_of_their_own():
    async def test(world):
        main = [{"role": "system", "content": "main"}, user("task")]
        first = await world.say(main)
        await world.say([{"role": "system", "content": "helper"}, user("part")])
        second = await world.say([*main, first, user("go on")])
        await world.say([main[0], user("summary of all that was said"), user("go on")])
        forest = world.session.forest
        assert [len(leaf.path()) for leaf in forest.leaves()] == [1, 2, 1] and second["content"] == "c"
        assert forest.rendered_anew == 0, "none of them claims an answer that cannot be found"
        assert [leaf.reply.content for leaf in forest.leaves()] == ["b", "c", "d"]

    played(test, ["a", "b", "c", "d"])


@pytest.mark.parametrize("template", [TEMPLATE, THINKING])
def test_thinking_is_told_apart_and_may_be_left_out_of_the_history(template):
    begins = "" if template is THINKING else "<think>\n"

    async def test(world):
        first = await world.say([user("a")])
        assert (first["reasoning_content"], first["content"]) == ("hmm", "one")
        await world.say([user("a"), {"role": "assistant", "content": "one"}, user("b")])
        await world.say([user("a"), first, user("b")])
        assert "hmm" in world.text(world.asked[1][0]), "what was sampled stays"
        await world.say([user("a"), {**first, "reasoning_content": "other thoughts"}, user("b")])
        assert [len(leaf.path()) for leaf in world.session.forest.leaves()] == [2, 2, 1]
        cut = await world.say([user("z")])
        assert (cut["reasoning_content"], cut["content"]) == ("still thinking", ""), "cut inside its thinking"

    played(test, [f"{begins}hmm\n</think>\n\none", "two", "three", "four", f"{begins}still thinking"], template=template)


@pytest.mark.parametrize(
    "text",
    ['<tool_call>{"name": "price", "argum', '<tool_call>{"name": "price"', "<tool_call>no json</tool_call>", "<tool_call>"],
)
def test_a_call_that_cannot_be_read_is_text(text):
    async def test(world):
        world.ends = text.endswith("</tool_call>")
        choice = (await world.chat([user("q")], [PRICE])).json()["choices"][0]
        assert "tool_calls" not in choice["message"] and choice["message"]["content"] == text
        assert choice["finish_reason"] == ("stop" if world.ends else "length")
        world.ends = True
        await world.say([user("q"), choice["message"], user("go on")], [PRICE])
        (sample,) = episode_samples(world.session.forest, TASK, OUTCOME)
        assert [turn.is_valid for turn in sample.trajectory.turns] == [False, True]

    played(test, [text, "well"])


def test_an_answer_without_an_end_gets_the_templates_as_context():
    async def test(world):
        world.ends = False
        first = await world.say([user("a")])
        world.ends = True
        await world.say([user("a"), first, user("b")])
        (sample,) = episode_samples(world.session.forest, TASK, OUTCOME)
        at = len(world.answered[0].token_ids)
        assert sample.response_ids[at] == END and not sample.policy_mask[at]
        assert world.text(world.asked[1][0]).count("<im_end>") == 3

    played(test, ["one", "two"])


def test_the_smaller_limit_counts_and_what_the_run_decides_is_the_runs():
    async def test(world):
        await world.say([user("a")], max_tokens=5, max_completion_tokens=9, temperature=0.1, seed=3, stop=["x", "y"])
        await world.say([user("a")], max_tokens=10_000, model="gpt-9", stop="end", input_ids=[1, 2], top_p=0.2)
        room = world.limits.context - len(world.asked[0][0])
        assert [(most, stop) for _, most, stop in world.asked] == [(5, ("x", "y")), (min(room, 50), ("end",))]

    played(test, ["one", "two"], answer=50)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"n": 2, "messages": [user("a")]}, "n"),
        ({"functions": [{"name": "price"}], "messages": [user("a")]}, "functions"),
        ({"messages": []}, "messages"),
        ({}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages"),
        ({"messages": [user("a")], "max_tokens": 0}, "max_tokens"),
        ({"messages": [user("a")], "max_tokens": True}, "max_tokens"),
        ({"messages": [user("a")], "tools": [{"type": "web"}]}, "tools"),
        ({"messages": [user("a")], "stop": 3}, "stop"),
        ({"messages": [user([{"type": "image_url", "image_url": {"url": "x"}}])]}, None),
        ({"messages": [{"role": "assistant", "content": "", "tool_calls": [{"id": "x"}]}]}, None),
        (b"not json", None),
        (b"[1]", None),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', None),
        (b"[" * 100_000, None),
    ],
)
def test_a_request_that_cannot_be_answered_is_refused_in_openais_form(body, param):
    async def test(world):
        answer = await world.post("v1/chat/completions", body)
        error = answer.json()["error"]
        assert answer.status_code == 400 and error["type"] == "invalid_request_error" and error["param"] == param
        assert answer.headers["x-should-retry"] == "false" and not world.asked

    played(test)


def test_limits_are_told_and_remembered():
    async def test(world):
        await world.say([user("a")])
        answer = await world.chat([user("b" * 300)])
        assert answer.status_code == 400 and answer.json()["error"]["code"] == "context_length_exceeded"
        assert world.session.end == "context"
        world.session.end = None
        await world.say([user("a")])
        answer = await world.chat([user("a")])
        assert answer.status_code == 400 and "max_steps" in answer.json()["error"]["message"]
        assert world.session.end == "max_steps" and len(world.asked) == 2

    played(test, ["one", "two"], context=200, calls=2)


@pytest.mark.parametrize(("answer", "ending"), [(1, "stop"), (2, "length")])
def test_an_answer_that_may_have_one_token_is_whole_with_it(answer, ending):
    """As a move is in an environment that is hosted: nothing was cut off that could have been longer."""

    async def test(world):
        world.ends = False
        choice = (await world.chat([user("a")])).json()["choices"][0]
        (sample,) = episode_samples(world.session.forest, TASK, OUTCOME)
        assert choice["finish_reason"] == sample.finish_reason == ending
        assert world.session.cut_off is (ending == "length")

    played(test, ["x" * answer], answer=answer)


def test_the_models_are_one():
    async def test(world):
        headers = {"authorization": f"Bearer {world.session.model_key}"}
        answer = await world.client.get(f"{world.address}/v1/models", headers=headers)
        assert [model["id"] for model in answer.json()["data"]] == ["policy"]

    played(test)


def test_a_policy_that_fails_is_the_runs_error_and_not_the_programs():
    async def test(world):
        world.says = lambda number, context: 1 / 0
        answer = await world.chat([user("a")])
        assert answer.status_code == 500 and "division" not in answer.text
        assert isinstance(world.session.over.exception(), ZeroDivisionError)
        assert not world.session.forest.answers

    played(test)
