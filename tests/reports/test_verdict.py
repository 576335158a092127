"""How a run is doing, in one line: what kept it from learning, and by how much it has learned."""

import pytest

from roll.core.record.estimates import Validated
from roll.reports.verdict import Curves, verdict, waiting

HEALTHY = {"tokens/response_length/clip": 0.0, "rewards/groups_without_signal": 0.2}
HEALTHY |= {"time/step_s": 3.0, "time/wait_for_batch_s": 1.0}
RISING = [0.1, 0.12, 0.15, 0.2, 0.22, 0.25, 0.3, 0.31, 0.35, 0.4]
FLAT = [0.2, 0.22, 0.19, 0.21, 0.2, 0.18, 0.21, 0.2]


def course(rewards=(), validations=(), **metrics):
    """`metrics`: as the last part of their names has them."""
    curves = Curves()
    names = {name.rpartition("/")[2]: name for name in HEALTHY}
    names["least_valid"] = "env/least_valid"
    row = HEALTHY | {names[name]: value for name, value in metrics.items()}
    for step, reward in enumerate(rewards, 1):
        curves.add(step, row | {"critic/score/mean": reward})
    for validation in validations:
        curves.add(validation.step, validation.metrics())
    return curves.curve


def validated(*accuracies, rollouts=200):
    return [Validated(10 * i, accuracy, accuracy, 0, rollouts) for i, accuracy in enumerate(accuracies)]


@pytest.mark.parametrize(
    ("seen", "line"),
    [
        (course(), "too early: no step yet"),
        (course([0.1]), "too early: 1 step so far"),
        (course(RISING), "learning: reward 0.110 → 0.375 (+0.265) in 9 steps"),
        (course(FLAT), "no gain: reward 0.210 → 0.205 (-0.005) in 7 steps"),
        (course(RISING[::-1]), "worse: reward 0.375 → 0.110 (-0.265) in 9 steps"),
        (course(RISING, validated(0.1, 0.3, 0.5)), "learning: validation 0.100 → 0.500 (+0.400) in 20 steps"),
        (course(FLAT, validated(0.20, 0.22)), "no gain: validation 0.200 → 0.220 (+0.020) in 10 steps"),
        (course([0.0] * 5, groups_without_signal=1.0), "no signal: in 100% of the groups all rewards are equal (mean 0)"),
        (course(FLAT, clip=0.9), "cut off: 90% of the responses end at the length limit"),
        (course(FLAT, wait_for_batch_s=60.0), "idle: training waits for groups 95% of the time"),
    ],
)
def test_a_verdict_names_what_matters_most(seen, line):
    assert verdict(seen).line.startswith(line)


@pytest.mark.parametrize(("losses", "kind"), [((3.781, 3.044), "learning"), ((3.0, 3.1), "worse"), ((3.0, 2.999), "no gain")])
def test_rows_are_evaluated_as_they_stand_so_that_their_number_brings_no_noise(losses, kind):
    curves = Curves()
    for step, loss in enumerate(losses):
        curves.add(step, {"time/step_s": 1.0, "val/loss": loss, "val/score/mean": -loss, "val/rollouts": 6})
    assert verdict(curves.curve).kind == kind


MANY = {"trained": 960, "dropped": {"equal_rewards": 2179, "redundant": 500}}


@pytest.mark.parametrize(
    ("seen", "line"),
    [
        (course(FLAT), "no signal: 69% of the groups (2,179 of 3,139) are dropped (equal_rewards 2,179); reward"),
        (course(FLAT, groups_without_signal=1.0), "no signal: in 100% of the groups all rewards are equal"),
    ],
)
def test_groups_that_a_rule_drops_are_told_as_one_share_of_those_that_were_judged(seen, line):
    assert verdict(seen, groups=MANY).line.startswith(line)


def test_what_learns_is_told_what_it_loses():
    text = verdict(course(RISING, wait_for_batch_s=60.0), groups=MANY).text
    assert text.endswith(
        "69% of the groups (2,179 of 3,139) are dropped (equal_rewards 2,179); training waits for groups 95% of the time"
    )
    assert "dropped" not in verdict(course(RISING), groups={"trained": 960, "dropped": {"equal_rewards": 900}}).text
    assert "dropped" not in verdict(course(RISING), groups={"trained": 1, "dropped": {"equal_rewards": 2}}).text, "too few to say"


def test_an_agent_whose_actions_are_not_valid_is_told_before_its_equal_rewards():
    seen = course([0.0] * 5, groups_without_signal=1.0, least_valid=0.0)
    assert verdict(seen).line.startswith("invalid: 0% of the actions are valid")
    assert verdict(course(RISING, least_valid=0.5)).kind == "learning"


def test_the_wait_for_groups_is_one_figure_over_all_steps_but_the_first():
    curves = Curves()
    for step, waited in enumerate([900.0, *[9.0] * 40, *[1.0] * 5], 1):
        curves.add(step, HEALTHY | {"critic/score/mean": 0.2, "time/step_s": 1.0, "time/wait_for_batch_s": waited})
    share = waiting(curves.curve)
    assert share == pytest.approx((9 * 40 + 5) / (9 * 40 + 5 + 45))
    assert verdict(curves.curve).line.startswith(f"idle: training waits for groups {share:.0%} of the time")
    assert waiting(course([0.1])) is None


def judged(engines_idle, **rewards_idle):
    """A run whose training waits; the first step, for which everything is slow, says another thing."""
    curves = Curves()
    for step in range(1, 9):
        idle = {"idle_share/actor_infer": engines_idle, **{f"idle_share/rewards.{name}": x for name, x in rewards_idle.items()}}
        row = (
            HEALTHY | {"critic/score/mean": 0.2, "time/wait_for_batch_s": 60.0} | (idle if step > 1 else dict.fromkeys(idle, 0.5))
        )
        curves.add(step, row)
    return verdict(curves.curve, names=curves.names).line


@pytest.mark.parametrize(
    ("engines_idle", "rewards_idle", "told"),
    [
        (0.9, {"math": 0.05}, ", and groups for rewards.math (at work 95% of the time, actor_infer 10%)"),
        (0.9, {"code": 0.3, "math": 0.05, "sums": 0.95}, ", and groups for rewards.math and rewards.code (at work 95% and 70% "),
        (0.1, {"math": 0.05}, None),  # the engines have as much to do
        (0.0, {"math": 0.9}, None),
    ],
)
def test_a_reward_that_groups_wait_for_is_named(engines_idle, rewards_idle, told):
    line = judged(engines_idle, **rewards_idle)
    assert line.startswith("idle: training waits for groups 95% of the time" + (told or ""))
    assert ("groups for" in line) == (told is not None)


def test_what_is_slow_or_cut_off_is_said_beside_what_was_learned():
    found = verdict(course(RISING, clip=0.6, wait_for_batch_s=60.0))
    assert found.kind == "learning" and found.level == "good"
    assert found.text.endswith("60% of the responses end at the length limit; training waits for groups 95% of the time")


def test_a_reward_that_rises_without_the_validation_is_suspect():
    assert "though reward 0.110 → 0.375" in verdict(course(RISING, validated(0.2, 0.2))).text


def test_a_score_that_rises_is_learning_though_no_response_is_right_yet():
    rows = [Validated(0, 0.0, 0.1, 0, 500), Validated(10, 0.0, 0.6, 0, 500)]
    assert verdict(course(FLAT, rows)).line == "learning: score 0.100 → 0.600 (+0.500) in 10 steps"


def test_a_validation_that_was_not_judged_is_no_accuracy():
    found = verdict(course(RISING, [*validated(0.1, 0.3), Validated(20, None, 1.0, 73, 128)]))
    assert found.line == "not judged: 73 of 128 validation rollouts of step 20 have no reward" and found.level == "error"


def test_groups_that_are_lost_are_said_before_the_first_step():
    lost = {"trained": 0, "dropped": {"reward_error": 40, "equal": 2}}
    assert verdict(course(), groups=lost).line == "not judged: 40 groups were dropped (reward_error 40), 0 trained"
    alike = {"trained": 0, "dropped": {"equal": 30}}
    assert verdict(course(), groups=alike).line == "no signal: 30 groups were dropped (equal 30), none trained"
    some = {"trained": 100, "dropped": {"reward_error": 9, "equal": 400}}
    assert verdict(course(RISING), groups=some).kind == "learning"


@pytest.mark.parametrize("state", ["failed", "crashed", "stopped", "interrupted"])
def test_a_run_that_ended_early_says_how_far_it_came(state):
    found = verdict(course(RISING), state)
    assert found.line.startswith(f"stopped: {state}; until then learning: reward") and found.level == "error"
    assert verdict(course(), state).line == f"stopped: {state}, no step yet"


def test_a_silent_run_is_idle():
    assert verdict(course(RISING), "silent").line.startswith("idle: nothing has been written for a while; until then learning")


def test_what_is_no_number_is_left_out():
    seen = course([*RISING, float("nan"), float("inf"), *[0.5] * 20_000])
    assert verdict(seen).text.startswith("reward 0.240 → 0.500")


def test_a_validation_is_told_with_its_score_and_what_is_missing():
    assert Validated(3, 0.5, 0.5).told() == "0.500"
    assert Validated(3, 0.0, 0.72, 4, 128).told() == "0.000, score 0.720, 4 of 128 not judged"
    assert Validated(3, None, 1.0, 73, 128).told() == "–, score 1.000, 73 of 128 not judged"
    row = {"step": 3, **Validated(3, None, 1.0, 73, 128).metrics()}
    assert Validated.of_row(row) == Validated(3, None, 1.0, 73, 128) and Validated.of_row({"step": 4, "a": 1.0}) is None
