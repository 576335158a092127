"""Buckets from one process to several together: gloo in host memory, or NCCL between devices, in process groups of their own.

A group is joined once and serves all updates between the same processes. An update that fails ends its group, and what is left
of it disturbs no later one. Gloo does not notify every member when another one is gone, and NCCL blocks where a member does not
come: a member that receives nothing gives up after a time limit. No member is done before all have everything, for some hand on
to others what they receive. NCCL is experimental: it was not run on a GPU; order, failures and time limits are tested with a
group that stands for NCCL's.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]

from roll.core.errors import BroadcastError
from roll.core.weights.bucket import Bucket
from roll.core.weights.layout import as_bytes, lay_out
from roll.core.weights.store import BroadcastMember
from roll.platform.ports import join_store, open_store
from roll.transports.packed import read_layout

CHECKSUM = "checksum"
UNLIMITED, ON_ERROR, LEAVE_IT = timedelta(days=1), "TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"
"""By default torch's watchdog over NCCL ends the process when its time limit is past, or NCCL reports an error: a trainer's,
because of a dead engine."""


def join_group(member: BroadcastMember, store: PrefixStore) -> DeviceGroup:
    """Blocks until all members do, or with NCCL until the first exchange. `store`: the group's part of the rendezvous."""
    if member.device:
        return nccl_group(store, member.rank, member.size, torch.device(member.device), member.timeout_s)
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout, options._devices = timedelta(seconds=member.timeout_s), [_device(member)]
    made: Any = ProcessGroupGloo(store, member.rank, member.size, options)
    return DeviceGroup(made, torch.device("cpu"), member.timeout_s)


def _device(member: BroadcastMember) -> Any:
    """Listens where this process reaches the rendezvous, unless GLOO_SOCKET_IFNAME names an interface."""
    if interface := os.environ.get("GLOO_SOCKET_IFNAME"):
        return ProcessGroupGloo.create_device(interface=interface)
    with socket.create_connection((member.address, member.port), member.timeout_s) as connection:
        return ProcessGroupGloo.create_device(hostname=connection.getsockname()[0])


class Rendezvous:
    """The store on `address` at which the members of broadcast groups find each other, and agree that they are done."""

    def __init__(self, address: str, timeout_s: float) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._store = open_store(address, 0, timedelta(seconds=timeout_s))

    def members(self, group: str, devices: Sequence[str], sender: int = 0) -> list[BroadcastMember]:
        """Returns the members of a new group, whose name no other group had; the sender is the first. `devices`: of each, as it
        counts its own; none: host memory."""
        whose, size = (self._address, self._store.port, group, sender), len(devices)
        return [BroadcastMember(*whose, rank, size, self._timeout_s, device) for rank, device in enumerate(devices)]


@dataclass(slots=True)
class JoinedGroup:
    """A member's end of a group."""

    member: BroadcastMember
    exchanges: DeviceGroup
    updates: int = 0
    """Updates that this member has had."""

    def finish(self, store: PrefixStore) -> None:
        """Returns when all members have everything of this update."""
        self.updates += 1
        if store.add("done", 1) == self.updates * self.member.size:
            store.delete_key(f"all are done {self.updates - 1}")  # for which nobody waits who has come here
            store.set(f"all are done {self.updates}", "")
        store.wait([f"all are done {self.updates}"])


class BroadcastGroups:
    """The groups that a process is a member of: of each sender the last, as long as no update fails.

    An update takes its group and a connection to itself, and gives them back when it is whole: one that hangs holds up no other.
    """

    def __init__(self) -> None:
        self._joined: dict[int, JoinedGroup] = {}
        self._connections: dict[tuple[str, int], TCPStore] = {}
        """Connections to a rendezvous, on which one call at a time can wait."""

    def send(self, member: BroadcastMember, buckets: Iterable[Bucket]) -> None:
        """Sends the buckets to all other members; returns when they have the last one. Blocks. Raises `BroadcastError`."""
        with self._update(member) as exchange:
            for bucket in buckets:
                header, payload = _pack(bucket)
                exchange(torch.tensor([header.numel(), payload.numel()]))
                exchange(header)
                exchange(payload)

    def receive(self, member: BroadcastMember, count: int) -> Iterator[Bucket]:
        """Yields `count` buckets as they arrive, not verified yet, and ends when all members have theirs. Blocks. Raises
        `BroadcastError`."""
        with self._update(member) as exchange:
            for _ in range(count):
                header_bytes, payload_bytes = exchange(torch.zeros(2, dtype=torch.int64)).tolist()
                header = exchange(torch.empty(header_bytes, dtype=torch.uint8))
                yield _unpack(header, exchange(torch.empty(payload_bytes, dtype=torch.uint8)))

    @contextmanager
    def _update(self, member: BroadcastMember) -> Iterator[Callable[[Tensor], Tensor]]:
        where = member.address, member.port
        group, connection = self._joined.pop(member.sender, None), self._connections.pop(where, None)
        try:
            if connection is None:
                connection = join_store(*where, timedelta(seconds=member.timeout_s))
            store = PrefixStore(member.group, connection)
            if group is not None and group.member != member:
                group.exchanges.abort()
                group = None
            if group is None:
                group = JoinedGroup(member, join_group(member, store))
            yield group.exchanges.exchange
            group.finish(store)
        except (RuntimeError, OSError) as error:
            if group is not None:
                group.exchanges.abort()
            message = f"weight broadcast {member.group}, member {member.rank} of {member.size}: {error}"
            raise BroadcastError(message) from error
        self._joined[member.sender], self._connections[where] = group, connection


class Group(Protocol):
    def broadcast(self, tensor: Tensor, root: int) -> Any: ...

    def abort(self) -> None: ...


class DeviceGroup:
    """Each exchange runs on a thread of its own, for it blocks where a member does not come: the caller gives up in time, and
    aborts the group."""

    def __init__(self, group: Group, device: torch.device, timeout_s: float) -> None:
        self._group, self._device, self._timeout_s = group, device, timeout_s

    def exchange(self, tensor: Tensor) -> Tensor:
        """Returns the first member's tensor, on the device. Raises `RuntimeError`."""
        arrived: list[Tensor | RuntimeError] = []

        def run() -> None:
            try:
                arrived.append(self._broadcast(tensor))
            except RuntimeError as error:
                arrived.append(error)

        thread = threading.Thread(target=run, name="weights", daemon=True)
        thread.start()
        thread.join(self._timeout_s)
        result = arrived[0] if arrived else RuntimeError(f"nothing for {self._timeout_s:g} s")
        if isinstance(result, RuntimeError):
            raise result
        return result

    def abort(self) -> None:
        """Ends the exchange on the device. Does not wait for that, which may block, too."""
        threading.Thread(target=self._group.abort, name="weights", daemon=True).start()

    def _broadcast(self, tensor: Tensor) -> Tensor:
        # Not in the default stream, where it would wait for all that a training step or a token step has enqueued.
        with _own_stream(self._device):
            there = tensor.to(self._device)
            self._group.broadcast(there, 0).wait()
            if self._device.type == "cuda":
                torch.cuda.current_stream(self._device).synchronize()
                there.record_stream(torch.cuda.default_stream(self._device))  # where it is read, and must not be reused before
        return there


def nccl_group(store: object, rank: int, size: int, device: torch.device, timeout_s: float) -> DeviceGroup:
    """Makes a group that is joined in the first exchange. Raises `RuntimeError` where torch has no NCCL."""
    import torch.distributed as dist

    if not dist.is_nccl_available():
        raise RuntimeError("torch is built without NCCL")
    made: Any = dist.ProcessGroupNCCL
    options = made.Options()
    options._timeout = UNLIMITED
    others = os.environ.get(ON_ERROR)
    os.environ[ON_ERROR] = LEAVE_IT  # which the group reads when it is made: a group of the training ends as before
    try:
        return DeviceGroup(made(store, rank, size, options), device, timeout_s)
    finally:
        os.environ.pop(ON_ERROR)
        if others is not None:
            os.environ[ON_ERROR] = others


def _own_stream(device: torch.device) -> AbstractContextManager[object]:
    if device.type != "cuda":
        return nullcontext()
    torch.cuda.set_device(device)  # of this thread
    return torch.cuda.stream(torch.cuda.Stream(device))


def _pack(bucket: Bucket) -> tuple[Tensor, Tensor]:
    """Returns bytes that describe the tensors, and their own."""
    layout = lay_out(bucket.tensors, {CHECKSUM: str(bucket.checksum)})
    payload, end = torch.empty(layout.nbytes, dtype=torch.uint8), 0
    for raw in map(as_bytes, layout.tensors):
        payload[end : end + raw.numel()] = raw
        end += raw.numel()
    return torch.frombuffer(bytearray(layout.header), dtype=torch.uint8), payload


def _unpack(header: Tensor, payload: Tensor) -> Bucket:
    tensors, metadata = read_layout(header.cpu().numpy().tobytes(), payload)
    return Bucket(tensors, int(metadata[CHECKSUM]))
