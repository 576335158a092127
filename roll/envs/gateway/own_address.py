"""Finds the address at which the gateway of this machine listens. On several machines `gateway_host` can be no single address."""

from __future__ import annotations

import ipaddress
import os
import socket

import psutil

from roll.core.configs.problems import ConfigError, Problem
from roll.platform.ports import family_of

FIX = "a network in which each machine has an address, such as 10.0.0.0/24"


def own_address(host: str) -> str:
    """Returns the address that `host` (gateway_host) names here: itself, or that of this machine in the network. Raises
    `ConfigError` if this machine has none."""
    if "/" not in host:
        try:
            socket.create_server((host, 0), family=family_of(host)).close()
        except OSError as error:
            message = f"is no address of {socket.gethostname()}, where programs are played ({os.strerror(error.errno or 0)})"
            raise ConfigError([Problem("gateway_host", host, message, FIX)]) from error
        return host
    network = ipaddress.ip_network(host, strict=False)
    found = [each for addresses in psutil.net_if_addrs().values() for each in addresses]
    here: list[str] = sorted(
        {each.address.partition("%")[0] for each in found if each.family in (socket.AF_INET, socket.AF_INET6)}
    )
    inside = [address for address in here if ipaddress.ip_address(address) in network]
    if not inside:
        message = f"has no address of {socket.gethostname()}, where programs are played: it has {', '.join(here)}"
        raise ConfigError([Problem("gateway_host", host, message, FIX)])
    return inside[0]
