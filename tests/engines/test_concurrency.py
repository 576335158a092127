"""The limit finds what an engine holds, and a shortage is one shortage."""

from hypothesis import given, settings
from hypothesis import strategies as st

from roll.core.engines.router import CUT, Concurrency, Router


def test_without_a_shortage_the_limit_is_what_was_configured():
    concurrency = Concurrency(8)
    for _ in range(100):
        concurrency.end(concurrency.begin(), 8, True, preempted=False)
    assert concurrency.limit == 8


def test_all_requests_that_met_one_shortage_cost_one_cut():
    concurrency = Concurrency(16)
    together = [concurrency.begin() for _ in range(16)]
    for left, number in enumerate(together):
        concurrency.end(number, 16 - left, True, preempted=True)
    assert concurrency.limit == CUT * 16
    concurrency.end(concurrency.begin(), 12, True, preempted=True)
    assert concurrency.limit == CUT * CUT * 16


def test_the_limit_rises_only_while_it_is_what_holds_requests_back():
    concurrency = Concurrency(16)
    concurrency.end(concurrency.begin(), 16, True, preempted=True)
    for _ in range(100):
        concurrency.end(concurrency.begin(), 12, False, preempted=False)
    assert concurrency.limit == 12
    for _ in range(13):
        concurrency.end(concurrency.begin(), concurrency.limit, True, preempted=False)
    assert concurrency.limit == 13, "one more after each has ended once"


@settings(max_examples=40, deadline=None)
@given(drivers=st.integers(1, 3), room=st.integers(4, 12), spare=st.integers(0, 30))
def test_drivers_of_one_engine_come_to_share_what_it_holds(drivers, room, spare):
    """An engine with cache for `room` samples a driver, always asked for as much as it is given, whose requests end in the order
    they came: in the long run its load stays near the room, at most one sample a driver above it."""
    room *= drivers
    routers = [Router(1, room + spare) for _ in range(drivers)]
    running, loads = [], []
    for _ in range(60 * (room + spare)):
        for router in routers:
            while not router.queued:
                running += [(router, route) for route in router.request(1, "p")[1]]
        loads.append(sum(router.load[0] for router in routers))
        router, route = running.pop(0)
        running += [(router, granted) for granted in router.release(route, preempted=loads[-1] > room)]
    settled = loads[len(loads) // 2 :]
    assert 0.65 * room <= sum(settled) / len(settled) <= room
    assert max(settled) <= room + drivers


def test_an_engine_is_given_at_least_one_request():
    concurrency = Concurrency(4)
    for _ in range(20):
        concurrency.end(concurrency.begin(), 1, True, preempted=True)
    assert concurrency.limit == 1
