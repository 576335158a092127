"""The rendezvous of processes that compute together: torch's key-value store, listening on one address and no other.

It has no authentication, and torch's own way to start one listens on all of a machine's interfaces.
"""

from __future__ import annotations

import socket
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]


def open_store(address: str, port: int, timeout: timedelta) -> TCPStore:
    """Opens a store. Port 0 means any free port, which `store.port` then names. `timeout`: the limit for a wait for a key."""
    listener = socket.create_server((address, port))
    port = int(listener.getsockname()[1])
    # torch closes the socket it is given.
    return TCPStore(address, port, is_master=True, wait_for_workers=False, timeout=timeout, master_listen_fd=listener.detach())


def join_store(address: str, port: int, timeout: timedelta) -> TCPStore:
    """Joins the store that another process has opened, or opens within the timeout."""
    return TCPStore(address, port, is_master=False, timeout=timeout)
