"""The state of a replica: every path back to service goes over a verified load of the current version."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roll.core.engines.fleet import TRANSITIONS, EngineEvent, EngineState, Fleet
from roll.core.errors import IllegalTransition, WorkersLost


def test_no_edge_leads_to_serving_but_a_verified_load():
    assert [key for key, state in TRANSITIONS.items() if state is EngineState.SERVING] == [
        (EngineState.LOADING, EngineEvent.VERIFIED)
    ]
    before = [state for (state, _), following in TRANSITIONS.items() if following is EngineState.LOADING]
    assert before == [EngineState.SILENT, EngineState.STARTING]


def test_a_replica_comes_back_with_the_current_version_only():
    fleet = Fleet(2, version=3, max_restarts=1)
    assert fleet.died(0) and not fleet.died(0)
    assert fleet.serving == [1]
    fleet.restart(0)
    with pytest.raises(IllegalTransition, match="engine 0 is starting: verified cannot happen"):
        fleet.verified(0, 3)
    fleet.started(0)
    fleet.loaded(1, 4)
    with pytest.raises(ValueError, match="engine 0 serves version 3, the others 4"):
        fleet.verified(0, 3)
    assert fleet.serving == [1]
    fleet.verified(0, 4)
    assert fleet.serving == [0, 1]
    fleet.died(1)
    with pytest.raises(WorkersLost, match=r"engine 1 died, and max_engine_restarts \(1\) are used up"):
        fleet.restart(1)


def test_a_fleet_that_starts_empty_serves_when_the_first_version_is_loaded():
    fleet = Fleet(2, version=3, max_restarts=1, empty=True)
    assert fleet.serving == [] and fleet.version == 3
    with pytest.raises(ValueError, match="engine 0 serves version -1, the others 3"):
        fleet.verified(0, -1)
    fleet.verified(0, 3)
    fleet.verified(1, 3)
    assert fleet.serving == [0, 1]


def test_the_version_of_a_fleet_is_the_oldest_that_serves():
    fleet = Fleet(3, version=1, max_restarts=3)
    fleet.loaded(0, 5)
    fleet.loaded(2, 4)
    assert fleet.version == 1
    fleet.loaded(1, 5)
    assert fleet.version == 4
    fleet.died(2)
    assert fleet.version == 5, "who counts from it may go on"
    fleet.died(0)
    fleet.died(1)
    assert fleet.version == 5, "the first that comes back brings what was served last"


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["died", "restart", "started", "verified", "load"])), max_size=60))
def test_whatever_happens_serving_means_verified_at_the_version_of_that_moment_which_never_falls(events):
    fleet, newest = Fleet(3, 0, max_restarts=1000), 0
    for replica, event in events:
        was, version = fleet.states[replica], fleet.version
        try:
            if event == "load":
                newest += 1
                if was is EngineState.SERVING:
                    fleet.loaded(replica, newest)
            elif event == "verified":
                fleet.verified(replica, version)
            else:
                getattr(fleet, event)(replica)
        except IllegalTransition:
            assert fleet.states[replica] is was, "a refused event changes nothing"
        if was is not EngineState.SERVING and fleet.states[replica] is EngineState.SERVING:
            assert was is EngineState.LOADING and fleet.versions[replica] == version
        assert fleet.version >= version
        assert all(fleet.versions[serving] >= fleet.version for serving in fleet.serving)


def test_no_version_waits_for_a_silent_replica_which_comes_back_with_the_oldest_that_is_served():
    fleet = Fleet(3, 0, 3)
    fleet.silenced(2)
    assert (fleet.version, fleet.serving) == (0, [0, 1])
    fleet.loaded(0, 1)
    fleet.loaded(1, 2)
    assert fleet.version == 1, "the silent one's is not asked for"
    fleet.answered(2)
    with pytest.raises(ValueError, match="engine 2 serves version 0, the others 1"):
        fleet.verified(2, 0)
    fleet.verified(2, 1)
    assert (fleet.version, fleet.versions) == (1, [1, 2, 1])


def test_a_silent_replica_may_die_or_fall_silent_again_while_it_loads():
    fleet = Fleet(2, 0, 3)
    fleet.silenced(0)
    fleet.answered(0)
    fleet.silenced(0)
    assert fleet.died(0)
    fleet.restart(0)
    assert fleet.restarts == 1
