"""Several explorers have the same admission: each gets its part of the groups that may be in flight."""

import asyncio

from database_party import explore, run
from hypothesis import given
from hypothesis import strategies as st

from roll.topologies.sql.news import share

some_devices = st.lists(st.integers(1, 64), min_size=1, max_size=8)


def test_who_is_first_leaves_the_others_their_part(make_party):
    async def main():
        party = make_party()  # four groups may be outstanding
        async with party.joined("large", devices=3) as large, party.joined("small", devices=1) as small:
            held = [await large.start() for _ in range(3)]
            more = asyncio.create_task(large.start())
            own = await small.start()
            await small.until(lambda: len(small.admission.live) == 4)
            await small.drop(own.group_id, "reward_error")
            await large.until(lambda: len(large.admission.live) == 3)
            assert (await small.start()).group_id == 4, "three of four places are the large one's, whoever asks first"
            assert not more.done() and len(held) == 3
            more.cancel()

    run(main())


def test_an_explorer_that_left_has_no_part(make_party):
    async def main():
        party = make_party()
        async with party.joined("a") as a:
            async with party.joined("b") as b:
                (await b.start(), await b.start())
                await explore(a, 2)
            await asyncio.gather(*(a.start() for _ in range(2)))

    run(main())


@given(some_devices, st.data())
def test_while_a_place_is_free_some_explorer_may_take_it(devices, data):
    in_flight = [data.draw(st.integers(0, 40)) for _ in devices]
    places = sum(in_flight) + data.draw(st.integers(1, 40))
    assert any(mine < share(places, own, devices) for mine, own in zip(in_flight, devices, strict=True))


@given(some_devices, st.integers(1, 100))
def test_one_explorer_completes_a_batch_alone_if_the_others_do_nothing(devices, batch):
    buffered = 0
    while buffered < batch:
        mine = min(share(batch - buffered, devices[0], devices), batch - buffered)
        assert mine > 0
        buffered += mine
