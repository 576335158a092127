"""What a receiver has of a version, whatever comes in which order, twice or of another version."""

import pytest
import torch

from roll.core.weights.bucket import Bucket, checksum, manifest_of
from roll.core.weights.received import ReceivedBuckets


def bucket(**tensors):
    tensors = {name: torch.tensor([float(value)]) for name, value in tensors.items()}
    return Bucket(tensors, checksum(tensors))


def receive(received, version, one, what):
    gone = received.make_room(version, one)
    received.keep(one, what)
    return gone


def test_a_bucket_takes_the_place_of_what_came_under_its_names_and_a_version_that_of_another():
    received = ReceivedBuckets()
    assert receive(received, 1, bucket(a=1, b=2), "ab") == []
    assert receive(received, 1, bucket(c=3), "c") == []
    assert receive(received, 1, bucket(b=4), "b") == ["ab"]
    assert received.names == {"b", "c"} and received.kept == ["c", "b"]
    assert receive(received, 2, bucket(a=5), "a") == ["c", "b"] and received.version == 2
    assert received.clear() == ["a"] and received.version is None


def test_only_a_whole_version_is_complete():
    first, second, received = bucket(a=1), bucket(b=2), ReceivedBuckets()
    manifest = manifest_of(1, [first, second])
    receive(received, 1, first, None)
    with pytest.raises(ValueError, match=r"differ in \['b'\]"):
        received.check(manifest)
    receive(received, 1, bucket(b=3), None)
    with pytest.raises(ValueError, match="checksums differ"):
        received.check(manifest)
    receive(received, 1, second, None)
    received.check(manifest)
    with pytest.raises(ValueError, match="version 2 were requested"):
        received.check(manifest_of(2, [first, second]))
