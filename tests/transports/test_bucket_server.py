"""Buckets over TCP: who may have them, and what a reader is told when something is wrong."""

import logging
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace

import pytest
import torch

from roll.core.errors import Unreachable
from roll.transports import bucket_server
from roll.transports.bucket_server import SECRET, BucketServer, ServedBucket, ServerAddress
from roll.transports.buckets import make_buckets


class Shelf:
    """One bucket, with tensors of every size of number."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        tensors = {
            "flag": torch.tensor([True, False, True]),
            "half": torch.randn(5, generator=generator).to(torch.bfloat16),
            "Größe": torch.randn(64, 33, generator=generator, dtype=torch.float64),
            "none": torch.empty(0, 7),
            "scalar": torch.tensor(3),
        }
        [self.held] = make_buckets(tensors.items(), 1 << 20)

    def find(self, version, number):
        return self.held if (version, number) == (7, 0) else None


@pytest.fixture
def shelf():
    return Shelf()


@pytest.fixture
def server(shelf):
    server = BucketServer("127.0.0.1", shelf.find)
    yield server
    server.close()


@pytest.fixture
def served(server, shelf):
    return ServedBucket(server.endpoint, 7, 0, tuple(shelf.held.tensors), shelf.held.checksum, shelf.held.nbytes)


def test_the_very_bits_arrive_under_their_names(served, shelf, monkeypatch):
    monkeypatch.setattr(bucket_server, "PIECE", 100)
    bucket = served.read()
    bucket.verify()
    assert list(bucket.tensors) == list(shelf.held.tensors)
    for name, tensor in shelf.held.tensors.items():
        assert bucket.tensors[name].dtype == tensor.dtype and torch.equal(bucket.tensors[name], tensor)


def test_damaged_bytes_are_found(served, shelf):
    shelf.held.tensors["Größe"][0, 0] += 1
    with pytest.raises(ValueError, match="corrupt"):
        served.read().verify()


def test_who_has_another_key_gets_nothing_and_is_mentioned(served, caplog):
    stranger = replace(served, endpoint=replace(served.endpoint, key="0" * 64))
    with caplog.at_level(logging.WARNING), pytest.raises(Unreachable, match="another key"):
        stranger.read()
    assert "without the run's key" in caplog.text
    served.read().verify()


def test_a_proof_is_of_no_use_a_second_time(server, served):
    """Somebody who has read the whole exchange sends it again."""
    with socket.create_connection((server.endpoint.host, server.endpoint.port), 5) as connection:
        challenge, asked = connection.recv(SECRET), struct.pack("<qq", 7, 0)
        said = bytes(SECRET) + server.endpoint.prove(challenge, asked) + asked
        connection.sendall(said)
        assert connection.recv(SECRET, socket.MSG_WAITALL) and any(connection.recv(16, socket.MSG_WAITALL))
    with socket.create_connection((server.endpoint.host, server.endpoint.port), 5) as connection:
        connection.recv(SECRET)
        connection.sendall(said)
        assert connection.recv(SECRET, socket.MSG_WAITALL)
        assert connection.recv(1000) == bytes(16), "there is nothing for you"
        assert connection.recv(1) == b""


@pytest.mark.parametrize(("version", "number"), [(8, 0), (7, 1), (7, -1)])
def test_a_bucket_that_is_not_there_may_come(served, version, number):
    with pytest.raises(Unreachable, match=f"bucket {number} of version {version} cannot be fetched .* does not have it"):
        replace(served, version=version, number=number).read()


def test_other_tensors_are_refused(served):
    with pytest.raises(ValueError, match="instead of"):
        replace(served, names=("flag",)).read()


def test_a_server_that_ends_on_the_way_is_unreachable(served, server, monkeypatch):
    """So is one that nobody finds."""

    class Torn(bucket_server._Request):
        def _answer(self, connection):
            sent = connection.sendall
            total = [0]

            class Half:
                def __getattr__(self, name):
                    return getattr(connection, name)

                def sendall(self, data):
                    total[0] += len(data)
                    if total[0] > 10_000:
                        raise BrokenPipeError
                    sent(data)

            super()._answer(Half())

    monkeypatch.setattr(server, "RequestHandlerClass", Torn)
    with pytest.raises(Unreachable, match="ended after"):
        served.read()
    server.close()
    with pytest.raises(Unreachable, match="refused"):
        served.read()


def test_a_server_that_says_nothing_is_unreachable_in_time(served, monkeypatch):
    monkeypatch.setattr(bucket_server, "TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = replace(served.endpoint, port=silent.getsockname()[1])
        with pytest.raises(Unreachable, match="timed out; does a firewall drop"):
            replace(served, endpoint=endpoint).read()


def test_the_key_lies_in_a_file_for_its_owner_and_is_not_shown(server, tmp_path):
    path = tmp_path / "server.json"
    path.write_text("old, and for all to read")
    server.endpoint.write(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert ServerAddress.read(path) == server.endpoint and server.endpoint.key not in repr(server.endpoint)
    with pytest.raises(Unreachable, match="no trainer serves"):
        ServerAddress.read(tmp_path / "none.json")


def test_an_address_of_another_machine_is_refused(shelf):
    with pytest.raises(OSError, match="assign requested address"):
        BucketServer("192.0.2.1", shelf.find)


def server_threads():
    return [thread for thread in threading.enumerate() if "process_request_thread" in thread.name]


def is_ended(connection):
    """Whether the server has closed it; the challenge, which it sent before, is read."""
    connection.settimeout(10)
    with suppress(ConnectionError):
        while connection.recv(SECRET):
            pass
    return True


def test_idle_connections_have_few_threads_and_the_oldest_make_room_for_who_has_the_key(server, served, monkeypatch, caplog):
    monkeypatch.setattr(bucket_server, "MOST_STRANGERS", 8)
    monkeypatch.setattr(bucket_server, "GRACE_S", 0.0)
    address = server.endpoint.host, server.endpoint.port
    with ExitStack() as stack, caplog.at_level(logging.WARNING):
        idle = []
        for _ in range(60):
            idle.append(stack.enter_context(socket.create_connection(address, 5)))
            assert idle[-1].recv(SECRET)
        assert all(is_ended(connection) for connection in idle[:-8])
        for _ in range(3):
            served.read().verify()
        assert len(server_threads()) <= 10
    warnings = [record for record in caplog.records if "without the run's key" in record.getMessage()]
    assert len(warnings) == 1, "many refusals, one warning"


def test_a_burst_of_readers_is_served_in_turn(server, served, monkeypatch):
    monkeypatch.setattr(bucket_server, "MOST_STRANGERS", 2)
    with ThreadPoolExecutor(12) as readers:
        for bucket in readers.map(lambda _: served.read(), range(48)):
            bucket.verify()


def test_who_says_a_byte_now_and_then_has_one_deadline_for_all_of_them(server, monkeypatch):
    monkeypatch.setattr(bucket_server, "HANDSHAKE_S", 0.5)
    with socket.create_connection((server.endpoint.host, server.endpoint.port), 5) as connection:
        assert connection.recv(SECRET)
        connection.settimeout(0.1)
        said = 0
        with suppress(ConnectionError):
            while said < 80:
                connection.sendall(b"x")
                said += 1
                with suppress(TimeoutError):
                    if not connection.recv(1):
                        break
        assert 1 < said < 80


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", "\udcff", '{"host": "h"}', '{"host": "h", "port": "1", "key": "k"}', '{"host": 1, "port": 1, "key": "k"}'],
)
def test_an_address_of_another_shape_is_said_to_be_one(tmp_path, text):
    path = tmp_path / "server.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=r"server\.json is not an object with host, port, key"):
        ServerAddress.read(path)
