"""A simulation of a run whose times are known says what arithmetic says, and a run says its own costs."""

import json
import random
import re
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pytest
from fault_schedules import config_of
from test_faults import QUIET

from roll.core.configs.arguments import DataArguments, ModelArguments, StrategyArguments
from roll.core.configs.problems import ConfigError
from roll.core.configs.rows import WarmStartConfig
from roll.core.configs.worker import TeacherConfig
from roll.core.data.sample import PER_TOKEN, Prompt, Sample, VersionSpan
from roll.simulate.calibration import calibrated, message_s
from roll.simulate.costs import Costs, Spread, with_figures
from roll.simulate.figures import TOKEN_BYTES, steady, step_rows
from roll.simulate.run import Simulation, simulate, simulated
from roll.view.run import RunReader

TOKENS, BATCH, SAMPLES = 20, 4, 2
COSTS = Costs(tokens_per_s=((1.0, 10.0), (8.0, 80.0)), response_tokens=Spread(TOKENS), reward_s=Spread(1.0), train_s=2.0)
"""A rollout takes 2 s however many run, its reward 1 s, a step 2 s."""
PLAIN = replace(QUIET, engines=2, trainers=1, steps=12, batch=BATCH, eval_steps=1000, save_steps=1000, latency_s=0.0)


def predicted(folder, costs=COSTS, side_by_side=64, more=None, **changes):
    """`more`: keys of the configuration that are changed."""
    config = replace(config_of(replace(PLAIN, **changes), folder), **more or {})
    (reward,) = config.rewards.values()
    unfiltered = replace(reward, max_concurrency=side_by_side, query_filter_config=type(reward.query_filter_config)())
    config = replace(config, rewards={"sums": unfiltered}, max_running_requests=64, validation=None, val_batch_size=None)
    simulation = Simulation(simulated(config, folder), costs)
    summary = simulate(simulation)
    assert summary["status"] == "finished", summary["reason"]
    run_dir = Path(simulation.config.run_dir)
    return steady(step_rows(run_dir), config.rollouts_per_step, TOKENS * SAMPLES), run_dir, simulation


def test_a_synchronous_step_is_rollout_reward_and_training_one_after_the_other(memory_folder):
    figures, _, _ = predicted(memory_folder, ratio=0.0)
    assert figures.step_s == pytest.approx(2 + 1 + 2, rel=0.01)
    assert figures.idle["actor_train"] == pytest.approx(3 / 5, abs=0.01)
    assert figures.idle["actor_infer"] == pytest.approx(3 / 5, abs=0.01)
    assert figures.staleness == 0 and figures.samples_per_s == pytest.approx(BATCH * SAMPLES / 5, rel=0.01)
    assert figures.waiting == pytest.approx(3 / 5, abs=0.01)


def test_one_step_ahead_two_batches_are_under_way_or_training_is_what_takes_long(memory_folder):
    """A step takes as long as training (T), or as rollout, reward (L) and training divided by the 1 + α batches under way."""
    rollouts, _, _ = predicted(memory_folder / "a", ratio=1.0)
    assert rollouts.step_s == pytest.approx((3 + 2) / 2, rel=0.01)
    assert rollouts.idle["actor_train"] == pytest.approx(1 - 2 / 2.5, abs=0.01)
    training, _, _ = predicted(memory_folder / "b", replace(COSTS, train_s=6.0), ratio=1.0)
    assert training.step_s == pytest.approx(6.0, rel=0.01) and training.idle["actor_train"] == pytest.approx(0, abs=0.01)
    assert training.staleness == 1 and training.buffered > 0 and training.buffer_mb > 0


@pytest.mark.parametrize("ratio", [0.0, 1.0])
@pytest.mark.parametrize(
    ("changed", "waits_for"), [({"reward_s": Spread(40.0)}, "rewards.sums"), ({"tokens_per_s": ((1.0, 0.5), (8.0, 4.0))}, None)]
)
def test_the_verdict_names_a_reward_that_groups_wait_for_and_no_other(memory_folder, ratio, changed, waits_for):
    _, run_dir, _ = predicted(memory_folder, replace(COSTS, **changed), ratio=ratio)
    told = RunReader(run_dir).status()["verdict"]["text"]
    assert re.search(r"training waits for groups 9\d% of the time", told)
    named = re.search(r", and groups for ([\w.]+) \(at work (\d+)% of the time, actor_infer (\d+)%\)", told)
    assert (named and named[1]) == waits_for
    if named:
        assert int(named[2]) > 90 and int(named[3]) < 10


@pytest.mark.parametrize("strategy", ["fsdp2_infer", "vllm"])
def test_a_teacher_on_devices_of_its_own_takes_its_time_before_a_step_or_beside_the_one_before(memory_folder, strategy):
    model, served = ModelArguments(model_name_or_path="no/teacher"), StrategyArguments(strategy_name=strategy)
    teacher = TeacherConfig(model_args=model, strategy_args=served, device_mapping=[3])
    more, costs = {"teachers": {"big": teacher}, "num_gpus_per_node": 4}, replace(COSTS, score_s=1.5)
    alone, _, _ = predicted(memory_folder / "a", costs, more=more, ratio=0.0)
    assert alone.step_s == pytest.approx(2 + 1 + 1.5 + 2, rel=0.01)
    assert alone.idle["teachers.big"] == pytest.approx(1 - 1.5 / 6.5, abs=0.01)
    ahead, _, _ = predicted(memory_folder / "b", replace(costs, train_s=6.0), more=more, ratio=1.0)
    assert ahead.step_s == pytest.approx(6.0, rel=0.01)
    with pytest.raises(ConfigError, match="how long a server outside takes is not known"):
        predicted(memory_folder, more={"teachers": {"big": TeacherConfig(endpoint="http://10.0.0.7:8000/v1")}})


def test_steps_of_a_warm_start_train_their_rows_and_generate_nothing(memory_folder):
    warm = WarmStartConfig(steps=4, data_args=DataArguments(file_name="no/rows.jsonl"))
    _, run_dir, _ = predicted(memory_folder, more={"warm_start": warm}, ratio=1.0)
    metrics = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    steps = [row["time/step_s"] for row in metrics if "time/step_s" in row]
    assert steps[:4] == pytest.approx([2.0] * 4, rel=0.01)
    groups = [json.loads(line) for line in (run_dir / "groups.jsonl").read_text().splitlines()]
    assert sum(row["prompt_uid"].startswith("warm_start/") for row in groups) == 4 * BATCH


def test_twice_the_trainers_train_the_tokens_in_half_the_time(memory_folder):
    by_tokens = replace(COSTS, train_s=0.0, train_tokens_per_s=BATCH * SAMPLES * TOKENS / 4.0)
    one, _, _ = predicted(memory_folder / "one", by_tokens, ratio=0.0)
    two, _, _ = predicted(memory_folder / "two", by_tokens, ratio=0.0, trainers=2)
    assert (one.step_s, two.step_s) == (pytest.approx(7.0, rel=0.01), pytest.approx(5.0, rel=0.01))


def test_what_a_run_left_behind_says_its_costs_and_they_say_its_steps(memory_folder):
    """Calibrated by a short run, a simulation of it is that run again, within the spread of what is drawn."""
    costs = replace(
        COSTS, reward_s=Spread(1.0, 1.0), train_s=0.0, train_tokens_per_s=80.0, flip_s=0.2, weights_mb=10.0, weights_mb_per_s=50.0
    )
    short, run_dir, simulation = predicted(memory_folder / "short", costs, ratio=1.0, steps=16)
    found = calibrated(run_dir, simulation.config)
    assert found.response_tokens.mean == pytest.approx(TOKENS, rel=0.05)
    assert found.train_tokens_per_s == pytest.approx(80.0, rel=0.05)
    assert found.flip_s == pytest.approx(0.2, rel=0.05) and found.pull_s == pytest.approx(0.2, rel=0.05)
    assert found.reward_s.mean == pytest.approx(1.0, rel=0.2) and len(found.reward_s.values) == 16 * BATCH * SAMPLES
    assert found.measured["train_tokens_per_s"].startswith("metrics.jsonl") and found.measured["turn_s"] == "default"
    again, _, _ = predicted(memory_folder / "again", found, ratio=1.0, steps=64)
    assert again.step_s == pytest.approx(short.step_s, rel=0.15)
    assert again.idle["actor_train"] == pytest.approx(short.idle["actor_train"], abs=0.08)


def test_how_many_are_judged_side_by_side_counts_although_the_trace_is_of_another_number(memory_folder):
    """Two workers with a place each judge the 8 samples of a step, 1 s each, in 4 s; with room for all they took 1 s."""
    _, run_dir, short = predicted(memory_folder / "short", ratio=0.0)
    narrow, _, _ = predicted(memory_folder / "narrow", calibrated(run_dir, short.config), side_by_side=1, ratio=0.0)
    assert narrow.step_s == pytest.approx(2 + 4 + 2, rel=0.02)


def test_groups_that_all_have_equal_rewards_are_as_many_as_in_the_trace(memory_folder):
    """Half of the tasks are always right: nobody would find that in the mean, of which few groups have equal rewards. Of groups
    of two whose tasks are right by half, half are equal by chance: they are counted in."""
    tasks = replace(COSTS, pass_rate=Spread(0.75, 0.0, (1.0, 0.5)))
    _, run_dir, short = predicted(memory_folder / "short", tasks, steps=32)
    found = calibrated(run_dir, short.config).pass_rate
    assert found.mean == pytest.approx(0.75, abs=0.08)
    equal = sum(value**SAMPLES + (1 - value) ** SAMPLES for value in found.values) / len(found.values)
    assert equal == pytest.approx(0.5 + 0.5 * 2 * 0.5**SAMPLES, abs=0.12)


def test_calls_take_their_time_and_a_trace_says_it(memory_folder):
    """Of a step at ratio 0: to generate, and to judge. Training and weights are measured with their calls."""
    fast, _, _ = predicted(memory_folder / "fast", ratio=0.0)
    slow, run_dir, simulation = predicted(memory_folder / "slow", replace(COSTS, call_s=0.1), ratio=0.0)
    assert slow.step_s == pytest.approx(fast.step_s + 0.2, abs=0.05)
    found = calibrated(run_dir, simulation.config)
    assert found.call_s == pytest.approx(0.1, abs=0.02)
    # A request that is on its way for longer than it is worked on does not make more of them run.
    assert found.tokens_per_s[-1][0] <= BATCH * SAMPLES


def test_a_role_that_a_trace_does_not_have_scores_in_a_third_of_the_time_of_training(memory_folder):
    """A token takes a forward pass two operations for each weight, training six: 80 tokens a second are 240."""
    _, run_dir, simulation = predicted(memory_folder, replace(COSTS, train_s=0.0, train_tokens_per_s=80.0), ratio=0.0)
    found = calibrated(run_dir, simulation.config)
    assert found.score_tokens_per_s == pytest.approx(240.0, rel=0.05) and "third" in found.measured["score_tokens_per_s"]


def test_dropped_groups_that_are_shorter_make_no_step_of_training_shorter(memory_folder):
    """Of a policy that falls into the next hole all episodes are short, have equal rewards and are dropped. Lengths are drawn of
    all groups: a step of so many samples takes the 2 s that it took."""
    _, run_dir, simulation = predicted(memory_folder, replace(COSTS, train_s=0.0, train_tokens_per_s=80.0), ratio=0.0)
    groups = run_dir / "groups.jsonl"
    rows = [json.loads(line) for line in groups.read_text().splitlines()]
    dropped = [{**row, "status": "dropped", "tokens": row["tokens"] // 2} for row in rows if row.get("tokens")]
    groups.write_text("".join(json.dumps(row) + "\n" for row in [*rows, *dropped]))
    found = calibrated(run_dir, simulation.config)
    assert found.response_tokens.mean == pytest.approx(TOKENS * 3 / 4, rel=0.05)
    assert BATCH * SAMPLES * found.response_tokens.mean / found.train_tokens_per_s == pytest.approx(2.0, rel=0.05)


def test_roles_that_take_turns_on_a_device_sleep_and_wake_and_a_trace_says_how_long(memory_folder):
    """The engine sleeps and the trainer wakes, then the other way round: four times 0.4 s a step, and a call of 0.1 s each."""
    costs = replace(COSTS, call_s=0.1, turn_s=0.4)
    apart, _, _ = predicted(memory_folder / "apart", costs, ratio=0.0, engines=1)
    turns, run_dir, simulation = predicted(memory_folder / "turns", costs, ratio=0.0, engines=1, shared=True)
    assert turns.step_s == pytest.approx(apart.step_s + 4 * 0.5, rel=0.02)
    assert calibrated(run_dir, simulation.config).turn_s == pytest.approx(0.4, abs=0.02)


def test_the_driver_handles_messages_one_after_the_other(memory_folder):
    """Eight requests go out, eight answers come in, and four groups are judged: 24 messages, some beside the work."""
    plain, _, _ = predicted(memory_folder / "plain", ratio=0.0)
    busy, _, _ = predicted(memory_folder / "busy", replace(COSTS, message_s=0.01), ratio=0.0)
    assert plain.step_s + 0.1 < busy.step_s < plain.step_s + 0.4


def test_groups_that_begin_in_a_row_say_the_drivers_seconds_for_a_request_and_others_do_not():
    row = [(at + 0.016 * i, at + 1.0) for at in (0.0, 3.0, 6.0) for i in range(16)]
    assert message_s(row, size=8) == pytest.approx(0.002)
    draw = random.Random(0)
    at_random = [(begin, begin + 1.0) for begin in accumulate(draw.expovariate(1.0) for _ in range(500))]
    assert message_s(at_random, size=8) == 0


def test_a_pass_rate_is_a_share():
    with pytest.raises(ConfigError, match=r"costs\.pass_rate"):
        with_figures(Costs(), {"pass_rate": 1.5})
    assert with_figures(Costs(), {"pass_rate": [0.0, 1.0]}).pass_rate.values == (0.0, 1.0)


def test_buffered_tokens_take_what_a_sample_holds_of_them():
    sample = Sample(Prompt("p", [1], "", "t", "d", ""), 0, [7] * 100, [-1.0] * 100, [VersionSpan(0, 100, 0)], "stop", "")
    held = sum(len(getattr(sample, name).tobytes()) for name in PER_TOKEN if getattr(sample, name) is not None)
    assert held == 100 * TOKEN_BYTES
