"""Environments with tools: whose answer is whose, what is trained, what is earned and counted."""

import asyncio

import pytest
from gateway_world import STRICT, TEMPLATE, THINKING, World, call

from roll.core.configs.agentic import EnvConfig
from roll.core.configs.problems import ConfigError
from roll.core.data.episode import EpisodeTask
from roll.envs.environment_worker import toolbox, with_tools
from roll.envs.episode_managers import TrajEnvManager
from roll.envs.host import EnvHost
from roll.envs.turn_managers import StepEnvManager
from roll.plan.rules.loading import load_config
from roll.prepare.agentic_run import prepare


def play(says, *, manager=TrajEnvManager, template=TEMPLATE, max_steps=9, **wrapper):
    world = World(says, answer=300, template=template)
    wrapper = {"tool_configs": [{"tool_id": "calculator"}], **wrapper}
    config = load_config(
        EnvConfig,
        {"env_type": "agentic_worlds.Letters", "env_config": {"length": 2}, "max_steps": max_steps, "tool_wrapper": wrapper},
    )
    made = manager(config, world.dialogue, instructions="", context=9000, answer_tokens=300)
    box = toolbox("letters", config)

    async def ask(tokens, turn, most):
        return await world.ask(tokens, turn, most, ())

    async def played():
        host = EnvHost("inline", 20, 20)
        try:
            handle = await host.open("letters", config.env_type, config.env_config)
            return await made.play(with_tools(handle, box, made), EpisodeTask(uid="u", tag="letters", index=0, env_seed=0), ask)
        finally:
            await host.close()
            await box.close()

    return asyncio.run(played()), world


def calculated(expression):
    return call("calculator", expression=expression)


def counts(sample):
    metrics = sample.trajectory.metrics
    return tuple(int(metrics[f"tool_{name}_counter"]) for name in ("use", "success", "error"))


@pytest.mark.parametrize("template", [TEMPLATE, THINKING, STRICT + TEMPLATE])
def test_an_episode_with_calls_is_one_sample_of_the_very_tokens_that_were_sampled(template):
    """Two calls in parallel, then one that fails, then answers for the environment."""
    begin = "sums</think>" if template is THINKING else ""
    says = [begin + calculated("1+1") + calculated("2*3"), begin + calculated("1/0"), "a", "b"]
    (sample,), world = play(says, template=template, call_format="template")
    whole = [*sample.prompt.input_ids, *sample.response_ids]
    for (context, _, _), answer in zip(world.asked, world.answered, strict=True):
        assert whole[: len(context) + len(answer.token_ids)] == [*context, *answer.token_ids]
    text = world.text(whole)
    assert '"name": "calculator"' in text.split("<im_start>user")[0], "the tools are in the prompt"
    assert "<tool_response>\n2\n</tool_response>\n<tool_response>\n6\n</tool_response>" in text
    assert "<tool_response>\ndivision by zero\n</tool_response>" in text
    assert counts(sample) == (3, 2, 1)
    told = sample.trajectory
    assert [turn.reward for turn in told.turns] == [0.0, 0.0, 1.0, 1.0] and told.score == 2.0 and told.end == "terminated"
    assert [turn.action for turn in told.turns] == says
    assert [turn.is_effective for turn in told.turns] == [True, False, True, True]
    assert sum(sample.loss_mask) == sum(len(answer.token_ids) for answer in world.answered)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (call("calculater", expression="1"), "Error: there is no tool of this name; there are calculator"),
        (call("calculator", of="1"), "it takes expression, a text, and nothing else"),
        ('<tool_call>{"name": "calculator", </tool_call>', "Error: a call is <tool_call>"),
        ("<tool_call>", "Error: a call is <tool_call>"),
    ],
)
def test_calls_that_cannot_be_made_are_observations(said, told):
    (sample,), world = play([said, "a", "b"], call_format="template")
    assert told in world.text(world.asked[1][0])
    assert counts(sample) == (1, 0, 1) and sample.trajectory.num_turns == 3


def test_a_call_in_words_is_the_first_of_its_marks_and_its_result_a_message_of_a_tool():
    """As ROLL's: the observation explains the tool, what it tells has the role of a tool, and calls are paid."""
    says = ["first <calculator>1 + 1</calculator> then <calculator>2</calculator>", "a", "b"]
    rewards = {"tool_reward": 0.5, "tool_success_reward": 0.25}
    (sample,), world = play(says, wrapper_args=rewards)
    assert "<calculator>expression</calculator>" in sample.prompt.text and "tools\n" not in sample.prompt.text
    assert "<tool_response>\n2\n</tool_response>" in world.text(sample.response_ids)
    assert [turn.reward for turn in sample.trajectory.turns] == [0.75, 1.0, 1.0] and sample.reward == 2.75
    assert counts(sample) == (1, 1, 0)


def test_failed_calls_may_cost_and_there_are_only_so_many():
    wrapper = {"wrapper_args": {"tool_execute_error_reward": -0.5, "max_tool_uses": 1}}
    (sample,), world = play(["<calculator>x</calculator>", "<calculator>1</calculator>", "b"], **wrapper)
    assert "This was the last call of a tool" in world.text(world.asked[1][0])
    assert [turn.reward for turn in sample.trajectory.turns] == [-0.5, 0.0, 1.0], "the second is the environment's to judge"
    says = [calculated("1") + calculated("2"), "a", "b"]
    (sample,), world = play(says, call_format="template", wrapper_args={"max_tool_uses": 1})
    assert "<tool_response>\n1" in world.text(world.asked[1][0]) and "no calls of tools left" in world.text(world.asked[1][0])
    assert counts(sample) == (2, 1, 1)


def test_a_step_manager_sees_what_tools_tell_as_any_observation():
    samples, _ = play(["<calculator>1 + 1</calculator>", "a", "b"], manager=StepEnvManager)
    assert samples[1].prompt.text == "2" and [sample.reward for sample in samples] == [2.0] * 3
    keys = [sample.trajectory.turns[0].state_key for sample in samples]
    assert keys[0] == "0/0" and keys[1] not in ("", *keys[::2]), "what a tool has told is part of the state"


def test_a_run_with_a_tool(lab, of_programs):
    """The model says nothing that is a call: the tools are in its prompt, and the run is as any."""
    changes = {
        "custom_envs": {
            "letters": {
                "env_type": f"{lab.worlds}.Letters",
                "max_steps": 4,
                "tool_wrapper": {"tool_configs": [{"tool_id": f"{lab.worlds}.Letter"}]},
            }
        },
        "eval_steps": 1000,
    }
    run = lab.run(of_programs(changes, max_steps=2))
    assert run.steps()[-1]["env/letters/tool_use_counter"] == 0
    assert len(run.trained_samples()) == 16


@pytest.mark.parametrize(
    ("wrapper", "changes", "key", "message"),
    [
        ({"tool_configs": []}, {}, "tool_configs", "names no tool"),
        ({"call_format": "template"}, {"actor_train.data_args.template": "none"}, "call_format", "chat template"),
        ({"call_format": "template"}, {"manager": "step_env_manager.StepEnvManager"}, "call_format", "begins each turn afresh"),
        ({"call_format": "template"}, {}, "call_format", "does not show tools"),
        ({"tool_configs": [{"tool_id": "calculater"}]}, {}, "tool_configs.0.tool_id", "did you mean calculator"),
        (
            {"wrapper_args": {"tool_reward": 1, "tool_execute_error_reward": -1}},
            {},
            "wrapper_args.tool_execute_error_reward",
            "place",
        ),
        ({}, {"manager": "agent_native_env_manager.AgentNativeStepEnvManager", "env": "Talk"}, "", "has no effect"),
    ],
)
def test_tools_are_refused_before_any_worker_starts(lab, of_programs, wrapper, changes, key, message):
    """The tests' chat template knows no tools."""
    manager = changes.get("manager", "traj_env_manager.TrajEnvManager")
    env = {
        "env_type": f"{lab.worlds}.{changes.get('env', 'Letters')}",
        "env_manager_cls": f"roll.pipeline.agentic.env_manager.{manager}",
        "tool_wrapper": {"tool_configs": [{"tool_id": "calculator"}], **wrapper},
    }
    others = {name: value for name, value in changes.items() if "." in name}
    with pytest.raises(ConfigError) as refused:
        prepare(of_programs({"custom_envs": {"letters": env}, **others}), lab.inventory)
    key = f"custom_envs.letters.tool_wrapper{'.' if key else ''}{key}"
    assert [(problem.key, message in str(problem)) for problem in refused.value.problems] == [(key, True)]
