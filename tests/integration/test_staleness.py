"""Real runs with a judge that answers after 0 to 30 ms: however far rollouts run ahead, staleness stays within its bound."""

import math
from collections import Counter

import pytest

from roll.cli.verify import read_run, violations
from roll.platform.local_backend import LocalBackend

STEPS = 6


def slow_judge(lab):
    return {"rewards.sums.worker_cls": f"{lab.rewards}.SlowLetters", "rewards.sums.reward_args": {"max_s": 0.03}}


def assert_figures_follow_from_the_samples(run, staleness):
    """samples.jsonl holds every sample of these runs. A sample is as old as its first token, a token as its own version."""
    samples = run.trained_samples()
    lags = [(row["step"] - 1 - version, stop - start) for row in samples for start, stop, version, _ in row["versions"]]
    first = Counter(row["step"] - 1 - row["versions"][0][2] for row in samples)
    assert {int(lag): count for lag, count in staleness["histogram"].items()} == first
    assert staleness["mean"] == pytest.approx(sum(lag * n for lag, n in first.items()) / first.total(), abs=1e-9)
    tokens = sum(length for _, length in lags)
    assert staleness["token_mean"] == pytest.approx(sum(lag * length for lag, length in lags) / tokens, abs=1e-9)


@pytest.mark.parametrize("depth", ["auto", "full"])
@pytest.mark.parametrize("ratio", [0, 0.5, 1, 2, 4])
def test_staleness_is_bounded_by_the_ratio_and_every_group_is_accounted_for(lab, make_config, ratio, depth):
    """`lab.run` checks the accounts, the statuses by id, each group's lag, the histogram and the version spans."""
    config = make_config(
        slow_judge(lab),
        max_steps=STEPS,
        async_generation_ratio=ratio,
        async_pipeline_depth="auto" if depth == "auto" else ratio,
        rollout_log_per_step=16,
    )
    run = lab.run(config)
    staleness = run.summary["staleness"]
    assert staleness["bound"] == math.ceil(ratio)
    assert staleness["max"] <= math.ceil(ratio)
    assert_figures_follow_from_the_samples(run, staleness)
    if ratio == 0:
        assert staleness["histogram"] == {"0": STEPS * 16}, "every sample was made by the policy that it trains"
    elif depth == "full":
        assert staleness["max"] > 0, "rollouts that run ahead are older than the policy"
    # What metrics.jsonl says step by step adds up to what the summary says of the run.
    steps = run.steps()
    assert len(steps) == STEPS
    assert max(row["staleness/max"] for row in steps) == staleness["max"]
    assert sum(row["staleness/mean"] for row in steps) / STEPS == pytest.approx(staleness["mean"], abs=1e-9)


def test_rollouts_run_ahead_on_their_own_while_the_judge_is_slow(lab, make_config):
    """With the adaptive depth the trainer's waiting makes rollouts start earlier: lag appears, and is used, not given away."""
    config = make_config(slow_judge(lab), max_steps=12, async_generation_ratio=2)
    staleness = lab.run(config).summary["staleness"]
    assert 0 < staleness["mean"] <= 2


@pytest.mark.parametrize("mode", ["interrupt", "in_flight"])
def test_a_response_that_lives_through_weight_updates_names_the_version_of_every_token(lab, make_config, mode):
    """One request at a time and long responses: updates arrive in the middle of them, and nothing is thrown away."""
    config = make_config(
        max_steps=8,
        async_generation_ratio=4,
        async_pipeline_depth=4.0,
        max_running_requests=2,
        response_length=24,
        rollout_log_per_step=16,
        weight_update_mode=mode,
    )
    run = lab.run(config)
    spans = [len(sample["versions"]) for sample in run.trained_samples()]
    assert max(spans) >= 2, "some response was made by two versions"
    assert run.summary["weight_updates"]["count"] == 8
    assert run.summary["groups"]["dropped"].keys() <= {"surplus"}
    assert_figures_follow_from_the_samples(run, run.summary["staleness"])


@pytest.mark.parametrize("order", ["fifo", "newest"])
def test_policy_drop_counts_the_groups_that_came_too_late(lab, make_config, order):
    """A few prompts take far longer than a step: they are dropped as stale by name, and the run goes on without them."""
    config = make_config(
        {"rewards.sums.worker_cls": f"{lab.rewards}.StragglingLetters", "rewards.sums.reward_args": {"every": 5, "until": 64}},
        max_steps=8,
        async_generation_ratio=1,
        async_pipeline_depth=1.0,
        staleness_policy="drop",
        groups_order=order,
    )
    run = lab.run(config)
    assert run.summary["groups"]["dropped"].keys() <= {"stale", "surplus"} | ({"overtaken"} if order == "newest" else set())
    assert run.summary["groups"]["dropped"]["stale"] > 0
    assert run.summary["staleness"]["max"] <= 1


@pytest.mark.parametrize("groups", ["in memory", "in a database"])
def test_a_trainer_that_is_faster_than_its_judge_trains_groups_again_within_the_bound(lab, make_config, groups, tmp_path):
    """Each use is a row with its lag, also in a run that goes on from a checkpoint."""
    changes = slow_judge(lab) | {"rewards.sums.reward_args": {"max_s": 0.4}}
    changes |= {"async_generation_ratio": 4, "async_pipeline_depth": 1.0, "max_reuse": 2, "save_steps": 4}
    changes |= {"groups_database": f"sqlite:///{tmp_path}/groups.db"} if groups == "in a database" else {}
    run = lab.run(make_config(changes, max_steps=8, rollout_log_per_step=16))
    uses = Counter(row["group_id"] for row in run.rows("groups") if row["status"] != "dropped")
    reused = run.summary["groups"]["reused"]
    assert max(uses.values()) == 2 and reused == uses.total() - len(uses) > 0
    assert run.steps()[-1]["scheduler/reused_groups"] == reused
    assert_figures_follow_from_the_samples(run, run.summary["staleness"])

    config = make_config(changes, max_steps=8, resume_from_checkpoint=str(run.run_dir / "checkpoints" / "step-4"))
    again = lab.start(config, LocalBackend())
    assert again.summary["status"] == "finished" and list(violations(read_run(again.run_dir))) == []
    assert again.summary["resumed_from_step"] == 4
    before = [row for row in run.rows("groups") if row["step"] <= 4 and row["status"] != "dropped"]
    assert [row for row in again.rows("groups") if row["step"] <= 4 and row["status"] != "dropped"] == before
