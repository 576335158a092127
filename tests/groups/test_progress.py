"""A run that gets nowhere ends and says why; one that gets somewhere, however slowly, goes on."""

import pytest

from roll.core.errors import NoProgress
from roll.core.groups.progress import FAILURES_IN_A_ROW, Progress


def test_failures_in_a_row_end_the_run_with_their_share_and_the_last_message():
    progress = Progress(batch_groups=1000, max_dropped_batches=0)
    for i in range(FAILURES_IN_A_ROW - 1):
        progress.dropped("reward_error" if i % 10 else "environment_failure", "TypeError: a tuple")
    with pytest.raises(
        NoProgress, match=r"100 groups in a row failed: 90 % reward_error \(the last one: TypeError: a tuple\), 10 %"
    ):
        progress.dropped("reward_error", "TypeError: a tuple")


def test_a_group_that_finishes_between_failures_shows_that_not_all_fail():
    progress = Progress(batch_groups=1000, max_dropped_batches=0)
    for _ in range(5):
        for _ in range(FAILURES_IN_A_ROW - 1):
            progress.dropped("reward_error")
        progress.finished()


def test_batches_of_drops_between_two_steps_end_the_run_but_not_drops_over_many_steps():
    progress = Progress(batch_groups=4, max_dropped_batches=2)
    for _ in range(10):
        for _ in range(7):
            progress.dropped("filter_std")
        progress.trained()
    for _ in range(7):
        progress.dropped("filter_std", "mean reward 1")
    with pytest.raises(NoProgress, match=r"8 groups were dropped .*max_dropped_batches 2 x 4 groups\): 100 % filter_std \(the"):
        progress.dropped("filter_std", "mean reward 1")


def test_with_0_a_filter_may_drop_as_many_as_it_likes_and_is_warned_of_less_and_less_often():
    progress = Progress(batch_groups=4, max_dropped_batches=0)
    warned = [i for i in range(1, 1000) if progress.dropped("filter_mean_low", "mean reward 0")]
    assert warned == [4, 8, 16, 32, 64, 128, 256, 512]


def test_a_filter_that_drops_as_many_at_every_step_is_told_once():
    progress = Progress(batch_groups=4, max_dropped_batches=0)
    waves = []
    for _ in range(10):
        waves.append(sum(progress.dropped("equal_rewards") is not None for _ in range(9)))
        progress.trained()
    assert waves == [2, *[0] * 9]
    assert [i for i in range(1, 20) if progress.dropped("equal_rewards")] == [16], "a larger wave is told again"


def test_what_comes_with_training_is_no_cause():
    progress = Progress(batch_groups=1, max_dropped_batches=1)
    assert [progress.dropped(reason) for reason in ("redundant", "surplus") for _ in range(200)] == [None] * 400
