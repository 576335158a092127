"""A trainer's weights become buckets of bounded size, each rank's share of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from roll.core.weights.bucket import Bucket, Put, checksum

Named = Iterable[tuple[str, Tensor]]


def make_buckets(
    named: Named,
    bucket_bytes: int,
    rank: int = 0,
    ranks: int = 1,
    copies: PinnedCopies | None = None,
    borrow: bool = False,
    place: Put | None = None,
) -> Iterator[Bucket]:
    """Groups tensors, in their order, into buckets of at most `bucket_bytes` (a larger tensor gets its own bucket).

    All `ranks` iterate over the same tensors; each gets every `ranks`-th bucket, beginning with the one of its own number, and
    keeps nothing of the others. If the tensors come by collectives, a rank that hashes a bucket would delay all others; so each
    rank yields its bucket when all have theirs, and they hash in parallel. Tensors are copied to the CPU, so training does not
    change a bucket. `copies`: copies them from an accelerator; each bucket is then yielded when the copies of the next one are
    under way, and no more than two exist unless the caller keeps them. `borrow`: lent, until the next, if on the CPU. `place`:
    returns each tensor where it stays on its device until the next bucket."""
    if place is not None:
        for tensors in _shares(named, bucket_bytes, rank, ranks, place):
            if copies:
                tensors = {name: copies.copy(tensor) for name, tensor in tensors.items()}
                copies.mark().synchronize()
            yield Bucket(tensors, checksum(tensors))
        return
    copy = copies.copy if copies else lambda tensor: tensor.detach().to("cpu", copy=not borrow).contiguous()
    shares = _shares(named, bucket_bytes, rank, ranks, copy)
    for tensors in shares if copies is None else _one_ahead(shares, copies):
        yield Bucket(tensors, checksum(tensors))
        del tensors


def _shares(
    named: Named, bucket_bytes: int, rank: int, ranks: int, copy: Callable[[Tensor], Tensor]
) -> Iterator[dict[str, Tensor]]:
    """Yields this rank's tensors of each round over the ranks, at the end of the round."""
    own: dict[str, Tensor] = {}
    index = count = size = 0
    for name, tensor in named:
        nbytes = tensor.numel() * tensor.element_size()
        if count and size + nbytes > bucket_bytes:
            index, count, size = index + 1, 0, 0
            if own and index % ranks == 0:
                yield own
                own = {}
        if index % ranks == rank:
            own[name] = copy(tensor)
        count, size = count + 1, size + nbytes
    if own:
        yield own


def _one_ahead(shares: Iterator[dict[str, Tensor]], copies: PinnedCopies) -> Iterator[dict[str, Tensor]]:
    """Yields each share, copied, after the copies of the next one have begun."""
    waiting: list[tuple[torch.cuda.Event, dict[str, Tensor]]] = []
    for share in shares:
        waiting.append((copies.mark(), share))
        del share
        if len(waiting) > 1:
            yield _copied(*waiting.pop(0))
    for last in waiting:
        yield _copied(*last)


def _copied(mark: torch.cuda.Event, share: dict[str, Tensor]) -> dict[str, Tensor]:
    mark.synchronize()
    return share


class PinnedCopies:
    """Copies tensors into page-locked memory by the device's copy engine. torch's allocator reuses a block when its last tensor
    is gone and the copy into it has ended; so buckets that are handed over one by one share a few blocks. The copies run in the
    device's current stream, so they are ordered with the kernels that compute and overwrite the tensors, without waiting."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def copy(self, tensor: Tensor) -> Tensor:
        """Begins a contiguous copy in its own host memory, which may be read when the next mark is reached."""
        pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return pinned.copy_(tensor.detach(), non_blocking=True)

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event


def host_copies(device: torch.device) -> PinnedCopies | None:
    """Returns None if tensors are in host memory already."""
    return PinnedCopies(device) if device.type == "cuda" else None
