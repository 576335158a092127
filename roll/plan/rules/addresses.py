"""Addresses that users write."""

from __future__ import annotations

LOOPBACK = "127.0.0.1"
HIGHEST = 65_535
FREE = "an address of this machine and a port that is free; port 0: any"


def host_and_port(address: str, lowest: int = 1) -> tuple[str, int]:
    """Parses `host`, `host:port`, `[fd00::1]:port` or an IPv6 address; port 0: the system chooses. `lowest`: the least port that
    may be written. Raises `ValueError`."""
    host, port = address, ""
    if address.startswith("["):
        host, _, rest = address[1:].partition("]")
        if rest and not rest.startswith(":"):
            raise ValueError(f"{rest} is no port")
        port = rest[1:]
    elif address.count(":") == 1:
        host, _, port = address.partition(":")
    elif not address:
        raise ValueError("it is empty")
    if not host or (address != host and ":" in address.rpartition("]")[2] and not port):
        raise ValueError("a host and a port are host:port")
    if port and not (port.isascii() and port.isdigit() and lowest <= int(port) <= HIGHEST):
        raise ValueError(f"{port} is no port: write one from {lowest} to {HIGHEST}")
    return host, int(port or 0)


def listening_at(address: str) -> tuple[str, int]:
    """As `host_and_port`, and `:port` of this machine alone; port 0 may be written. Raises `ValueError`."""
    alone = address.startswith(":") and address[1:].isdigit()
    return host_and_port(LOOPBACK + address if alone else address, lowest=0)
