"""At which address a trainer serves weights to explorers that are processes of their own."""

from __future__ import annotations

import socket
from contextlib import suppress
from ipaddress import ip_address

from roll.core.configs.ppo import PPOConfig
from roll.plan.rules.addresses import LOOPBACK, host_and_port
from roll.transports.bucket_server import listener

FIX = "an address of this machine at which explorers reach it, and a port that is free"


def check_serving(config: PPOConfig) -> None:
    """Raises `ValueError` if this machine cannot listen there, or others could not connect."""
    if config.mode != "train" or config.model_update_transport == "checkpoint_dir":
        return
    host, port = served_at(config)
    try:
        with listener(host, port) as opened:
            at = ip_address(opened.getsockname()[0])
    except OSError as error:
        raise ValueError(f"weights cannot be served at {host}{f':{port}' if port else ''}: {error.strerror or error}") from error
    if at.is_loopback and host != "localhost" and not host.startswith(("127.", "::1")):
        raise ValueError(f"{host} is {at} on this machine, which no other reaches: write its address in the network")


def served_at(config: PPOConfig) -> tuple[str, int]:
    """Host and port: `weights_address`, or the address of the interface by which the database is reached."""
    if config.weights_address is not None:
        return host_and_port(config.weights_address)
    from roll.topologies.sql.connecting import servers_of

    for server in servers_of(config.groups_address or ""):
        with suppress(OSError):
            return towards(*server), 0
    return LOOPBACK, 0


def towards(host: str, port: int) -> str:
    """This machine's address as that host sees it; nothing is sent. Raises `OSError`."""
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])
