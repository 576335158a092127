import pytest

from roll.core.groups.schedule import StepSchedule


@pytest.mark.parametrize("steps, published", [(1, [1, 2, 3, 4, 5, 6, 7]), (2, [2, 4, 6, 7]), (3, [3, 6, 7]), (9, [7])])
def test_multiples_and_the_last_step_are_published(steps, published):
    push = StepSchedule(push_every=steps, last_step=7)
    assert [step for step in range(1, 8) if push.publishes(step)] == published


@pytest.mark.parametrize(
    "steps, every, due",
    [
        (1, 5, [0, 5, 10, 15, 20, 25]),
        (4, 10, [0, 12, 20]),  # 10 is not published, 12 is the first after it
        (2, 5, [0, 6, 10, 16, 20]),
        (4, 3, [0, 4, 8, 12, 16, 20, 24]),
    ],
)
def test_what_is_due_every_so_many_steps_falls_on_the_next_published_version(steps, every, due):
    """Versions 0 to 25 of a run that ends later."""
    push = StepSchedule(push_every=steps, validate_every=every, last_step=1000)
    published = [version for version in range(26) if version == 0 or push.publishes(version)]
    assert [version for version in published if push.validates(version)] == due


def test_a_run_that_goes_on_between_two_publications_owes_what_was_due_since_the_last():
    push = StepSchedule(push_every=4, validate_every=10, last_step=1000)
    assert [version for version in range(8, 13) if push.validates(version)] == [10, 11, 12]


def test_what_was_evaluated_before_a_resume_is_not_evaluated_again_and_the_last_version_always_is():
    schedule = StepSchedule(validate_every=10, last_step=25, validated=frozenset({10}))
    assert [version for version in range(26) if schedule.validates(version)] == [0, 20, 25]
    assert not any(StepSchedule(last_step=25).validates(version) for version in range(26))


def test_engines_that_take_weights_when_they_like_are_waited_for_only_where_it_matters():
    schedule = StepSchedule(pull_every=4, validate_every=10, last_step=25)
    assert [version for version in range(1, 26) if schedule.awaits(version)] == [10, 20, 25]
    assert all(StepSchedule(last_step=25).awaits(version) for version in range(1, 26))
