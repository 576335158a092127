"""Where a trainer serves weights: as written, or where the database is reached; what cannot work is said before it starts."""

import json
import socket
from types import SimpleNamespace

import pytest

from roll.core.distributed import processes
from roll.core.weights.transport import followed_weights, published_weights
from roll.plan.rules.addresses import host_and_port
from roll.platform.local_backend import LocalBackend
from roll.topologies import serving
from roll.topologies.serving import check_serving, served_at
from roll.transports.bucket_server import ServerAddress


def config(tmp_path=None, **given):
    known = {"mode": "train", "model_update_transport": "object_store", "weights_address": None, "weight_anchor_interval": 1}
    known |= {"groups_address": "sqlite:///g.db", "peer_timeout": 60.0, "shared_dir": str(tmp_path)}
    return SimpleNamespace(**known | given)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("h0", ("h0", 0)),
        ("h0:7701", ("h0", 7701)),
        ("10.0.0.1:80", ("10.0.0.1", 80)),
        ("fd77::a", ("fd77::a", 0)),
        ("[fd77::a]", ("fd77::a", 0)),
        ("[fd77::a]:65535", ("fd77::a", 65535)),
    ],
)
def test_an_address_is_a_host_and_perhaps_a_port(text, expected):
    assert host_and_port(text) == expected


@pytest.mark.parametrize(
    "text", ["", "h0:", "h0:0", "h0:65536", "h0:http", ":80", "[fd77::a]80", "[fd77::a]:", "h0:-1", "h0:\u0663"]
)
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ValueError, match=r".+"):
        host_and_port(text)


def test_nothing_written_means_the_interface_by_which_the_database_is_reached():
    here = socket.gethostbyname(socket.gethostname())
    for server in ("127.0.0.1", here):
        assert served_at(config(groups_address=f"postgresql+psycopg://me@{server}:5432/run")) == (server, 0)
    for address in ("sqlite:///g.db", "postgresql+psycopg://me@/run?host=/run/postgresql", "postgresql+psycopg:///run"):
        assert served_at(config(groups_address=address)) == ("127.0.0.1", 0)
    two = "postgresql+psycopg://me@does-not-exist.invalid:5432,127.0.0.1:5433/run"
    assert served_at(config(groups_address=two)) == ("127.0.0.1", 0)
    assert served_at(config(weights_address="h0:7701")) == ("h0", 7701)


def test_an_address_at_which_nobody_can_be_served_is_refused(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=rf"cannot be served at 127\.0\.0\.1:{port}: Address already in use"):
            check_serving(config(weights_address=f"127.0.0.1:{port}"))
    check_serving(config(weights_address=f"127.0.0.1:{port}"))
    with pytest.raises(ValueError, match=r"cannot be served at 192\.0\.2\.1: Cannot assign requested address"):
        check_serving(config(weights_address="192.0.2.1"))
    with pytest.raises(ValueError, match=r"at no-such-host\.invalid: "):
        check_serving(config(weights_address="no-such-host.invalid"))
    monkeypatch.setattr(serving, "listener", lambda host, port: socket.create_server(("127.0.1.1", 0)))
    with pytest.raises(ValueError, match=r"h0 is 127\.0\.1\.1 on this machine, which no other reaches"):
        check_serving(config(weights_address="h0"))


def test_a_trainer_that_is_started_again_serves_at_the_same_port(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for _ in range(2):
        store = published_weights(config(tmp_path), LocalBackend(), -1, "5eed", "127.0.0.1", port)
        endpoint = ServerAddress.read(tmp_path / "weights/server.json")
        assert endpoint.port == port
        with pytest.raises(ConnectionError, match="does not have it"):
            endpoint.ask(1, 0)
        store.close()


def test_an_explorer_on_another_machine_is_told_the_key_and_one_on_this_is_served(tmp_path, monkeypatch):
    store = published_weights(config(tmp_path), LocalBackend(), -1, "5eed", "127.0.0.1")
    file = tmp_path / "weights/server.json"
    endpoint = ServerAddress.read(file)
    endpoint.check()
    (tmp_path / "weights/version-0").mkdir()
    manifest = {"version": 0, "run": "5eed", "served": True, "chained": False, "base": None, "buckets": [["00000", ["w"], 1, 4]]}
    (tmp_path / "weights/version-0/manifest.json").write_text(json.dumps(manifest))
    told = r"the trainer on h0 serves weights at 127\.0\.0\.1, .*: start it with weights_address=<its address .*>, h0 for example"
    for elsewhere in ("another-boot net:[1]", f"{processes.boot_id()} net:[1]"):
        file.write_text(json.dumps({**json.loads(file.read_text()), "machine": "h0", "network": elsewhere}))
        with pytest.raises(ValueError, match=told):
            followed_weights(config(tmp_path), "5eed", LocalBackend())._buckets(manifest)
    file.write_text(json.dumps({**json.loads(file.read_text()), "host": "10.0.0.1"}))
    ServerAddress.read(file).check()
    store.close()
