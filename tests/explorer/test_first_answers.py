"""Agents that never get an answer end the run with their cause, those of some tasks cost their groups."""

from collections import Counter

import pytest

from roll.core.errors import EpisodeFailed, NoProgress, Unanswered
from roll.core.explorer.first_answers import ENOUGH, FirstAnswers
from roll.core.explorer.group_play import GroupOutcome


def failed(*failures):
    return GroupOutcome(
        failures=Counter(each.kind for each in failures),
        causes={each.cause if isinstance(each, Unanswered) else "" for each in failures},
    )


REFUSED = failed(*[Unanswered("refused", "the chat template of m does not show tools: add")] * 2)
CRASHED = failed(Unanswered("exit", "exit code 1; its output ends with:\nTraceback: line 7\nModuleNotFoundError: no numpy"))


def test_the_first_group_that_the_run_itself_refuses_is_enough():
    with pytest.raises(
        NoProgress, match=r"no agent of 'shop' has had an answer .*: the chat template of m does not show tools: add$"
    ):
        FirstAnswers().ended("shop", False, REFUSED)


def test_programs_that_crash_alike_before_they_ask_end_it_with_the_last_line_of_what_they_print():
    first = FirstAnswers()
    for _ in range(ENOUGH - 1):
        first.ended("shop", False, CRASHED)
    with pytest.raises(NoProgress, match=r"of the policy: ModuleNotFoundError: no numpy$"):
        first.ended("shop", False, CRASHED)


@pytest.mark.parametrize(
    "outcome",
    [
        failed(Unanswered("exit", "a"), Unanswered("exit", "b")),
        failed(Unanswered("refused", "a"), EpisodeFailed("timeout", "a")),
        failed(EpisodeFailed("scoring", "a")),
        GroupOutcome(),
    ],
    ids=["two causes", "one was answered", "after an answer", "none failed"],
)
def test_groups_of_other_ends_are_dropped(outcome):
    first = FirstAnswers()
    for _ in range(2 * ENOUGH):
        first.ended("shop", False, outcome)


def test_a_tag_that_has_had_an_answer_goes_on_and_others_do_not():
    first = FirstAnswers()
    first.ended("shop", True, GroupOutcome())
    for _ in range(2 * ENOUGH):
        first.ended("shop", False, CRASHED)
    first.ended("shop", False, REFUSED)
    with pytest.raises(NoProgress, match="'other'"):
        first.ended("other", False, REFUSED)
