"""Random conversations of several agents at once: the tokens of every recorded path are what the policy was given and sampled."""

import asyncio

import pytest
from gateway_world import END, PRICE, STRICT, TEMPLATE, THINKING, World, call, user
from random_conversations import check_paths, play

from roll.chat.samples import Outcome, episode_samples
from roll.core.data.episode import EpisodeTask

TASK = EpisodeTask(uid="u", tag="t", index=0, env_seed=0)
OUTCOME = Outcome(reward=1.0, success=None, end="terminated", metrics={})


@pytest.mark.parametrize("template", [TEMPLATE, THINKING, STRICT + TEMPLATE], ids=["plain", "thinking", "strict"])
@pytest.mark.parametrize("seeds", [range(start, start + 25) for start in range(0, 75, 25)], ids=str)
def test_concatenated_nodes_are_the_prompt_and_completion_of_every_recorded_call(template, seeds):
    for seed in seeds:
        world = asyncio.run(play(seed, template))
        check(world, seed)


def check(world, seed):
    check_paths(world, seed)
    forest = world.session.forest
    samples = episode_samples(forest, TASK, OUTCOME)
    assert len(samples) == len(forest.leaves())
    trained = [sampled for sample in samples for sampled in trained_pieces(sample)]
    expected = [tuple(answer.sampled.token_ids) for answer in forest.answers]
    assert sorted(trained) == sorted(expected), f"seed {seed}: each answer is trained once"
    for sample, leaf in zip(samples, forest.leaves(), strict=True):
        assert [*sample.prompt.input_ids, *sample.response_ids] == leaf.ids
        covered = [i for span in sample.versions for i in range(span.start, span.stop)]
        assert covered == [i for i, own in enumerate(sample.policy_mask) if own]
        assert len(sample.behaviour_logprobs) == len(sample.response_ids)
    turns = [turn for sample in samples for turn in sample.trajectory.turns]
    assert len(turns) == len(forest.answers) and sum(turn.reward for turn in turns) == 1.0
    firsts = [sample.trajectory.first_turn for sample in samples]
    assert firsts == [sum(len(each.trajectory.turns) for each in samples[:i]) for i in range(len(samples))]


def trained_pieces(sample):
    """The tokens of each turn that the sample trains."""
    own = [token for token, is_own in zip(sample.response_ids, sample.policy_mask, strict=True) if is_own]
    pieces = []
    for turn in sample.trajectory.turns:
        pieces.append(tuple(own[: turn.tokens]))
        own = own[turn.tokens :]
    assert not own
    return pieces


def test_a_path_that_were_rendered_anew_would_be_another():
    """The negative control: what the template makes of a whole history differs from what was sampled, as it does in practice."""

    async def main():
        async with World([f"  odd  spaces {call(item='pear')} ", "b"]) as world:
            first = await world.say([user("a")], [PRICE])
            result = {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "3"}
            history = [user("a"), first, result]
            await world.say(history, [PRICE])
            shown = [
                {**first, "content": first["content"] or "", "tool_calls": world.session.forest.answers[0].message["tool_calls"]}
            ]
            anew = world.dialogue.whole([user("a"), *shown, result], [PRICE]).ids
            assert anew != world.asked[1][0]

    asyncio.run(main())


def test_the_generator_reaches_what_it_is_for():
    """Branches, several roots, tools, parallel calls and answers that a program goes on writing all come up."""
    worlds = [asyncio.run(play(seed, TEMPLATE)) for seed in range(20)]
    forests = [world.session.forest for world in worlds]
    assert any(answer.branches > 1 for forest in forests for answer in forest.answers)
    assert any(forest.rendered_anew for forest in forests)
    assert any(len(answer.path()) > 3 for forest in forests for answer in forest.answers)
    assert any(len(answer.reply.calls) > 1 for forest in forests for answer in forest.answers)
    behind = [answer for forest in forests for answer in forest.answers if answer.parent and not answer.parent.sampled.stopped]
    assert any(answer.told[0] != END for answer in behind)
