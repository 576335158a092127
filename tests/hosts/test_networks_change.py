"""A firewall between trainer and explorer, and hosts that boot with another address."""

from __future__ import annotations

import pytest
from hosts_apart import EXPLORER, TRAINER, begin, server_on

pytestmark = [pytest.mark.slow, pytest.mark.hosts, pytest.mark.timeout(400)]

PORT = 7010


def test_a_firewall_that_drops_what_goes_to_the_weights_is_told_and_ends_the_explorer(site):
    """30 s after its start, and at the end of `peer_timeout`. The trainer's answers are dropped: nothing is refused."""
    here = site(2)
    trainer_host, explorer_host = here.hosts
    given = (f"groups_database={server_on(trainer_host).url}/run", "max_steps=6")
    trainer_host.run(f"ip rule add pref 10 ipproto tcp sport {PORT} blackhole")
    trainer = here.launch(trainer_host, *TRAINER, *given, f"weights_address={trainer_host.address}:{PORT}", local=True)
    trainer.wait_for("its part in the run", lambda: (trainer.dir / "weights/server.json").is_file())
    explorer = here.launch(explorer_host, *EXPLORER, *given, "peer_timeout=40", local=True)
    told = f"cannot be fetched from {trainer_host.address}:{PORT}: timed out; does a firewall drop what goes to this port"
    explorer.wait_for_output(told, 90)
    assert explorer.end(90) == 1
    assert "weights could not be fetched for 40 s (peer_timeout)" in " ".join(explorer.summary()["reason"].split())
    assert trainer.process.poll() is None
    trainer_host.run(f"ip rule del pref 10 ipproto tcp sport {PORT} blackhole")
    explorer = here.launch(explorer_host, *EXPLORER, *given, local=True)
    assert (trainer.end(), explorer.end(60)) == (0, 0), trainer.output + explorer.output
    trainer.is_clean()


def test_hosts_that_boot_with_other_addresses_take_part_again(site):
    """An explorer's, and then the trainer's, whose weights the others fetch elsewhere from then on."""
    run = begin(site, 40, "member_timeout=20")
    hosts = run.site.hosts
    hosts[1].boot_elsewhere()
    run.explorers[0] = run.explore(1)
    run.wait_for_steps(3)
    hosts[0].boot_elsewhere()
    run.trainer = run.again(hosts[0])
    run.end(40)
    assert [hosts[number].address for number in (0, 1)] == ["10.77.0.110", "10.77.0.111"]
