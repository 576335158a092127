"""Ports for listeners that have to be named before anyone listens."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_ASSIGNED = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 20_000
"""Ray's workers have the ports from 10002 to 19999."""
_ATTEMPTS = 100


def free_port() -> int:
    """A port that no process has now, and that the system will not assign: to connections, and to listeners that ask for any, it
    assigns others. So a process that takes long to start still finds it free, unless one listens there that names its port."""
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
