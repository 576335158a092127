"""When a group is done, and what failures mean for it. Episodes are events here: the test decides who finishes when."""

import asyncio

import pytest

from roll.core.errors import EpisodeFailed
from roll.core.explorer.group_play import RULES, VALIDATION, play_group


def run(script, started, needed, rule):
    """`script[episode]`: for each attempt "ok", "fail", "raise" or "never". Episodes finish in the order of their numbers."""
    cancelled = []

    async def play(episode, attempt):
        try:
            for _ in range(episode + 1):
                await asyncio.sleep(0)
            what = script[episode][attempt]
            if what == "never":
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(episode)
            raise
        if what in ("fail", "raise"):
            raise EpisodeFailed("timeout" if what == "fail" else "exception", f"episode {episode}")
        return f"{episode}.{attempt}"

    finished, outcome = asyncio.run(play_group(play, started, needed, rule))
    return finished, outcome, cancelled


def test_the_first_to_finish_count_and_the_rest_is_cancelled():
    finished, outcome, cancelled = run([["never"], ["ok"], ["ok"], ["never"]], 4, 2, RULES["drop_group"])
    assert finished == ["1.0", "2.0"]
    assert (outcome.aborted, sorted(cancelled)) == (2, [0, 3])
    assert not outcome.failures


def test_a_failed_episode_is_played_again_once():
    finished, outcome, _ = run([["fail", "ok"], ["ok"]], 2, 2, RULES["retry"])
    assert finished == ["0.1", "1.0"]
    assert outcome.failures == {"timeout": 1} and outcome.lost == 0
    finished, outcome, cancelled = run([["fail", "fail"], ["never"]], 2, 2, RULES["retry"])
    assert finished == [] and outcome.failures == {"timeout": 2} and outcome.lost == 1
    assert cancelled == [1], "a group that cannot be completed does not wait for its other episodes"


def test_a_group_may_go_on_without_a_failed_episode():
    finished, outcome, _ = run([["ok"], ["fail"], ["ok"]], 3, 3, RULES["drop_sample"])
    assert finished == ["0.0", "2.0"] and outcome.lost == 1
    assert run([["fail"], ["fail"]], 2, 2, RULES["drop_sample"])[0] == []


def test_each_kind_of_failure_has_its_own_reason():
    _, outcome, _ = run([["fail"], ["raise"], ["fail"], ["ok"]], 4, 4, RULES["drop_sample"])
    assert outcome.reasons == {"timeout": "timeout: episode 2", "exception": "exception: episode 1"}


def test_redundant_episodes_make_up_for_a_failed_one():
    finished, outcome, _ = run([["fail"], ["ok"], ["ok"]], 3, 2, RULES["drop_group"])
    assert finished == ["1.0", "2.0"] and outcome.failures == {"timeout": 1}
    assert run([["fail"], ["ok"]], 2, 2, RULES["drop_group"])[0] == []


def test_a_validation_plays_again_then_counts_what_is_left():
    finished, outcome, _ = run([["fail", "fail"], ["fail", "ok"]], 2, 2, VALIDATION)
    assert finished == ["1.1"] and outcome.lost == 1


def test_what_is_no_failure_of_an_environment_is_the_callers():
    async def play(episode, attempt):
        if episode:
            raise ZeroDivisionError
        await asyncio.Event().wait()

    with pytest.raises(ZeroDivisionError):
        asyncio.run(play_group(play, 2, 2, RULES["retry"]))
