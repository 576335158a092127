"""Every token says which weights made it, and it is true; broken or partial weights never get in."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from roll.core.weights.bucket import Bucket, checksum, manifest_of
from roll.transports.buckets import make_buckets


def load(engine: Any, buckets: list[Bucket], version: int) -> None:
    for bucket in buckets:
        engine.shadow.receive(version, bucket)


@pytest.mark.parametrize("seed", range(3))
def test_each_token_has_the_log_prob_of_its_stamped_version(lab: Any, seed: int) -> None:
    """Updates at random borders, requests interrupted and prefilled again: each token is re-scored by its version's model."""
    draw = random.Random(seed)
    versions = {version: lab.model(seed=version) for version in range(6)}
    engine = lab.engine(lab.model(seed=0), slots=4)
    borders = dict(zip(sorted(draw.sample(range(5, 150), 5)), range(1, 6), strict=True))
    requests = [
        lab.request(
            str(i), [draw.randrange(256) for _ in range(draw.randint(1, 20))], temperature=0.8, max_new_tokens=draw.randint(5, 80)
        )
        for i in range(12)
    ]

    def update(step: int) -> None:
        if (version := borders.get(step)) is not None:
            buckets, manifest = lab.weights(versions[version], version)
            load(engine, buckets, version)
            assert engine.activate(manifest, "interrupt") > 0

    results = lab.run_all(engine, requests, update)
    assert sum(len(result.versions) > 1 for result in results.values()) >= 3
    for request in requests:
        result = results[request.request_id]
        assert len(result.token_ids) == request.sampling.max_new_tokens
        assert [span.start for span in result.versions] == [0, *(span.stop for span in result.versions[:-1])]
        assert result.versions[-1].stop == len(result.token_ids)
        assert all(a.version < b.version for a, b in zip(result.versions, result.versions[1:], strict=False))
        for span in result.versions:
            expected = lab.true_logprobs(versions[span.version], request.prompt_ids, result.token_ids, 0.8)
            got = torch.tensor(result.logprobs)
            assert (got - expected)[span.start : span.stop].abs().max() < 1e-4


def test_an_update_in_flight_drains_nobody_and_prefills_nothing(lab: Any) -> None:
    """20 requests on 4 slots: none of them ends between, the running four go on with their cache under the new weights."""
    engine = lab.engine(lab.model(seed=0), slots=4)
    buckets, manifest = lab.weights(lab.model(seed=1), 1)
    for i in range(20):
        engine.submit(lab.request(str(i), [i + 1, 2], max_new_tokens=60))
    for _ in range(10):
        assert engine.step() == []
    before = engine.stats()
    load(engine, buckets, 1)
    assert engine.activate(manifest, "in_flight") >= 0
    assert engine.step() == []
    after = engine.stats()
    assert (after.running, after.queued) == (before.running, before.queued) == (4, 16)
    assert after.generated_tokens == before.generated_tokens + 4
    assert after.prefill_tokens == before.prefill_tokens
    assert after.version == 1
    results = lab.run_all(engine, [])
    assert [tuple(span)[:3] for span in results["0"].versions] == [(0, 10, 0), (10, 60, 1)]
    assert [tuple(span)[:3] for span in results["19"].versions] == [(0, 60, 1)]


def test_after_an_update_in_flight_new_requests_use_the_new_weights_alone(lab: Any) -> None:
    """A prompt that is running already is prefilled again: its slot belongs to the old weights."""
    new = lab.model(seed=1)
    engine = lab.engine(lab.model(seed=0), slots=4)
    engine.submit(lab.request("old", [9, 8, 7], max_new_tokens=60))
    engine.step()
    buckets, manifest = lab.weights(new, 1)
    load(engine, buckets, 1)
    engine.activate(manifest, "in_flight")
    result = lab.run_all(engine, [lab.request("new", [9, 8, 7], max_new_tokens=20)])["new"]
    assert torch.tensor(result.logprobs).sub(lab.true_logprobs(new, [9, 8, 7], result.token_ids)).abs().max() < 1e-5


def test_interrupted_requests_come_before_queued_ones_in_their_order(lab: Any) -> None:
    engine = lab.engine(lab.model(), slots=2)
    buckets, manifest = lab.weights(lab.model(seed=1), 1)
    requests = [lab.request(name, [ord(name)], max_new_tokens=6) for name in "abcd"]

    def update(step: int) -> None:
        if step == 3:
            load(engine, buckets, 1)
            engine.activate(manifest, "interrupt")
            assert engine.stats().running == 2

    results = lab.run_all(engine, requests, update)
    assert sorted(list(results)[:2]) == ["a", "b"]
    assert [tuple(span)[:3] for span in results["a"].versions] == [(0, 3, 0), (3, 6, 1)]


def test_aborting_an_interrupted_request_returns_its_tokens(lab: Any) -> None:
    engine = lab.engine(lab.model(), slots=2)
    buckets, manifest = lab.weights(lab.model(seed=1), 1)
    engine.submit(lab.request("a", [1], max_new_tokens=50))
    for _ in range(5):
        engine.step()
    load(engine, buckets, 1)
    engine.activate(manifest, "interrupt")
    engine.abort(["a"])
    (result,) = engine.step()
    assert (len(result.token_ids), result.finish_reason, engine.idle) == (5, "abort", True)


@pytest.mark.parametrize("exported", ["embedding", "lm_head", "both"])
def test_tied_weights_may_come_under_either_name_or_both(lab: Any, exported: str) -> None:
    new = lab.model(seed=3)
    names = {"embedding": ["model.embed_tokens.weight"], "lm_head": ["lm_head.weight"]}
    names["both"] = names["embedding"] + names["lm_head"]
    state = {n: t for n, t in new.state_dict().items() if n not in names["both"] or n in names[exported]}
    buckets = list(make_buckets(state.items(), 5000))
    engine = lab.engine(lab.model())
    load(engine, buckets, 1)
    engine.activate(manifest_of(1, buckets), "interrupt")
    result = lab.run_all(engine, [lab.request("a", [3, 4], max_new_tokens=10)])["a"]
    assert torch.tensor(result.logprobs).sub(lab.true_logprobs(new, [3, 4], result.token_ids)).abs().max() < 1e-5


@pytest.mark.parametrize("one_bucket", [True, False])
def test_tied_weights_that_differ_are_refused(lab: Any, one_bucket: bool) -> None:
    state = {n: t.clone() for n, t in lab.model(seed=3).state_dict().items()}
    state["lm_head.weight"] += 1
    engine = lab.engine(lab.model())
    with pytest.raises(ValueError, match="tied"):
        load(engine, list(make_buckets(state.items(), 10**9 if one_bucket else 1)), 1)


def test_weights_are_converted_to_the_type_of_the_model(lab: Any) -> None:
    engine = lab.engine(lab.model().to(torch.bfloat16))
    buckets, manifest = lab.weights(lab.model(seed=1), 1)
    load(engine, buckets, 1)
    engine.activate(manifest, "interrupt")
    expected = lab.model(seed=1).to(torch.bfloat16).state_dict()
    for name, tensor in engine._model.model.state_dict().items():
        assert torch.equal(tensor, expected[name]), name


def test_corrupt_unknown_or_misshapen_buckets_are_refused_and_change_nothing(lab: Any) -> None:
    engine = lab.engine(lab.model())
    request = lab.request("a", [1, 2, 3], seed=1, max_new_tokens=20)
    before = lab.run_all(engine, [request])["a"]
    buckets, manifest = lab.weights(lab.model(seed=1), 1)
    name, tensor = next(iter(buckets[0].tensors.items()))
    corrupt = Bucket({**buckets[0].tensors, name: tensor + 1}, buckets[0].checksum)
    unknown = {"model.nobody.weight": tensor}
    misshapen = {name: tensor[:1]}
    for bucket, message in [
        (corrupt, "corrupt"),
        (Bucket(unknown, checksum(unknown)), "unknown"),
        (Bucket(misshapen, checksum(misshapen)), "shape"),
    ]:
        with pytest.raises(ValueError, match=message):
            engine.shadow.receive(1, bucket)
    with pytest.raises(ValueError, match="were requested"):
        engine.activate(manifest, "interrupt")
    assert lab.run_all(engine, [request])["a"] == before
    assert engine.stats().version == 0


def test_incomplete_or_foreign_sets_are_refused_until_complete(lab: Any) -> None:
    engine = lab.engine(lab.model())
    buckets, manifest = lab.weights(lab.model(seed=1), 1)
    load(engine, buckets[:-1], 1)
    with pytest.raises(ValueError, match="differ in"):
        engine.activate(manifest, "interrupt")
    with pytest.raises(ValueError, match="do not cover"):
        engine.activate(manifest_of(1, buckets[:-1]), "interrupt")
    other, _ = lab.weights(lab.model(seed=2), 1)
    load(engine, [*buckets[-1:], other[0]], 1)  # right names, another version's bytes
    with pytest.raises(ValueError, match="checksums"):
        engine.activate(manifest, "interrupt")
    with pytest.raises(ValueError, match="were requested"):
        engine.activate(manifest_of(2, buckets), "interrupt")
    load(engine, buckets[:1], 1)
    engine.activate(manifest, "interrupt")
    assert engine.stats().version == 1


def test_buckets_of_a_new_version_replace_those_of_an_unfinished_one(lab: Any) -> None:
    engine = lab.engine(lab.model())
    old, _ = lab.weights(lab.model(seed=1), 1)
    new, manifest = lab.weights(lab.model(seed=2), 2)
    load(engine, old[:3], 1)
    load(engine, new, 2)
    engine.activate(manifest, "interrupt")
    result = lab.run_all(engine, [lab.request("a", [5], max_new_tokens=10)])["a"]
    assert torch.tensor(result.logprobs).sub(lab.true_logprobs(lab.model(seed=2), [5], result.token_ids)).abs().max() < 1e-5


def test_weights_that_give_no_finite_logits_end_generation_with_an_error(lab: Any) -> None:
    broken = lab.model(seed=1)
    with torch.no_grad():
        broken.model.norm.weight.fill_(float("nan"))
    engine = lab.engine(lab.model())
    buckets, manifest = lab.weights(broken, 1)
    load(engine, buckets, 1)
    engine.activate(manifest, "in_flight")
    engine.submit(lab.request("a", [1]))
    with pytest.raises(FloatingPointError, match="version 1"):
        engine.step()
