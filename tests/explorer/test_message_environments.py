"""Environments that keep the conversation themselves: what the policy is shown, what is trained, how an episode ends."""

import asyncio

import pytest
from agentic_worlds import Talk
from gateway_world import PRICE, THINKING, World

from roll.chat.conversation import read_tool
from roll.core.configs.agentic import EnvConfig
from roll.core.configs.problems import ConfigError
from roll.core.data.episode import EpisodeTask
from roll.core.errors import EnvFailure, EpisodeFailed
from roll.envs.episode_managers import TrajEnvManager
from roll.envs.host import EnvHost
from roll.envs.turn_managers import AgentNativeStepEnvManager
from roll.prepare.agentic_run import prepare

NATIVE = "roll.pipeline.agentic.env_manager.agent_native_env_manager.AgentNativeStepEnvManager"


def play(says, manager, *, context=4000, execution="inline", max_steps=9, success_at=None, template=None, **env_config):
    world = World(says, answer=60, **({"template": template} if template else {}))
    config = EnvConfig(
        env_type="agentic_worlds.Talk",
        env_config=env_config,
        max_steps=max_steps,
        success_at=success_at,
        agent_template="placeholder",
    )
    made = manager(config, world.dialogue, instructions="", context=context, answer_tokens=60)

    async def ask(tokens, turn, most):
        return await world.ask(tokens, turn, most, ())

    async def played():
        host = EnvHost(execution, 20, 20)
        try:
            handle = await host.open("talk", "agentic_worlds.Talk", env_config)
            return await made.play(handle, EpisodeTask(uid="train/talk/0", tag="talk", index=2, env_seed=0), ask)
        finally:
            await host.close()

    return asyncio.run(played()), world


def conversation(*texts):
    return [{"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(texts)]


@pytest.mark.parametrize("execution", ["inline", "thread", "process"])
def test_a_turn_of_the_native_manager_sees_the_messages_and_the_tools_that_the_environment_shows(execution):
    samples, world = play(["0", "x", "2"], AgentNativeStepEnvManager, execution=execution, tools=[PRICE])
    tools = [read_tool(PRICE)]
    shown = [("num 0",), ("num 0", "0", "num 1"), ("num 0", "0", "num 1", "x", "num 2")]
    assert [list(sample.prompt.input_ids) for sample in samples] == [
        world.dialogue.whole(conversation(*t), tools).ids for t in shown
    ]
    assert [world.text(sample.response_ids) for sample in samples] == ["0<im_end>", "x<im_end>", "2<im_end>"]
    assert "price" in samples[0].prompt.text or "price" in world.text(samples[0].prompt.input_ids)
    assert [sample.reward for sample in samples] == [2.0] * 3 and {sample.index for sample in samples} == {2}
    assert [sample.trajectory.turns[0].reward for sample in samples] == [1.0, 0.0, 1.0]
    assert [sample.trajectory.turns[0].observation for sample in samples] == ["user: num 0", "user: num 1", "user: num 2"]
    assert [(sample.begins_rollout, sample.trajectory.num_turns) for sample in samples] == [(True, 3), (False, 3), (False, 3)]


def test_turns_that_are_shown_equal_messages_are_equal():
    (first,), _ = play(["0"], AgentNativeStepEnvManager, length=1)
    (again, later), _ = play(["0", "1"], AgentNativeStepEnvManager, length=2)
    keys = [sample.trajectory.turns[0].state_key for sample in (first, again, later)]
    assert keys[0] == keys[1] != keys[2] and all(keys)


@pytest.mark.parametrize("template", [None, THINKING])
def test_a_conversation_is_one_sample_of_the_very_tokens_that_were_sampled(template):
    (sample,), world = play(["0", "no", "2"], TrajEnvManager, template=template)
    whole = [*sample.prompt.input_ids, *sample.response_ids]
    for (context, _, _), answer in zip(world.asked, world.answered, strict=True):
        assert whole[: len(context) + len(answer.token_ids)] == [*context, *answer.token_ids]
    assert sum(sample.loss_mask) == sum(len(answer.token_ids) for answer in world.answered)
    assert [turn.reward for turn in sample.trajectory.turns] == [1.0, 0.0, 1.0]


def test_a_history_that_is_rewritten_begins_another_sample_and_each_answer_is_trained_once():
    samples, world = play(["0", "1", "2"], TrajEnvManager, forgets=True)
    assert [list(sample.response_ids) for sample in samples] == [answer.token_ids for answer in world.answered]
    assert [sample.trajectory.first_turn for sample in samples] == [0, 1, 2] and {s.reward for s in samples} == {3.0}


@pytest.mark.parametrize(("manager", "count"), [(AgentNativeStepEnvManager, 2), (TrajEnvManager, 1)])
def test_an_episode_without_room_is_told_to_its_environment_which_may_pay(manager, count):
    samples, world = play(["0", "1", "2"], manager, context=70, success_at=7)
    assert len(world.asked) == 2 and len(samples) == count
    assert {(sample.reward, sample.trajectory.end, sample.trajectory.success) for sample in samples} == {(7.0, "context", True)}
    assert samples[-1].trajectory.turns[-1].reward == 6.0, "what it pays is of the last turn"
    with pytest.raises(EpisodeFailed, match="sequence_length is 5"):
        play(["0"], manager, context=5)


def test_messages_that_cannot_be_shown_are_the_environments_failure(monkeypatch):
    monkeypatch.setattr(Talk, "reset", lambda self, seed: ([{"role": "nobody", "content": ""}], {}))
    with pytest.raises(EnvFailure, match="a message that cannot be shown: a message's role is one of"):
        play(["0"], TrajEnvManager)
    monkeypatch.setattr(Talk, "reset", lambda self, seed: ([{"role": "user", "content": ""}], {"tools": [{"type": "x"}]}))
    with pytest.raises(EnvFailure, match="a tool that cannot be shown"):
        play(["0"], TrajEnvManager)


def test_calls_in_a_history_are_read_as_chat_templates_want_them(monkeypatch):
    """OpenAI's form carries arguments as text; templates take mappings."""
    call = {"id": "1", "type": "function", "function": {"name": "price", "arguments": '{"of": "tea"}'}}
    history = [
        {"role": "user", "content": [{"type": "text", "text": "How much?"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "3"},
    ]
    monkeypatch.setattr(Talk, "reset", lambda self, seed: (history, {}))
    monkeypatch.setattr(Talk, "step", lambda self, text: (history, 1.0, True, False, {}))
    (sample,), world = play(["3"], AgentNativeStepEnvManager)
    assert '<tool_call>\n{"name": "price", "arguments": {"of": "tea"}}' in world.text(sample.prompt.input_ids)


def test_a_run_of_an_environment_of_messages(lab, of_programs):
    changes = {
        "custom_envs": {"letters": {"env_type": f"{lab.worlds}.Talk", "env_manager_cls": NATIVE, "agent_template": "x"}},
        "loss_agg_mode": "rollout-mean",
    }
    run = lab.run(of_programs(changes, max_steps=2))
    turns = [sample["trajectory"]["num_turns"] for sample in run.trained_samples()]
    assert len(turns) == 2 * 8 * 3 and set(turns) == {3}, "a sample of each turn"


@pytest.mark.parametrize(
    ("changes", "key", "message"),
    [
        ({"env_type": "Letters", "env_manager_cls": NATIVE}, "custom_envs.letters.env_manager_cls", "Letters shows a text"),
        (
            {"env_type": "Talk", "env_manager_cls": NATIVE.replace("agent_native", "step").replace("AgentNative", "")},
            "custom_envs.letters.env_manager_cls",
            "Talk shows messages",
        ),
        ({"env_type": "Talk", "template": "none"}, "actor_train.data_args.template", "need a chat template"),
    ],
)
def test_managers_are_told_apart_before_any_worker_starts(lab, of_programs, changes, key, message):
    env = {name: value for name, value in changes.items() if name != "template"}
    env["env_type"] = f"{lab.worlds}.{env['env_type']}"
    given = {"custom_envs": {"letters": env}, "actor_train.data_args.template": changes.get("template", "native")}
    with pytest.raises(ConfigError) as refused:
        prepare(of_programs(given), lab.inventory)
    assert [(problem.key, message in str(problem)) for problem in refused.value.problems] == [(key, True)]
