"""Buckets from one process to several at once: gloo in host memory, or NCCL between devices (`device_group`), in a process group
of its own that lives for one update.

Nothing is left when the update is over or has failed, so an engine that dies breaks this one broadcast and no later one. Gloo
does not notify every member when another one is gone: a member that receives nothing gives up after the group's time limit.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import PrefixStore, ProcessGroupGloo  # type: ignore[attr-defined]

from roll.distributed.rendezvous import join_store, open_store
from roll.weights.bucket import Bucket, as_bytes
from roll.weights.device_group import nccl_group
from roll.weights.layout import lay_out, read_layout

CHECKSUM = "checksum"


class BroadcastError(RuntimeError):
    """A member is gone, or too slow. The others have some of the buckets."""


class Rendezvous:
    """The store on `address` at which the members of broadcast groups find each other."""

    def __init__(self, address: str, timeout_s: float) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._store = open_store(address, 0, timedelta(seconds=timeout_s))

    def members(self, group: str, size: int, device: str = "") -> list[Member]:
        """The members of a new group, whose name no other group had; the sender is the first."""
        return [Member(self._address, self._store.port, group, rank, size, self._timeout_s, device) for rank in range(size)]


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a broadcast group; a plain value, which the member's process uses to join."""

    address: str
    port: int
    group: str
    rank: int
    size: int
    timeout_s: float
    """The limit for all members to join, and for each of their exchanges."""
    device: str = ""
    """torch's name for the device that each member exchanges through, as it counts its own; none: host memory."""

    def send(self, buckets: Iterable[Bucket]) -> None:
        """Sends the buckets to all other members; returns when the last bucket is on its way. Blocks. Raises `BroadcastError`."""
        group = self._join()
        for bucket in buckets:
            header, payload = _pack(bucket)
            self._exchange(group, torch.tensor([header.numel(), payload.numel()]))
            self._exchange(group, header)
            self._exchange(group, payload)

    def receive(self, count: int) -> Iterator[Bucket]:
        """Yields `count` buckets as they arrive, not verified yet. Blocks. Raises `BroadcastError`."""
        group = self._join()
        for _ in range(count):
            header_bytes, payload_bytes = self._exchange(group, torch.zeros(2, dtype=torch.int64)).tolist()
            header = self._exchange(group, torch.empty(header_bytes, dtype=torch.uint8))
            yield _unpack(header, self._exchange(group, torch.empty(payload_bytes, dtype=torch.uint8)))

    def _join(self) -> object:
        timeout = timedelta(seconds=self.timeout_s)
        try:
            store = PrefixStore(self.group, join_store(self.address, self.port, timeout))
            if self.device:
                return nccl_group(store, self.rank, self.size, torch.device(self.device), self.timeout_s)
            options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
            options._timeout, options._devices = timeout, [self._device()]
            return _HostGroup(ProcessGroupGloo(store, self.rank, self.size, options))
        except (RuntimeError, OSError) as error:
            raise self._broken(error) from error

    def _device(self) -> Any:
        """Listens where this process reaches the rendezvous, unless GLOO_SOCKET_IFNAME names an interface."""
        if interface := os.environ.get("GLOO_SOCKET_IFNAME"):
            return ProcessGroupGloo.create_device(interface=interface)
        with socket.create_connection((self.address, self.port), self.timeout_s) as connection:
            return ProcessGroupGloo.create_device(hostname=connection.getsockname()[0])

    def _exchange(self, group: Any, tensor: Tensor) -> Tensor:
        try:
            there: Tensor = group.exchange(tensor)
        except RuntimeError as error:
            raise self._broken(error) from error
        return there

    def _broken(self, error: Exception) -> BroadcastError:
        return BroadcastError(f"weight broadcast {self.group}, member {self.rank} of {self.size}: {error}")


@dataclass(frozen=True, slots=True)
class _HostGroup:
    group: Any

    def exchange(self, tensor: Tensor) -> Tensor:
        self.group.broadcast(tensor, 0).wait()
        return tensor


def _pack(bucket: Bucket) -> tuple[Tensor, Tensor]:
    """Bytes that say what the tensors are, and their own."""
    layout = lay_out(bucket.tensors, {CHECKSUM: str(bucket.checksum)})
    payload, end = torch.empty(layout.nbytes, dtype=torch.uint8), 0
    for raw in map(as_bytes, layout.tensors):
        payload[end : end + raw.numel()] = raw
        end += raw.numel()
    return torch.frombuffer(bytearray(layout.header), dtype=torch.uint8), payload


def _unpack(header: Tensor, payload: Tensor) -> Bucket:
    tensors, metadata = read_layout(header.cpu().numpy().tobytes(), payload)
    return Bucket(tensors, int(metadata[CHECKSUM]))
