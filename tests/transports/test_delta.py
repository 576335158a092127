"""Versions as what changed: bit by bit what the trainer has, or an error; never larger than the whole."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.core.weights.bucket import Bucket, WeightManifest, checksum
from roll.core.weights.store import Link
from roll.transports.delta import GAPS, HASH, VALUES, WHOLE, Chain, LastShare, changed, changes, pack, unpack

EDGES = st.sampled_from([0, 1, 253, 254, 255, 256, 509, 510, 511, 65534, 65535, 65536, 131070, 200_000])
TYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int64, torch.int8, torch.bool]
SHAPES = [(), (0,), (1,), (37,), (9, 31), (3, 5, 7)]


def bucket(tensors):
    return Bucket(tensors, checksum(tensors))


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).tolist()


def random_bits(dtype, shape, generator):
    """All bit patterns: NaNs, infinities and zeros of both signs are among them."""
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    count = torch.Size(shape).numel() * torch.empty((), dtype=dtype).element_size()
    return torch.randint(0, 256, (count,), dtype=torch.uint8, generator=generator).view(dtype).reshape(shape)


@given(st.lists(st.one_of(st.integers(0, 40), EDGES), min_size=1, max_size=60))
def test_places_come_back_whatever_the_gaps_between_them(gaps):
    places = np.cumsum(np.array(gaps) + 1) - 1
    packed = pack(places)
    assert unpack(packed).tolist() == places.tolist()
    assert packed.nbytes <= 2 * (len(gaps) + sum(gap // 65535 for gap in gaps)), "16 bits, or less"


@given(st.integers(0, 1 << 30), st.sampled_from(TYPES), st.sampled_from(SHAPES), st.floats(0, 1))
@settings(deadline=None)
def test_changes_applied_to_what_was_before_are_the_new_tensor_bit_by_bit(seed, dtype, shape, share):
    generator = torch.Generator().manual_seed(seed)
    old, other = (random_bits(dtype, shape, generator) for _ in range(2))
    new = torch.where(torch.rand(shape, generator=generator) < share, other, old)
    kept = bits(old)
    delta = changes({"w": old}, bucket({"w": new}))
    delta.verify()
    (name, made), *more = changed({"w": old}, delta).items()
    assert (name, made.dtype, made.shape, bits(made)) == ("w", dtype, new.shape, bits(new)) and not more
    assert bits(old) == kept, "the version before stays: an engine may load it again"
    assert delta.nbytes <= new.nbytes + 8


def test_what_is_new_or_of_another_shape_or_type_comes_whole():
    before = {"shape": torch.zeros(4), "type": torch.zeros(4), "gone": torch.zeros(4)}
    now = {"shape": torch.zeros(2, 2), "type": torch.zeros(4).bfloat16(), "new": torch.ones(3)}
    delta = changes(before, bucket(now))
    assert {WHOLE + name for name in now} <= delta.tensors.keys()
    made = changed(before, delta)
    assert made.keys() == now.keys() and all(torch.equal(made[name], now[name]) for name in now)


@pytest.mark.parametrize(("one_in", "most"), [(20, 3.1), (100, 3.2), (1000, 4.2), (20_000, 7)])
def test_a_change_takes_about_three_bytes_an_element_of_bfloat16(one_in, most):
    """Two for the number, one or two for its place."""
    generator = torch.Generator().manual_seed(0)
    old = torch.randn(400_000, generator=generator).bfloat16()
    at = torch.rand(400_000, generator=generator) < 1 / one_in
    new = torch.where(at, -old, old)
    delta = changes({"w": old}, bucket({"w": new}))
    assert delta.nbytes <= most * int(at.sum()) + 8
    assert delta.tensors.keys() == {HASH + "w", GAPS + "w", VALUES + "w"}


def test_a_tensor_that_did_not_change_costs_its_hash():
    old = {"w": torch.randn(1000)}
    delta = changes(old, bucket({"w": old["w"].clone()}))
    assert delta.nbytes == 8
    assert changed(old, delta)["w"] is old["w"]


@pytest.mark.parametrize(
    "before",
    [{"w": torch.ones(100)}, {"w": torch.zeros(7)}, {"w": torch.zeros(100).double()}, {}],
)
def test_changes_of_another_version_are_refused_by_the_tensors_name(before):
    now = torch.zeros(100)
    now[7], now[99] = 1.0, 2.0
    delta = changes({"w": torch.zeros(100)}, bucket({"w": now}))
    with pytest.raises(ValueError, match="weight 'w'"):
        changed(before, delta)


def test_a_tensor_that_should_not_have_changed_is_compared_too():
    delta = changes({"w": torch.zeros(5)}, bucket({"w": torch.zeros(5)}))
    with pytest.raises(ValueError, match="weight 'w' is not what was published"):
        changed({"w": torch.ones(5)}, delta)


@pytest.mark.parametrize(("places", "values"), [([1, 2], 1), ([1, 2], 3), ([1, 10], 2)])
def test_parts_that_do_not_fit_each_other_are_refused(places, values):
    old = torch.zeros(10)
    parts = {HASH + "w": torch.zeros(8, dtype=torch.uint8), GAPS + "w": pack(np.array(places)), VALUES + "w": torch.ones(values)}
    with pytest.raises(ValueError, match="does not fit"):
        changed({"w": old}, bucket(parts))


def manifests(chain, versions, share):
    """What is published of each version, and its base: whole ones of 100 bytes, changes of `share` of it."""
    bases = {}
    for version in versions:
        link = chain.link(version)
        assert link.version == version
        bases[version] = link.base
        chain.published(WeightManifest(version, nbytes=100 if link.base is None else int(100 * share), base=link.base))
    return bases


def test_every_nth_published_version_is_whole_whatever_their_numbers():
    assert manifests(Chain(3), [0, 2, 4, 6, 8, 10, 11], 0.1) == {0: None, 2: 0, 4: 2, 6: None, 8: 6, 10: 8, 11: None}


def test_while_much_changes_versions_are_whole_but_for_one_that_is_tried():
    chain = Chain(4)
    assert manifests(chain, range(6), 0.9) == {0: None, 1: 0, 2: None, 3: None, 4: None, 5: 4}
    assert manifests(chain, range(6, 8), 0.1) == {6: None, 7: None}, "that one was as large"
    assert manifests(chain, range(8, 13), 0.1) == {8: None, 9: 8, 10: 9, 11: 10, 12: None}, "the next was not"


def test_without_chains_nobody_remembers_anything():
    assert Chain(1).link(3) is None


def exported(share, link, value):
    tensors = {f"w{i}": torch.full((50,), float(i)).bfloat16() for i in range(4)}
    tensors["w0"][3] = value
    return share.linked(link, iter([bucket(dict([item])) for item in tensors.items()]))


def kinds(buckets):
    return {part.partition(":")[0] + ":" for each in buckets for part in each.names}


def test_a_rank_sends_changes_of_the_base_that_it_has_and_else_all():
    share = LastShare()
    assert all(not each.names[0].startswith(HASH) for each in exported(share, Link(1, None), 1.0))
    assert kinds(exported(share, Link(2, 1), 2.0)) == {HASH, GAPS, VALUES}
    interrupted = exported(share, Link(3, 2), 3.0)
    next(interrupted)
    assert kinds(exported(share, Link(4, 2), 4.0)) == {HASH, WHOLE}, "half of 3 and half of 2 is no base"
    assert kinds(exported(share, Link(5, 4), 4.0)) == {HASH}
    assert kinds(exported(share, Link(6, 2), 4.0)) == {HASH, WHOLE}, "a base that it does not have"
    assert kinds(exported(LastShare(), Link(6, 5), 4.0)) == {HASH, WHOLE}, "a rank that was started again"
