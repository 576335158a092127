"""A prediction of a run whose trainer and explorers are processes of their own: what arithmetic says of it."""

from dataclasses import replace
from pathlib import Path

import pytest
from fault_schedules import config_of
from test_prediction import COSTS, PLAIN, TOKENS

from roll.cli.verify import read_run, violations
from roll.core.configs.problems import ConfigError
from roll.simulate.apart import halves, simulate_apart
from roll.simulate.costs import Spread
from roll.simulate.figures import steady, step_rows
from roll.simulate.run import Simulation, simulated

BATCH, SAMPLES = 4, 2
NEWS_S = 0.1
"""What hearing of each other adds to a step, at most: of groups that are complete, and of a version."""


def predicted(folder, explorers, costs=COSTS, **changes):
    config = config_of(replace(PLAIN, engines=1, **changes), folder)
    (reward,) = config.rewards.values()
    unfiltered = replace(reward, max_concurrency=64, query_filter_config=type(reward.query_filter_config)())
    config = replace(config, rewards={"sums": unfiltered}, max_running_requests=64, validation=None, val_batch_size=None)
    simulation = Simulation(simulated(config, folder), costs)
    summary = simulate_apart(simulation, explorers)
    assert summary["status"] == "finished", summary["reason"]
    run_dir = Path(simulation.config.run_dir)
    assert [*violations(read_run(run_dir))] == []
    return steady(step_rows(run_dir), BATCH * SAMPLES, TOKENS * SAMPLES), summary


def test_a_synchronous_step_is_rollout_reward_and_training_and_the_time_to_hear_of_it(memory_folder):
    figures, summary = predicted(memory_folder, 1, ratio=0.0)
    assert 5 < figures.step_s < 5 + NEWS_S and figures.staleness == 0
    assert figures.idle["actor_train"] == pytest.approx(3 / 5, abs=0.02)
    assert summary["idle_share"]["actor_infer"] == pytest.approx(3 / 5, abs=0.05), "of its whole time in the run"


def test_explorers_add_up_where_engines_are_what_takes_long(memory_folder):
    """An engine with all its requests generates 10 tokens/s, and a step needs 160: 16 s of one, 8 s of each of two."""
    slow = replace(COSTS, tokens_per_s=((1.0, 10.0),), reward_s=Spread(0.0))
    one, _ = predicted(memory_folder / "one", 1, slow, ratio=1.0)
    two, _ = predicted(memory_folder / "two", 2, slow, ratio=1.0)
    assert one.step_s == pytest.approx(16, rel=0.02) and two.step_s == pytest.approx(8, rel=0.02)


def test_the_same_halves_are_the_same_run_event_by_event(memory_folder):
    runs = [memory_folder / name for name in ("once", "again")]
    for folder in runs:
        predicted(folder, 2, replace(COSTS, reward_s=Spread(1.0, 1.0)), ratio=1.0)
    once, again = ([(folder / "run" / f"{name}.jsonl").read_text() for name in ("groups", "metrics")] for folder in runs)
    assert once == again


def test_what_one_process_alone_can_do_is_refused_by_name(memory_folder):
    whole = Simulation(simulated(config_of(replace(PLAIN, synchronous_after=1), memory_folder), memory_folder), COSTS)
    with pytest.raises(ConfigError, match="synchronous_after_failures"):
        halves(whole, 1)
    with pytest.raises(ConfigError, match="--explorers = 0"):
        halves(whole, 0)
