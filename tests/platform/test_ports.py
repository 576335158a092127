import socket
from datetime import timedelta

import pytest

from roll.platform import ports
from roll.platform.ports import join_store, open_store

TIMEOUT = timedelta(seconds=5)


def test_a_port_can_be_listened_on_and_is_not_one_that_the_system_assigns(tmp_path, monkeypatch):
    assigned = tmp_path / "range"
    assigned.write_text("30000\t60999\n")
    monkeypatch.setattr(ports, "_ASSIGNED", assigned)
    for _ in range(20):
        port = ports.free_port()
        assert 20000 <= port < 30000
        socket.create_server(("", port)).close()


def test_a_port_that_is_taken_is_not_given_again(tmp_path, monkeypatch):
    """A range of one port: while someone listens there, another one has to come from elsewhere."""
    assigned = tmp_path / "range"
    monkeypatch.setattr(ports, "_ASSIGNED", assigned)
    assigned.write_text("60999 60999\n")
    taken = ports.free_port()
    monkeypatch.setattr(ports, "_LOWEST", taken)
    assigned.write_text(f"{taken + 1} 60999\n")
    assert ports.free_port() == taken
    with socket.create_server(("", taken)):
        assert ports.free_port() != taken


def test_where_the_system_assigns_all_ports_any_free_one_will_do(tmp_path, monkeypatch):
    assigned = tmp_path / "range"
    assigned.write_text("1024 65535\n")
    monkeypatch.setattr(ports, "_ASSIGNED", assigned)
    socket.create_server(("", ports.free_port())).close()


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
