"""Weights staged as files for an engine in another process."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from safetensors.torch import load_file

from roll.core.weights.bucket import Bucket, manifest_of
from roll.transports.buckets import make_buckets
from roll.transports.staged import StagedWeights


def buckets_of(seed, size=64):
    generator = torch.Generator().manual_seed(seed)
    return list(make_buckets(((f"w{i}", torch.randn(4, 4, generator=generator)) for i in range(5)), size))


@pytest.fixture
def staged():
    weights = StagedWeights()
    yield weights
    weights.close()


def read(folder):
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


def test_what_was_received_is_what_lies_in_the_folder(staged):
    buckets = buckets_of(1)
    with ThreadPoolExecutor() as threads:  # side by side, one of them twice, as after a retry
        list(threads.map(lambda bucket: staged.receive(3, bucket), [*buckets, buckets[2]]))
    found = read(staged.complete(manifest_of(3, buckets)))
    assert len(found) == 5
    for bucket in buckets:
        for name, tensor in bucket.tensors.items():
            assert torch.equal(found[name], tensor)
    folder = staged.complete(manifest_of(3, buckets))
    staged.discard()
    assert not list(folder.glob("*.safetensors"))


def test_incomplete_foreign_and_corrupt_sets_are_refused(staged):
    buckets, other = buckets_of(1), buckets_of(2)
    for bucket in buckets[:-1]:
        staged.receive(3, bucket)
    with pytest.raises(ValueError, match="received and manifest differ in \\['w4'\\]"):
        staged.complete(manifest_of(3, buckets))
    staged.receive(3, other[-1])
    with pytest.raises(ValueError, match="checksums differ"):
        staged.complete(manifest_of(3, buckets))
    with pytest.raises(ValueError, match="version 4 were requested, but the received weights are of 3"):
        staged.complete(manifest_of(4, buckets))
    with pytest.raises(ValueError, match="corrupt"):
        staged.receive(3, Bucket(buckets[0].tensors, buckets[0].checksum + 1))


def test_a_newer_version_begins_anew(staged):
    for bucket in buckets_of(1):
        staged.receive(3, bucket)
    newer = buckets_of(2)
    for bucket in newer:
        staged.receive(4, bucket)
    found = read(staged.complete(manifest_of(4, newer)))
    assert all(torch.equal(found[name], tensor) for bucket in newer for name, tensor in bucket.tensors.items())
