"""When an item takes too long. The clock is the test's."""

from roll.core.flow.flow import FIRST, LONGEST, MEDIANS, Hangs

FLOOR = 10.0


def paced(*durations: float) -> Hangs:
    """A stage that has worked on items for so long, one after another, up to time 0."""
    hangs, now = Hangs(FLOOR), -sum(durations)
    for seconds in durations:
        hangs.began("work", 0, "past", now)
        now += seconds
        hangs.ended("work", 0, now)
    return hangs


def first_alarm(hangs: Hangs) -> int:
    hangs.began("work", 0, "item", 0.0)
    return next(second for second in range(10_000) if hangs.suspects(second))


def test_an_item_is_too_long_beyond_the_floor_the_median_and_the_longest_of_late():
    assert first_alarm(paced(0.1, 0.1, 0.1)) == FLOOR + 1
    assert first_alarm(paced(4.0, 5.0, 6.0)) == 5 * MEDIANS + 1
    assert first_alarm(paced(*[0.1] * 9, 40.0)) == 40 * LONGEST + 1, "most steps are not validated"
    assert first_alarm(paced(40.0, *[0.1] * 100)) == FLOOR + 1, "what was long ago does not count"
    assert first_alarm(paced()) == FIRST * FLOOR + 1, "nothing to compare the first item with"


def test_a_suspect_says_what_it_is_compared_with():
    hangs = paced(1.0, 2.0, 9.0)
    hangs.began("work", 0, "item", 0.0)
    (suspect,) = hangs.suspects(312.0)
    assert suspect == ("work", "item", 312.0, 2.0)


def test_each_hang_is_told_once_and_one_for_all_lanes_that_it_holds_up():
    hangs = paced(1.0)
    for lane in range(4):
        hangs.began("work", lane, lane, float(lane))
    assert [suspect.item for suspect in hangs.suspects(100.0)] == [0]
    assert not any(hangs.suspects(float(now)) for now in range(101, 200))
    hangs.ended("work", 1, 200.0)  # another one goes on, which changes nothing for the first
    hangs.began("work", 1, "new", 200.0)
    assert not hangs.suspects(10_000.0)
    hangs.ended("work", 0, 10_000.0)
    assert not hangs.suspects(10_001.0), "what took long lately is no hang now"
    assert [suspect.item for suspect in hangs.suspects(30_000.0)] == [2], "a hang of its own"


def test_stages_are_judged_each_by_its_own_pace():
    hangs = paced(1.0)
    hangs.began("slow", 0, "x", -500.0)
    hangs.ended("slow", 0, -400.0)
    hangs.began("slow", 0, "y", 0.0)
    hangs.began("work", 0, "z", 0.0)
    assert [suspect.stage for suspect in hangs.suspects(300.0)] == ["work"]
    assert [suspect.stage for suspect in hangs.suspects(501.0)] == ["slow"]
