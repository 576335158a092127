import socket
from datetime import timedelta

import pytest

from roll.distributed.rendezvous import join_store, open_store

TIMEOUT = timedelta(seconds=5)


def test_processes_meet_on_one_address_and_nobody_comes_in_by_another():
    store = open_store("127.0.0.1", 0, TIMEOUT)
    join_store("127.0.0.1", store.port, TIMEOUT).set("here", "rank 1")
    assert store.get("here") == b"rank 1"
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.2", store.port), timeout=5)


def test_a_port_that_is_taken_is_an_error_at_once():
    store = open_store("127.0.0.1", 0, TIMEOUT)
    with pytest.raises(OSError, match="in use"):
        open_store("127.0.0.1", store.port, TIMEOUT)
