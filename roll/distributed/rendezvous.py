"""Where processes that compute together find each other: torch's key-value store, listening on one address and no other.

It has no authentication, and torch's own way to start one listens on all of a machine's interfaces.
"""

from __future__ import annotations

import socket
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]


def open_store(address: str, port: int, timeout: timedelta) -> TCPStore:
    """Port 0: any that is free, then `store.port`. `timeout`: for whoever waits for a key."""
    listener = socket.create_server((address, port))
    port = int(listener.getsockname()[1])
    # torch closes the socket it is given.
    return TCPStore(address, port, is_master=True, wait_for_workers=False, timeout=timeout, master_listen_fd=listener.detach())


def join_store(address: str, port: int, timeout: timedelta) -> TCPStore:
    """The store that another process opened, or will have opened within the time."""
    return TCPStore(address, port, is_master=False, timeout=timeout)
