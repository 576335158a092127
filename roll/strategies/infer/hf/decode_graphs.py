"""Decode steps as graphs: one launch for the layers of a token step, which are thousands of launches otherwise.

A replayed graph works on the memory that it was captured with. So inputs are written into one buffer that stays, rows are padded
to one of a few counts and what attention reads to one of a few widths, new weights are copied into place (`ShadowWeights`), and a
cache that moves ends all graphs. Rows of padding write into a slot behind all others, which nobody reads.

A graph is captured when its sizes first occur, while it shows padding alone; its first real step is then compared with the same
step made without it. What cannot be captured, or is not the same, is said once, and decode steps are made one launch after the
other from then on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol
from weakref import WeakSet

import torch
from torch import Tensor

from roll.plan.memory import padded

TOLERANCE = 0.01
"""Share of the largest entry by which a replayed step may differ from the same without a graph. Bf16 has a step of 0.008; inputs
or weights that a graph does not see change entries by their own size."""

Step = Callable[[], Tensor]


class Capture(Protocol):
    """Makes a graph of a step: calling the result repeats its operations on the memory that they used, and returns its output."""

    def __call__(self, step: Step) -> Step: ...

    def nbytes(self) -> int:
        """Memory that its device has given to this process."""
        ...


class CudaCapture:
    """Graphs by `torch.cuda.CUDAGraph`; all share the memory of their intermediate results, for only one runs at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._graphs: WeakSet[torch.cuda.CUDAGraph] = WeakSet()
        """Those that are not forgotten: torch ends with an error where a pool is asked for whose last graph has gone."""

    def __call__(self, step: Step) -> Step:
        with torch.cuda.device(self._device):
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                # Libraries allocate what they need of a stream at their first call, and keep it: not out of the graphs' pool.
                step()
            torch.cuda.current_stream().wait_stream(self._stream)
            graph, pool = torch.cuda.CUDAGraph(), next((each.pool() for each in self._graphs), None)
            # Other threads may receive weights meanwhile: only this one's mistakes count.
            with torch.cuda.graph(graph, pool=pool, stream=self._stream, capture_error_mode="thread_local"):
                output = step()
        self._graphs.add(graph)

        def replay() -> Tensor:
            graph.replay()
            return output

        return replay

    def nbytes(self) -> int:
        return torch.cuda.memory_reserved(self._device)


class Inputs:
    """Views of the buffer that graphs read: of each row its token, its position and its slot."""

    def __init__(self, rows: Tensor) -> None:
        self.tokens, self.positions, self.slots = rows


class DecodeGraphs:
    def __init__(self, slots: int, device: torch.device, step: Callable[[Inputs, int], Tensor], capture: Capture) -> None:
        """`step`: for inputs [rows] and the width that attention reads; its output's first dimension are rows. Slot number
        `slots` is that of padding."""
        self._slots = slots
        self._step = step
        self._capture: Capture | None = capture
        self._padding = torch.tensor([[0], [0], [slots]], device=device)
        self._buffer = self._padding.repeat(1, slots)
        self._graphs: dict[tuple[int, int], Step] = {}
        self._capacity = 0

    def clear(self) -> None:
        """Gives the graphs' memory back."""
        self._graphs.clear()

    def __call__(self, tokens: Sequence[int], positions: Sequence[int], width: int, capacity: int) -> Tensor | None:
        """The step's output for these tokens of slots 0, 1, ...; None if it has to be made without a graph. `capacity`: tokens
        that the cache holds; it has moved if that is another than before."""
        if self._capture is None:
            return None
        if capacity != self._capacity:
            self.clear()
            self._capacity = capacity
        rows = padded(len(tokens), self._slots)
        captured = self._graphs.get((rows, width))
        if captured is None:
            return self._first(tokens, positions, rows, width)
        self._write(tokens, positions, rows)
        return captured()[: len(tokens)]

    def _first(self, tokens: Sequence[int], positions: Sequence[int], rows: int, width: int) -> Tensor | None:
        """Captures the graph of these sizes and compares it."""
        assert self._capture is not None
        inputs = Inputs(self._buffer[:, :rows])
        began, before = time.perf_counter(), self._capture.nbytes()
        self._buffer.copy_(self._padding.expand_as(self._buffer))
        log = logging.getLogger(__name__)
        try:
            replay = self._capture(lambda: self._step(inputs, width))
        except (RuntimeError, NotImplementedError) as error:
            self._give_up(f"cannot be captured: {' '.join(str(error).split()[:60])}")
            return None
        self._write(tokens, positions, rows)
        found = replay()[: len(tokens)]
        expected = self._step(inputs, width)[: len(tokens)]  # after it: the cache is left as this one writes it
        off, largest = (float(each.abs().max()) for each in (found - expected, expected))
        if off > TOLERANCE * largest:
            self._give_up(f"differ from the graph's by {off:.2g}, of at most {largest:.2g}")
            return expected
        self._graphs[rows, width] = replay
        took = f"{time.perf_counter() - began:.2f} s, {(self._capture.nbytes() - before) / 2**20:,.0f} MiB"
        log.info("decode steps of up to %d rows (mask of %d tokens) are one graph (%s)", rows, width, took)
        return expected

    def _write(self, tokens: Sequence[int], positions: Sequence[int], rows: int) -> None:
        """One copy to the device."""
        padding = rows - len(tokens)
        slots = [*range(len(tokens)), *[self._slots] * padding]
        given = torch.tensor([[*tokens, *[0] * padding], [*positions, *[0] * padding], slots])
        self._buffer[:, :rows].copy_(given)

    def _give_up(self, reason: str) -> None:
        self._capture = None
        self.clear()
        logging.getLogger(__name__).warning("decode steps are made without graphs: the steps of this model %s", reason)
