"""A trainer and an explorer on two hosts that cannot work together as they are: each hears why, and what to write."""

from __future__ import annotations

import pytest
from hosts_apart import EXPLORER, PORT, TRAINER, server_on

pytestmark = [pytest.mark.hosts, pytest.mark.slow, pytest.mark.timeout(300)]


def test_sqlite_between_hosts_is_refused_with_the_address_to_write(site):
    """In the folder that both see, which nothing says of."""
    here = site(2)
    trainer = here.launch(here.hosts[0], *TRAINER, local=True)
    trainer.wait_for("its part in the run", lambda: (trainer.dir / "weights/server.json").is_file())
    explorer = here.launch(here.hosts[1], *EXPLORER, local=True)
    assert explorer.end() != 0
    assert "SQLite serves processes of one machine, and process" in explorer.output, explorer.output
    assert "groups_database: postgresql+psycopg://user@host/name" in explorer.output
    assert trainer.process.poll() is None


def test_weights_that_are_served_on_the_trainers_own_host_alone_are_told_with_the_key(site):
    """The trainer reaches the database on its own host by the loopback interface, and serves there, too."""
    here = site(2)
    server_on(here.hosts[0])
    at = f"groups_database=postgresql+psycopg://roll@%s:{PORT}/run"
    trainer = here.launch(here.hosts[0], *TRAINER, at % "127.0.0.1", local=True)
    trainer.wait_for("its part in the run", lambda: (trainer.dir / "weights/server.json").is_file())
    explorer = here.launch(here.hosts[1], *EXPLORER, at % here.hosts[0].address, local=True)
    assert explorer.end() == 1
    told = "the trainer on h0 serves weights at 127.0.0.1, which no other machine reaches: start it with weights_address="
    assert told in " ".join(explorer.output.split()), explorer.output
    assert trainer.process.poll() is None


def test_an_address_at_which_nothing_can_be_served_is_refused_before_anything_starts(site):
    """Debian writes a host's own name at 127.0.1.1."""
    here = site(1, own_name_at_loopback=True)
    server_on(here.hosts[0])
    at = f"groups_database=postgresql+psycopg://roll@127.0.0.1:{PORT}/run"
    told = {
        "h0": "h0 is 127.0.1.1 on this machine, which no other reaches: write its address in the network",
        "h0:0": "0 is no port: write one from 1 to 65535",
        f"{here.hosts[0].address}:{PORT}": "Address already in use",
        "10.99.0.1": "Cannot assign requested address",
    }
    for address, why in told.items():
        trainer = here.launch(here.hosts[0], *TRAINER, at, f"weights_address={address}", local=True)
        assert trainer.end() == 2
        assert "weights_address" in trainer.output and why in " ".join(trainer.output.split()), trainer.output
