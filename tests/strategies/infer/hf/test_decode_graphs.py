"""Decode steps as graphs, on a CPU: `Recorded` is to operations what a CUDA graph is to kernels. It repeats them one by one, on
the memory that they used when they were captured, and nothing of Python: an input, a weight or a cache that lies elsewhere by
then, or a number that the host took from a tensor, gives other results than a step without a graph."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from roll.plan.memory import padded
from roll.strategies.infer.hf import block_cache
from roll.strategies.infer.hf.decode_graphs import CudaCapture

CLOSE = 5e-5
"""Between log-probs of float32 products of other shapes, down to -9."""


def _pinned(value: Any) -> Any:
    """The same memory, wherever the tensor lies later."""
    return value.detach() if isinstance(value, Tensor) else value


class Recorded(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.graphs: list[list[tuple[Any, Any, Any, Any]]] = []
        self.replayed = 0

    def nbytes(self) -> int:
        return 0

    def __call__(self, step: Callable[[], Tensor]) -> Callable[[], Tensor]:
        self.graphs.append(calls := [])
        with self:
            output = step()

        def replay() -> Tensor:
            self.replayed += 1
            for operation, args, kwargs, before in calls:
                after = operation(*args, **kwargs)
                for old, new in zip(tree_leaves(before), tree_leaves(after), strict=True):
                    if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)
            return output

        return replay

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if operation.overloadpacket in (torch.ops.aten.item, torch.ops.aten._local_scalar_dense):
            raise RuntimeError("a number was read by the host")
        result = operation(*args, **(kwargs or {}))
        given = tree_map(_pinned, (args, kwargs or {}))
        self.graphs[-1].append((operation, *given, tree_map(_pinned, result)))
        return result


def requests(lab: Any, count: int, prefix: str = "") -> list[Any]:
    return [
        lab.request(f"{prefix}{i}", [i + 1, 7, 9], seed=i, temperature=(1.0, 0.7, 0)[i % 3], max_new_tokens=4 + (37 * i) % 70)
        for i in range(count)
    ]


def test_a_replayed_step_is_bitwise_the_step_without_a_graph(lab: Any) -> None:
    """While rows join and leave, and the cache grows under the graphs."""
    recorded = Recorded()
    engine = lab.engine(lab.model(), slots=6, capture=recorded)
    graphs = engine._model._graphs
    compared = []
    replay = graphs.__call__

    class Compared(type(graphs)):  # type: ignore[misc]
        def __call__(self, tokens: Any, positions: Any, width: int, capacity: int) -> Tensor | None:
            found = replay(tokens, positions, width, capacity)
            assert found is not None and max(positions) < width <= capacity
            rows = padded(len(tokens), 6)
            view = type("Rows", (), dict(zip(("tokens", "positions", "slots"), self._buffer[:, :rows], strict=True)))
            compared.append(torch.equal(found, self._step(view, width)[: len(tokens)]))
            return found

    graphs.__class__ = Compared
    lab.run_all(engine, requests(lab, 14))
    assert len(compared) > 100 and all(compared)
    assert recorded.replayed == len(compared) and 4 < len(recorded.graphs) < 20
    assert engine._model.cache.capacity > 64


@pytest.mark.parametrize("block", [0, 16])
def test_an_engine_with_graphs_samples_what_one_without_does(lab: Any, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks a graph reads whatever blocks its rows have by then, and there is one for each number of rows."""
    monkeypatch.setattr(block_cache, "varlen_attn", lab.gathering)
    recorded = Recorded()
    engine = lab.engine(lab.model(), slots=6, capture=recorded, block=block)
    found = lab.run_all(engine, requests(lab, 14))
    assert not block or {width for _, width in engine._model._graphs._graphs} == {1}
    expected = lab.run_all(lab.engine(lab.model(), slots=6), requests(lab, 14))
    assert recorded.replayed > 100
    for name, result in expected.items():
        assert found[name].token_ids == result.token_ids
        assert torch.tensor(found[name].logprobs).sub(torch.tensor(result.logprobs)).abs().max() < CLOSE


def test_graphs_see_new_weights_and_end_with_sleep(lab: Any) -> None:
    """No graph is captured again for them."""
    recorded = Recorded()
    engine, plain = lab.engine(lab.model(), slots=4, capture=recorded), {0: lab.model(), 1: lab.model(seed=1)}
    buckets, manifest = lab.weights(lab.model(seed=1), 1)
    captured: list[int] = []

    def update(step: int) -> None:
        if step == 20:
            for bucket in buckets:
                engine.shadow.receive(1, bucket)
            captured.append(len(recorded.graphs))
            engine.activate(manifest, "interrupt")

    given = [lab.request(str(i), [i + 1, 5], seed=i, max_new_tokens=40) for i in range(4)]
    results = lab.run_all(engine, given, update)
    assert captured == [len(recorded.graphs)] and recorded.replayed > 30
    for request in given:
        result = results[request.request_id]
        assert [span.version for span in result.versions] == [0, 1]
        for span in result.versions:
            true = lab.true_logprobs(plain[span.version], request.prompt_ids, result.token_ids)
            assert (torch.tensor(result.logprobs) - true)[span.start : span.stop].abs().max() < CLOSE
    engine.sleep()
    engine.wake()
    again = lab.run_all(engine, given)
    assert len(recorded.graphs) > captured[0]
    for request in given:
        result = again[request.request_id]
        true = lab.true_logprobs(plain[1], request.prompt_ids, result.token_ids)
        assert (torch.tensor(result.logprobs) - true).abs().max() < CLOSE


def test_what_ended_in_a_slot_is_still_begun_with(lab: Any) -> None:
    """Padding rows write into none of the slots that keep the states of ended rows."""
    engine = lab.engine(lab.model(), slots=8, capture=Recorded())
    ended = lab.run_all(engine, [lab.request(str(i), range(i, i + 30), seed=i, max_new_tokens=20) for i in range(8)])
    lab.run_all(engine, requests(lab, 5, "beside"))  # padded to 6; slots 5 to 7 keep the newest that ended
    for i in range(3):
        before = engine.stats().prefill_tokens
        turn = [*range(i, i + 30), *ended[str(i)].token_ids, 3, 4]
        result = lab.run_all(engine, [lab.request("turn", turn, seed=10, max_new_tokens=10)])["turn"]
        assert engine.stats().prefill_tokens - before == 3
        true = lab.true_logprobs(lab.model(), turn, result.token_ids)
        assert (torch.tensor(result.logprobs) - true).abs().max() < CLOSE


@pytest.mark.parametrize("fault", ["reads a number", "forgets an input"])
def test_a_model_that_cannot_be_captured_is_served_without_and_said(lab: Any, fault: str, caplog: Any) -> None:
    model, recorded = lab.model(), Recorded()
    engine = lab.engine(model, slots=4, capture=recorded)
    attribute = model.base_model.embed_tokens

    def embed(ids: Tensor) -> Tensor:
        if fault == "reads a number":
            int(ids.max())
            return torch.nn.functional.embedding(ids, attribute.weight)
        return torch.nn.functional.embedding(torch.tensor(ids.numpy().copy()), attribute.weight)

    attribute.forward = embed
    with caplog.at_level(logging.WARNING):
        results = lab.run_all(engine, requests(lab, 6))
    said = [record.message for record in caplog.records if "without graphs" in record.message]
    assert len(said) == 1 and ("a number was read" in said[0] if fault == "reads a number" else "differ" in said[0])
    expected = lab.run_all(lab.engine(lab.model(), slots=4), requests(lab, 6))
    assert {name: result.token_ids for name, result in results.items()} == {n: r.token_ids for n, r in expected.items()}


def test_sizes_are_few_and_none_is_half_as_large_again() -> None:
    assert [padded(count, 20) for count in range(1, 21)] == [1, 2, 3, 4, 6, 6, 8, 8] + [12] * 4 + [16] * 4 + [20] * 4
    assert [padded(width, 272, 64) for width in (1, 64, 65, 100, 129, 193, 257)] == [64, 64, 96, 128, 192, 256, 272]
    for count in range(1, 3000):
        assert count <= padded(count, 1 << 20) < max(1.5 * count, count + 1)


class Pools:
    """The rules of torch's allocator for graphs. Those that live share a pool; to ask for one whose last graph has gone is an
    error (CUDACachingAllocator.cpp: use_count > 0) as long as something is left in it; and what a library first needs of a stream
    while that is captured, it takes from the pool and keeps (CublasHandlePool.cpp)."""

    def __init__(self) -> None:
        self.pools: list[WeakSet[Any]] = []
        self.workspaces: dict[Any, int | None] = {}
        self.capturing: int | None = None
        self.current: Any = SimpleNamespace(wait_stream=lambda other: None)

    def Stream(self, device: Any = None) -> Any:
        return SimpleNamespace(wait_stream=lambda other: None)

    def current_stream(self) -> Any:
        return self.current

    def graph_pool_handle(self) -> int:
        self.pools.append(WeakSet())
        return len(self.pools) - 1

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    @contextmanager
    def graph(self, graph: Any, pool: int | None, capture_error_mode: str, stream: Any = None) -> Iterator[None]:
        new, pool = pool is None, self.graph_pool_handle() if pool is None else pool
        left = pool in self.workspaces.values()
        if not new and left and not self.pools[pool]:
            raise RuntimeError("use_count > 0 INTERNAL ASSERT FAILED")
        self.pools[pool].add(graph)
        graph.pool, self.capturing = lambda: pool, pool
        with self.stream(stream or self):
            yield
        self.capturing = None

    def step(self) -> Tensor:
        self.workspaces.setdefault(id(self.current), self.capturing)
        return torch.zeros(1)


def test_graphs_share_a_pool_as_long_as_one_lives_and_leave_nothing_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that new ones can be captured after all have been forgotten, as when the cache has grown or slept."""
    torchs = Pools()
    for name in ("Stream", "current_stream", "graph_pool_handle", "stream", "graph"):
        monkeypatch.setattr(torch.cuda, name, getattr(torchs, name))
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", type("Graph", (), {"replay": lambda self: None}))
    capture = CudaCapture(torch.device("cuda", 0))
    for _ in range(3):
        replays = [capture(torchs.step) for _ in range(4)]
        living = [pool for pool in torchs.pools if pool]
        assert [len(pool) for pool in living] == [4]
        replays.clear()
        assert not any(torchs.pools)
    assert set(torchs.workspaces.values()) == {None}
