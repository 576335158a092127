"""Whole runs in this process whose agents are programs: real processes, a real engine, a real trainer."""

import asyncio

import pytest
from gateway_world import World

from roll.cli.verify import read_run, violations
from roll.core.configs.problems import ConfigError
from roll.core.data.episode import EpisodeTask
from roll.envs.environment_worker import programs
from roll.platform.local_backend import LocalBackend
from roll.prepare.agentic_run import prepare

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("own", [{}, {"preload": ["urllib.request"], "isolated": True}], ids=["anew", "preloaded, shut in"])
def test_a_run_trains_what_programs_said(lab, of_programs, own):
    changes = {f"custom_envs.letters.program.{key}": value for key, value in own.items()}
    config = of_programs(changes, async_generation_ratio=1, max_steps=2)
    run = lab.run(config)
    samples = run.trained_samples()
    assert len(samples) == 2 * 2 * config.rollout_batch_size, "two leaves an episode"
    for sample in samples:
        own = [i for start, stop, *_ in sample["versions"] for i in range(start, stop)]
        assert own == [i for i, is_own in enumerate(sample["loss_mask"]) if is_own]
        assert sample["trajectory"]["num_turns"] == 3
        assert len(sample["trajectory"]["turns"]) == (2 if sample["trajectory"]["first_turn"] == 0 else 1)
    steps = run.steps()
    assert all(step["env/letters/num_actions"] == 3 and step["env/letters/conversations"] == 2 for step in steps)
    assert all(step["env/episodes"] == config.rollout_batch_size for step in steps)
    mismatches = [step["actor/engine_mismatch_max"] for step in steps if "actor/engine_mismatch_max" in step]
    assert mismatches and max(mismatches) < 1e-4, "the trainer sees the tokens that the engine sampled"


def test_a_run_is_resumed_with_its_agent_elsewhere_and_other_limits_and_keeps_no_secret(lab, of_programs, tmp_path):
    """What an agent is given may be a key; what a checkpoint has to know of it is whether it is the same."""
    own = {"custom_envs.letters.program.environment": {"SEARCH_API_KEY": "sk-very-secret"}}
    lab.run(of_programs(own, max_steps=1, save_steps=1))
    moved = (tmp_path / "agent").rename(tmp_path / "elsewhere")
    program = {"folder": str(moved), "agent_timeout_s": 300.0, "preload": ["urllib.request"], "score_exits": True}
    own |= {f"custom_envs.letters.program.{key}": value for key, value in program.items()}
    run = lab.run(of_programs(own, max_steps=2, save_steps=1, resume_from_checkpoint=True))
    assert [row["step"] for row in run.steps()] == [1, 2]
    assert not [path for path in run.run_dir.rglob("*") if path.is_file() and b"sk-very-secret" in path.read_bytes()]
    exchanges = [turn["exchange"] for sample in run.trained_samples() for turn in sample["trajectory"]["turns"]]
    assert len(exchanges) == 2 * 3 * 8 and {exchange["path"] for exchange in exchanges} == {"/v1/chat/completions"}
    other = own | {"custom_envs.letters.program.environment": {"SEARCH_API_KEY": "sk-another"}}
    with pytest.raises(ConfigError, match="are not those of the checkpoint"):
        prepare(of_programs(other, max_steps=3, resume_from_checkpoint=True), lab.inventory)


@pytest.mark.parametrize("written", [0, 8, "all"])
def test_where_no_rollout_is_written_down_no_request_travels(of_programs, written):
    async def played():
        async with World(lambda number, context: "a", context=5000) as world:
            playing = programs(of_programs({"rollout_log_per_step": written}), world.dialogue, 5000, None)
            try:
                return await playing.play(EpisodeTask(uid="u", tag="letters", index=0, env_seed=1), world.ask)
            finally:
                await playing.close()

    turns = [turn for sample in asyncio.run(played()) for turn in sample.trajectory.turns]
    assert len(turns) == 3 and all(bool(turn.exchange) is (written != 0) for turn in turns)


def test_programs_that_fail_cost_their_groups_and_say_why(lab, of_programs, tmp_path, caplog):
    (tmp_path / "agent" / "agent.py").write_text(
        "import os\nassert int(os.environ['ROLL_SEED']) % 2, 'chosen to fail'\n" + lab.agent
    )
    changes = {"custom_envs.letters.on_env_failure": "drop_group", "max_steps": 1}
    config = of_programs(changes)
    run = lab.start(config, LocalBackend())
    assert run.summary["status"] == "finished", run.summary["reason"]
    assert run.summary["environment_failures"].keys() == {"exit"}
    assert list(violations(read_run(run.run_dir))) == []
    assert {row["reason"] for row in run.rows("groups") if row["status"] == "dropped"} == {"environment_failure"}
    assert "chosen to fail" in caplog.text


def test_a_program_whose_calls_are_all_refused_ends_the_run_with_the_cause(lab, of_programs, tmp_path):
    """It names its tools when it runs, and the model's chat template shows none."""
    tools = '[{"type": "function", "function": {"name": "add", "parameters": {}}}]'
    agent = lab.agent.replace('"messages":', f'"tools": {tools}, "messages":')
    assert agent != lab.agent
    (tmp_path / "agent" / "agent.py").write_text(agent)
    run = lab.start(of_programs({"custom_envs.letters.on_env_failure": "drop_group"}, max_steps=1), LocalBackend())
    assert run.summary["status"] == "failed"
    cause = "no agent of 'letters' has had an answer of the policy: the chat template of "
    assert cause in run.summary["reason"] and run.summary["reason"].endswith("does not show tools: add")
    assert "Traceback" not in run.summary["reason"] and not run.trained_samples()


def test_redundant_programs_are_ended_when_enough_have_finished(lab, of_programs, tmp_path):
    """The first of a group that finish count; one that hangs is ended with its group's others."""
    (tmp_path / "agent" / "agent.py").write_text(
        f"{lab.agent}\nimport time\nos.environ['ROLL_INDEX'] in '01' and time.sleep(600)"
    )
    config = of_programs({"train_env_manager.group_size_redundancy": 2}, max_steps=1)
    run = lab.run(config)
    assert run.summary["redundant_episodes_aborted"] == 2 * config.groups_per_step and not run.summary["environment_failures"]
    indices = {sample["index"] for sample in run.trained_samples()}
    assert indices == {2, 3}, "the episodes of a group that did not hang"


def test_a_validation_of_programs_is_the_same_at_every_evaluation(lab, of_programs):
    changes = {"val_env_manager": {"num_env_groups": 2, "group_size": 2}, "val_batch_size": 4, "eval_steps": 1}
    config = of_programs(changes, max_steps=1, **{"actor_train.training_args.learning_rate": 1e-12})
    run = lab.run(config)
    scores = [row["val/score/mean"] for row in run.rows("metrics") if "val/score/mean" in row]
    assert len(scores) == 2 and scores[0] == scores[1]


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"program.command": []}, "program.command"),
        ({"program.command": ["python", "not_there.py"]}, "program.command"),
        ({"program.command": ["no_such_program"]}, "program.command"),
        ({"program.preload": ["json"], "program.command": ["true"]}, "program.preload"),
        ({"program.preload": ["no_such_module"]}, "program.preload"),
        ({"program.readable": ["/usr"]}, "program.readable"),
        ({"program.folder": "/not/there"}, "program.folder"),
        ({"program.python": "/not/there/python"}, "program.python"),
        ({"program.reward": "command"}, "program.scoring"),
        ({"program.scoring": ["python"]}, "program.scoring"),
        ({"program.reward": "guess"}, "program.reward"),
        ({"program.reward": "agentic_worlds.not_there"}, "program.reward"),
        ({"program.reward": "agentic_worlds.Letters"}, "program.reward"),
        ({"program.environment": {"OPENAI_API_KEY": "mine"}}, "program.environment.OPENAI_API_KEY"),
        ({"program.environment": {"A=B": "x"}}, "program.environment"),
        ({"program.agent_timeout_s": 0}, "program.agent_timeout_s"),
        ({"env_type": "frozen_lake"}, "program"),
        ({"agent_template": "{observation}!"}, "agent_template"),
        ({"step_timeout_s": 3}, "step_timeout_s"),
        ({"program": None}, "program"),
    ],
)
def test_each_mistake_is_told_before_any_worker_starts(of_programs, lab, changes, key):
    with pytest.raises(ConfigError) as found:
        prepare(of_programs({f"custom_envs.letters.{name}": value for name, value in changes.items()}), lab.inventory)
    assert f"custom_envs.letters.{key}" in {problem.key for problem in found.value.problems}


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"actor_train.data_args.template": "none"}, "actor_train.data_args.template"),
        ({"gateway_host": "localhost"}, "gateway_host"),
        ({"gateway_host": "0.0.0.0"}, "gateway_host"),
        ({"adv_estimator": "gae", "critic.device_mapping": "1"}, "adv_estimator"),
    ],
)
def test_what_programs_need_of_the_run_is_told_too(of_programs, lab, changes, key):
    with pytest.raises(ConfigError) as found:
        prepare(of_programs(changes), lab.inventory)
    assert key in {problem.key for problem in found.value.problems}
