"""Simulated episodes: what arithmetic says of turns, environments and the schedule, and what a run says of its own costs."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
from faulty import FaultySimulation, simulate_with_faults, with_faults
from promises import after_the_end

from roll.cli.verify import read_run, violations
from roll.core.configs.agentic import AgenticConfig
from roll.core.configs.problems import ConfigError
from roll.plan.rules.loading import load_config
from roll.prepare.compose import load
from roll.simulate.calibration import calibrated
from roll.simulate.costs import Costs, Spread
from roll.simulate.figures import steady, step_rows
from roll.simulate.run import Simulation, simulated

TOKENS, TURNS, STEP_S = 20, 3, 0.5
EPISODE_S = TURNS * (TOKENS / 10 + STEP_S) + STEP_S
COSTS = Costs(
    tokens_per_s=((1.0, 10.0), (64.0, 640.0)),
    response_tokens=Spread(TOKENS),
    turns=Spread(TURNS),
    environment_s=Spread(STEP_S),
    train_s=2.0,
)
"""An answer takes 2 s however many are under way, an episode 8 s, a step of training 2 s."""
GROUPS, SIZE = 2, 2
BY_TURN = "roll.pipeline.agentic.env_manager.step_env_manager.StepEnvManager"


def config_of(folder, env=(), manager=(), **changes):
    role = {"strategy_args": {"strategy_name": "vllm"}}
    mapping = {
        "exp_name": "run",
        "output_dir": str(folder),
        "pretrain": "no/model",
        "max_steps": 12,
        "save_steps": 1000,
        "eval_steps": 1000,
        "num_gpus_per_node": 2,
        "rollout_batch_size": GROUPS * SIZE,
        "sequence_length": 1024,
        "max_tokens_per_step": 64,
        "adv_estimator": "grpo",
        "async_generation_ratio": 0,
        "actor_train": {
            "device_mapping": [0],
            "training_args": {"per_device_train_batch_size": GROUPS * SIZE},
            "strategy_args": {"strategy_name": "fsdp2_train"},
        },
        "actor_infer": {"device_mapping": [1], **role},
        "custom_envs": {"walk": {"env_type": "frozen_lake", "max_steps": 10, **dict(env)}},
        "train_env_manager": {"num_env_groups": 8, "group_size": SIZE, "max_env_num_per_worker": 64, **dict(manager)},
    }
    return load_config(AgenticConfig, {**mapping, **changes})


def played(folder, costs=COSTS, env=(), manager=(), beside=None, **changes):
    """The steady figures of a simulated run, and its folder."""
    config = (with_faults if beside else simulated)(config_of(folder, env, manager, **changes), folder)
    simulation = FaultySimulation(config, costs)
    summary = simulate_with_faults(simulation, beside)
    assert summary["status"] == "finished", summary["reason"]
    assert not simulation.wrong
    run_dir = Path(config.run_dir)
    assert [*violations(read_run(run_dir))] == [] and after_the_end(summary) == []
    return steady(step_rows(run_dir), config.rollouts_per_step, simulation.group_tokens), run_dir, summary


def test_an_episode_is_its_reset_and_answers_and_steps_by_turns(memory_folder):
    figures, run_dir, _ = played(memory_folder)
    assert figures.step_s == pytest.approx(EPISODE_S + 2, rel=0.01)
    assert figures.samples_per_s == pytest.approx(GROUPS * SIZE / (EPISODE_S + 2), rel=0.01)
    row = step_rows(run_dir)[-1]
    assert row["env/walk/num_actions"] == TURNS
    assert row["env/time/environment_s"] == pytest.approx((TURNS + 1) * STEP_S)
    assert row["env/time/generation_s"] == pytest.approx(TURNS * TOKENS / 10, rel=0.01)


def test_one_step_ahead_two_batches_of_episodes_are_under_way(memory_folder):
    figures, _, _ = played(memory_folder, async_generation_ratio=1)
    assert figures.step_s == pytest.approx((EPISODE_S + 2) / 2, rel=0.01) and figures.staleness_max == 1


def test_a_longer_episode_is_cut_at_max_steps(memory_folder):
    figures, run_dir, _ = played(memory_folder, replace(COSTS, turns=Spread(30)), {"max_steps": 4})
    assert figures.step_s == pytest.approx(4 * 2.5 + 0.5 + 2, rel=0.01)
    assert step_rows(run_dir)[-1]["env/walk/max_steps"] == 1


def test_a_context_that_is_full_ends_an_episode_also_where_a_token_stands_for_many(memory_folder):
    """Answers of 640 tokens, observations of 320 and a prompt of 320: the third answer has 128 of 2368 tokens left."""
    long = replace(COSTS, tokens_per_s=((1.0, 320.0), (64.0, 20480.0)), response_tokens=Spread(640.0), turns=Spread(9))
    long = replace(long, prompt_tokens=320.0, observation_tokens=320.0)
    assert Simulation(config_of(memory_folder), long).grain == 20
    figures, run_dir, _ = played(memory_folder, long, sequence_length=2368, max_tokens_per_step=1000)
    row = step_rows(run_dir)[-1]
    assert row["env/walk/context"] == 1 and row["env/walk/num_actions"] == 3
    assert figures.step_s == pytest.approx(0.5 + 2 * 2.5 + 0.4 + 0.5 + 2, rel=0.03)


def test_steps_of_a_tag_wait_for_a_place(memory_folder):
    """Four episodes in one worker, of which one at a time may step or be reset."""
    figures, run_dir, _ = played(memory_folder, env={"max_env_step_concurrent": 1})
    assert step_rows(run_dir)[-1]["env/time/waiting_s"] > 0
    assert figures.step_s > EPISODE_S + 2 + 3 * STEP_S - 0.01


def test_a_step_that_takes_longer_than_its_limit_has_failed(memory_folder):
    slow = replace(COSTS, environment_s=Spread(1.0, 0.0, (0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 5.0)))
    _, _, summary = played(memory_folder, slow, {"step_timeout_s": 1.0, "on_env_failure": "drop_sample"})
    assert summary["environment_failures"]["timeout"] > 0


def test_the_first_of_redundant_episodes_to_finish_count(memory_folder):
    tail = replace(COSTS, turns=Spread(3, 0.0, (2, 2, 2, 9)))
    plain, _, _ = played(memory_folder / "plain", tail)
    redundant, _, summary = played(memory_folder / "redundant", tail, manager={"group_size_redundancy": 2})
    assert redundant.step_s < 0.8 * plain.step_s and summary["redundant_episodes_aborted"] > 0


def test_each_turn_may_be_a_sample_of_its_own_and_environments_are_validated(memory_folder):
    val = {"num_env_groups": 4, "group_size": 1}
    figures, run_dir, _ = played(memory_folder, env={"env_manager_cls": BY_TURN}, val_env_manager=val, eval_steps=4)
    assert figures.step_s >= EPISODE_S + 2 - 0.1
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    before_the_first_step_and_every_four = [row["val/env/walk/episodes"] for row in rows if "val/errors" in row]
    assert before_the_first_step_and_every_four == [4] * 4


def test_what_a_run_left_behind_says_the_costs_of_its_episodes(memory_folder):
    spread = replace(COSTS, turns=Spread(4.0, 0.0, (2, 4, 6)), environment_s=Spread(0.5, 0.5), observation_tokens=6.0)
    short, run_dir, _ = played(memory_folder / "short", spread, async_generation_ratio=1, max_steps=24)
    found = calibrated(run_dir, load(run_dir, "config", [])[0])
    assert found.turns.mean == pytest.approx(4, rel=0.1) and set(found.turns.values) == {2, 4, 6}
    assert found.environment_s.mean == pytest.approx(0.5, rel=0.1)
    assert found.response_tokens.mean == pytest.approx(TOKENS) and found.observation_tokens == pytest.approx(6.0, rel=0.1)
    ((together, rate),) = found.tokens_per_s
    assert rate / together == pytest.approx(10, rel=0.05), "not the seconds in environments, in which no answer is generated"
    # A trace shows one concurrency; where more requests than that run at once, this engine is not slower.
    better = replace(found, tokens_per_s=spread.tokens_per_s)
    again, _, _ = played(memory_folder / "again", better, async_generation_ratio=1, max_steps=48)
    assert again.step_s == pytest.approx(short.step_s, rel=0.1)


def test_a_trace_in_which_many_and_few_requests_ran_says_the_rates_of_both(memory_folder):
    """An engine whose token takes 10 ms, and 20 ms more for each request that runs."""
    rates = tuple((float(count), count / (0.01 + 0.02 * count)) for count in range(1, 65))
    turns = Spread(5.0, 0.0, (1, 1, 2, 12))
    true = replace(COSTS, tokens_per_s=rates, turns=turns, environment_s=Spread(0.0))
    manager = {"num_env_groups": 16, "group_size": 4}
    sizes = {"rollout_batch_size": 64, "max_steps": 16, "sequence_length": 4096}
    short, run_dir, _ = played(memory_folder / "short", true, manager=manager, **sizes)
    found = calibrated(run_dir, load(run_dir, "config", [])[0])
    assert found.decode_rate(32) == pytest.approx(true.decode_rate(32), rel=0.25)
    # The same as with 32 would be 1.5; what an episode had is a mean over its time.
    assert 3 < found.decode_rate(4) < true.decode_rate(4)
    again, _, _ = played(memory_folder / "again", found, manager=manager, **{**sizes, "max_steps": 32})
    assert again.step_s == pytest.approx(short.step_s, rel=0.15)


@pytest.mark.parametrize("policy", ["retry", "drop_group"])
def test_coordinators_and_engines_that_die_are_replaced_and_no_group_is_lost(memory_folder, policy):
    async def deaths(run, backend):
        for name in ("environments-0", "actor_infer-0", "environments-0"):
            await asyncio.sleep(7.0)
            backend.workers[name].kill()

    manager = {"max_env_num_per_worker": 4}
    _, _, summary = played(
        memory_folder, replace(COSTS, start_s=1.0), {"on_env_failure": policy}, manager, deaths,
        async_generation_ratio=1, max_dropped_batches=0,
    )  # fmt: skip
    assert summary["environment_worker_deaths"] == 2 and summary["steps"] == 12


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"env_manager_cls": "my_agents.Manager"}, "custom_envs.walk.env_manager_cls = 'my_agents.Manager'"),
        ({"env_type": "program", "program": {"command": ["agent"], "reward": "posted"}}, "custom_envs.walk.env_type = 'program'"),
    ],
)
def test_what_takes_real_time_is_refused_by_name(memory_folder, env, said):
    config = config_of(memory_folder, env)
    with pytest.raises(ConfigError) as refused:
        simulated(config, memory_folder)
    assert said in str(refused.value)
