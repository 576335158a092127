"""Weights for vLLM are checked against the model's folder before they reach the engine; refused buckets leave nothing behind."""

from __future__ import annotations

import contextlib
import gc
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from roll.core.weights.bucket import Bucket, checksum, manifest_of
from roll.strategies.infer.vllm.weights import StagedBuckets
from roll.transports.buckets import make_buckets

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def tied(request: Any) -> bool:
    return bool(request.param)


@pytest.fixture
def received(lab: Any, tmp_path: Path, tied: bool) -> StagedBuckets:
    lab.model(tied=tied).save_pretrained(tmp_path)
    return StagedBuckets(tmp_path, tied=tied)


def descriptors() -> int:
    """Of the memory files that hold weights: other tests' threads and garbage may close theirs meanwhile."""
    gc.collect()
    links = []
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            links.append(os.readlink(each))
    return sum(link.startswith("/memfd:weights") for link in links)


def test_the_files_hold_what_was_sent_under_the_names_of_the_folder(lab: Any, received: StagedBuckets, tied: bool) -> None:
    before = descriptors()
    model = lab.model(seed=1, tied=tied)
    buckets, manifest = lab.weights(model, 4)
    assert len(buckets) > 2
    with ThreadPoolExecutor() as threads:  # in any order, side by side
        list(threads.map(lambda bucket: received.receive(4, bucket), buckets[::-1]))
    content: dict[str, torch.Tensor] = {}
    for path in received.take(manifest):
        content |= load_file(path)
    assert content.keys() == dict(model.named_parameters()).keys()
    assert all(torch.equal(content[name], parameter) for name, parameter in model.named_parameters())
    received.forget()
    assert descriptors() == before


def test_a_bucket_that_comes_again_replaces_the_first(lab: Any, received: StagedBuckets, tied: bool) -> None:
    before = descriptors()
    buckets, manifest = lab.weights(lab.model(seed=1, tied=tied), 1)
    for bucket in [*buckets, buckets[0]]:
        received.receive(1, bucket)
    assert len(received.take(manifest)) == len(buckets) == descriptors() - before
    received.receive(2, buckets[0])  # another version begins a new set
    assert descriptors() == before + 1
    with pytest.raises(ValueError, match="version 1 were requested, but the received weights are of 2"):
        received.take(manifest)
    received.forget()


def test_what_does_not_fit_the_model_is_refused_and_not_kept(lab: Any, received: StagedBuckets, tied: bool) -> None:
    before = descriptors()
    buckets, _ = lab.weights(lab.model(seed=1, tied=tied), 1)
    name, tensor = next(iter(buckets[0].tensors.items()))
    unknown, misshapen = {"model.nobody.weight": tensor}, {name: tensor[:1]}
    for bucket, message in [
        (Bucket(buckets[0].tensors, buckets[0].checksum + 1), "corrupt"),
        (Bucket(unknown, checksum(unknown)), "unknown"),
        (Bucket(misshapen, checksum(misshapen)), "shape"),
    ]:
        with pytest.raises(ValueError, match=message):
            received.receive(1, bucket)
    assert descriptors() == before


def test_incomplete_or_foreign_sets_are_refused(lab: Any, received: StagedBuckets, tied: bool) -> None:
    buckets, manifest = lab.weights(lab.model(seed=1, tied=tied), 1)
    for bucket in buckets[:-1]:
        received.receive(1, bucket)
    with pytest.raises(ValueError, match="differ in"):
        received.take(manifest)
    with pytest.raises(ValueError, match="do not cover"):
        received.take(manifest_of(1, buckets[:-1]))
    other, _ = lab.weights(lab.model(seed=2, tied=tied), 1)
    received.receive(1, buckets[-1])
    received.receive(1, other[0])  # the right names with another version's bytes
    with pytest.raises(ValueError, match="checksums"):
        received.take(manifest)
    received.receive(1, buckets[0])
    assert len(received.take(manifest)) == len(buckets)
    received.forget()


@pytest.mark.parametrize("tied", [True], indirect=True, ids=["tied"])
@pytest.mark.parametrize("one_bucket", [True, False])
def test_tied_weights_that_differ_are_refused(lab: Any, received: StagedBuckets, one_bucket: bool) -> None:
    state = {name: tensor.clone() for name, tensor in lab.model(seed=3).state_dict().items()}
    state[HEAD] += 1
    with pytest.raises(ValueError, match="tied"):
        for bucket in make_buckets(state.items(), 10**9 if one_bucket else 1):
            received.receive(1, bucket)
    received.forget()


@pytest.mark.parametrize("tied", [True], indirect=True, ids=["tied"])
def test_a_tied_head_alone_is_the_embedding(lab: Any, received: StagedBuckets) -> None:
    state = {name: tensor for name, tensor in lab.model(seed=3).state_dict().items() if name != EMBEDDING}
    buckets = list(make_buckets(state.items(), 10**9))
    received.receive(1, buckets[0])
    (path,) = received.take(manifest_of(1, buckets))
    content = load_file(path)
    assert HEAD not in content and torch.equal(content[EMBEDDING], state[HEAD])
    received.forget()


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no \*\.safetensors"):
        StagedBuckets(tmp_path, tied=False)


def test_files_that_are_kept_live_until_the_next_version_takes_their_place(lab: Any, received: StagedBuckets, tied: bool) -> None:
    before = descriptors()
    for version in (1, 2):
        model = lab.model(seed=version, tied=tied)
        buckets, manifest = lab.weights(model, version)
        for bucket in buckets:
            received.receive(version, bucket)
        paths = received.take(manifest)
        received.keep()
        assert received.served == paths and len(paths) == descriptors() - before
        received.receive(version + 1, buckets[0])  # which begins another set, given up then
        received.forget()
        content = {name: tensor for path in received.served for name, tensor in load_file(path).items()}
        assert all(torch.equal(content[name], parameter) for name, parameter in model.named_parameters())
    received.close()
    assert descriptors() == before
