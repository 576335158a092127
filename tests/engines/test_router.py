import random

from hypothesis import given
from hypothesis import strategies as st

from roll.core.engines.router import Router


def test_least_loaded_engine_is_chosen():
    router = Router(engines=3, capacity=8)
    engines = [router.request(2, f"p{i}")[0][0].engine for i in range(3)]
    assert sorted(engines) == [0, 1, 2]


def test_samples_of_a_prompt_go_where_the_prompt_is():
    router = Router(engines=2, capacity=8)
    (first, *_), _ = router.request(4, "p")
    (second, _), _ = router.request(2, "p")
    assert second.engine == first.engine


def test_affinity_yields_when_the_home_engine_is_full():
    router = Router(engines=2, capacity=4)
    (first, *_), _ = router.request(4, "p")
    [second], _ = router.request(1, "p")
    assert second.engine not in (None, first.engine)


def test_validation_goes_before_waiting_training_requests():
    router = Router(engines=1, capacity=1)
    [running], _ = router.request(1, "a")
    [training], _ = router.request(1, "b")
    [validation], _ = router.request(1, "c", priority=0)
    assert router.release(running) == [validation]
    assert training.engine is None


def test_a_request_larger_than_an_engine_is_served_by_an_empty_one():
    router = Router(engines=1, capacity=4)
    big, granted = router.request(9, "p")
    assert granted == big and len(big) == 9


def test_requests_that_came_together_go_together_and_leave_one_by_one():
    router = Router(engines=1, capacity=4)
    first, _ = router.request(3, "a")
    second, granted = router.request(3, "b")
    assert granted == [] and router.release(first[1]) == [] and router.load == [2]
    assert router.release(first[0]) == second and router.load == [4]
    assert router.release(first[0]) == [] and router.load == [4], "a place is given back once"


def test_one_that_leaves_the_queue_asks_for_no_place():
    router = Router(engines=1, capacity=4)
    router.request(3, "a")
    second, _ = router.request(3, "b")
    assert router.release(second[0]) == [] and router.release(second[1]) == [second[2]] and router.load == [4]
    third, _ = router.request(2, "c")
    assert [router.release(route) for route in third] == [[], []] and router.queued == 0


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 8))
def test_loads_are_never_exceeded_and_every_request_is_served(seed, engines, capacity):
    rng = random.Random(seed)
    router = Router(engines, capacity)
    waiting, running, served = [], [], 0
    for _ in range(60):
        routes, granted = router.request(rng.randint(1, capacity), f"p{rng.randint(0, 5)}", rng.randint(0, 1))
        waiting += routes
        running += granted
        if running and rng.random() < 0.5:
            running += router.release(running.pop(rng.randrange(len(running))))
            served += 1
        assert all(load <= capacity for load in router.load)
    while running:
        running += router.release(running.pop(0))
        served += 1
    assert served == len(waiting)
    assert router.load == [0] * engines


def test_a_closed_engine_gets_nothing_until_it_is_opened():
    router = Router(engines=2, capacity=2)
    [first], _ = router.request(1, "p")
    router.close(first.engine)
    [second], _ = router.request(1, "p")
    assert second.engine == 1 - first.engine, "not even a prompt that is at home there"
    router.close(second.engine)
    waiting, granted = router.request(1, "p")
    assert granted == [] and router.release(second) == []
    assert router.open(0) == waiting


@given(st.integers(0, 2**32), st.integers(1, 6))
def test_the_least_loaded_open_engine_is_the_first_of_the_smallest_loads(seed, engines):
    """Against a plain search, over requests that come and go and engines that close and open."""
    rng = random.Random(seed)
    router, closed, running = Router(engines, 10**6), set(), []
    for number in range(80):
        move = rng.random()
        if move < 0.15:
            engine = rng.randrange(engines)
            closed.add(engine)
            router.close(engine)
        elif move < 0.3 and closed:
            engine = closed.pop()
            running += router.open(engine)
        elif move < 0.6 and running:
            router.release(running.pop(rng.randrange(len(running))))
        elif len(closed) < engines:
            expected = min(set(range(engines)) - closed, key=lambda engine: (router.load[engine], engine))
            routes, _ = router.request(rng.randint(1, 3), f"prompt {number}")
            assert {route.engine for route in routes} == {expected}
            running += routes
