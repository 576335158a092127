"""Ranks, engines and weights meet by the addresses that the cluster knows, whatever a host's own name or first interface is."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(300)]

RUN = ("max_steps=4", "num_nodes=3", "num_gpus_per_node=1", "save_steps=2")
RANKS = ("actor_infer.device_mapping='0'", "actor_train.device_mapping='1-2'")
SMALL = ("actor_train.training_args.per_device_train_batch_size=8",)


@pytest.mark.parametrize(
    ("style", "transport"),
    [
        ({"own_name_at_loopback": True, "second_network": True}, "object_store"),
        pytest.param({"own_name_at_loopback": True}, "collective", marks=pytest.mark.hosts),
        pytest.param({"second_network": True}, "collective", marks=pytest.mark.hosts),
        pytest.param({"ipv6": True}, "collective", marks=pytest.mark.hosts),
    ],
    ids=["debian_names_and_docker", "debian_names", "docker", "ipv6"],
)
def test_ranks_on_two_hosts_meet(site, style, transport):
    here = site(3, **style)
    address = here.start_ray()
    run = here.launch(here.hosts[0], *RUN, *RANKS, *SMALL, f"model_update_transport={transport}", RAY_ADDRESS=address)
    assert run.end(240) == 0, run.output
    assert (run.summary()["status"], run.summary()["steps"]) == ("finished", 4)
    run.is_clean()
