"""Listening places of a run's processes: ports that have to be named beforehand, and the rendezvous of processes that compute
together.

The rendezvous is torch's key-value store, on one address and no other: it has no authentication, and torch's own way to start one
listens on all of a machine's interfaces.
"""

from __future__ import annotations

import random
import socket
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # processes that only ask for a port need no torch
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

_ASSIGNED = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 20_000
"""Ray's workers have the ports from 10002 to 19999."""
_ATTEMPTS = 100


def free_port() -> int:
    """Returns a port that no process has now, and that the system assigns neither to connections nor to listeners that ask for
    any. So a process that takes long to start still finds it free, unless one listens there that names its port."""
    try:
        first_assigned = int(_ASSIGNED.read_text().split()[0])
    except (OSError, ValueError):  # not Linux
        first_assigned = 32_768
    draw = random.SystemRandom()
    for _ in range(_ATTEMPTS if first_assigned > _LOWEST else 0):
        port = draw.randrange(_LOWEST, first_assigned)
        if _is_free(port):
            return port
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def check_listening(host: str, port: int) -> None:
    """Raises `ValueError` if this process cannot listen there."""
    try:
        socket.create_server((host, port), family=family_of(host)).close()
    except OSError as error:
        raise ValueError(f"nothing can listen at {host}, port {port}: {error.strerror or error}") from error


def family_of(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def open_store(address: str, port: int, timeout: timedelta) -> TCPStore:
    """Opens a store. Port 0 means any free port, which `store.port` then names. `timeout`: the limit for a wait for a key."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    listener = socket.create_server((address, port), family=family_of(address))
    port = int(listener.getsockname()[1])
    # torch closes the socket it is given.
    return TCPStore(address, port, is_master=True, wait_for_workers=False, timeout=timeout, master_listen_fd=listener.detach())


def join_store(address: str, port: int, timeout: timedelta) -> TCPStore:
    """Joins the store that another process has opened, or opens within the timeout."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    return TCPStore(address, port, is_master=False, timeout=timeout)
