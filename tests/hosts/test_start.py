"""The start of a run on several hosts: the printed commands, and what the hosts do not see alike."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from hosts import REPO

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(300)]
only_asked = pytest.mark.hosts

RUN = ("max_steps=2", "num_nodes=2", "num_gpus_per_node=1", "save_steps=100")
APART = ("actor_infer.device_mapping='0'", "actor_train.device_mapping='1'")
TOGETHER = ("actor_train.device_mapping='0'", "actor_infer.device_mapping='1'")


def commands() -> list[str]:
    """The first ones of the page."""
    page = (REPO / "docs_roll/cluster.md").read_text()
    lines = page.partition("```\n")[2].partition("```")[0].splitlines()
    return [line.partition("  #")[0].strip() for line in lines]


@only_asked
@pytest.mark.parametrize("account", ["new", "with a token of another Ray"])
def test_the_printed_commands_start_a_run(site, account):
    here = site(3)
    head, *others = here.hosts
    token, mode, first, other, last = commands()
    if account != "new":
        head.run("ray get-auth-token --generate > /dev/null", PATH=path())
    head.run(token, PATH=path())
    for host in others:
        shutil.copytree(head.home / ".ray", host.home / ".ray")
    few = "--num-cpus=1 --disable-usage-stats --object-store-memory=104857600"
    head.run(f"{mode}; {first} {few}", PATH=path())
    for host in others:
        host.run(f"{mode}; {other.replace('<head>', head.address)} {few}", PATH=path())
    address, _, words = last.replace("<head>", head.address).partition(" ")
    assert words == "roll train rlvr ... num_nodes=3 num_gpus_per_node=8"
    given = dict([address.split("=")], RAY_AUTH_MODE="token")
    run = here.launch(head, "max_steps=2", "num_nodes=3", "num_gpus_per_node=1", *TOGETHER, **given)
    assert run.end(200) == 0, run.output
    (head.home / ".ray/auth_token").unlink()
    closed = here.launch(head, "exp_name=closed", "max_steps=2", "num_nodes=3", "num_gpus_per_node=1", *TOGETHER, **given)
    assert closed.end(100) == 2, "without the token nobody gets in"


@only_asked
def test_a_demo_leaves_no_token_behind(site):
    """It would close a cluster that is started later to nodes that do not have it."""
    here = site(1)
    run = here.launch(here.hosts[0], "max_steps=1", "num_gpus_per_node=2")
    assert run.end(200) == 0, run.output
    assert not (here.hosts[0].home / ".ray/auth_token").exists()


@only_asked
@pytest.mark.parametrize("roles", [APART, TOGETHER], ids=["the trainer is elsewhere", "the trainer is at the driver"])
def test_a_folder_that_not_all_hosts_see(site, roles):
    here = site(2)
    address = here.start_ray(cpus=1)
    run = here.launch(here.hosts[0], *RUN, *roles, "output_dir=/mnt/output", RAY_ADDRESS=address)
    code = run.end(200)
    if roles is TOGETHER:
        assert code == 0, "engines write nothing there"
        return
    assert code == 2, run.output
    assert "output_dir = '/mnt/output': h1 (10.77.0.11) does not see /mnt/output/run of the machine" in run.output
    assert "actor_infer is ready" not in run.output
    assert not list((here.hosts[0].folder / "output").glob("*/.seen*")), "nothing of the trial is left"


@only_asked
@pytest.mark.parametrize("transport", ["checkpoint_dir", "object_store"])
def test_weights_in_a_folder_are_read_by_engines(site, transport):
    here = site(2)
    address = here.start_ray(cpus=1)
    options = (*RUN, *TOGETHER, "output_dir=/mnt/output", f"model_update_transport={transport}")
    run = here.launch(here.hosts[0], *options, RAY_ADDRESS=address)
    assert run.end(200) == (2 if transport == "checkpoint_dir" else 0), run.output
    assert ("output_dir = " in run.output) is (transport == "checkpoint_dir")


def test_a_model_that_one_host_lacks_is_missed_with_the_hosts_name(site):
    here = site(2)
    address = here.start_ray(cpus=1)
    shutil.copytree(here.world.folder / "model", here.hosts[0].folder / "model")
    run = here.launch(here.hosts[0], *RUN, *TOGETHER, "pretrain=/mnt/model", RAY_ADDRESS=address)
    assert run.end(200) == 2, run.output
    assert "pretrain = '/mnt/model': is not there on h1 (10.77.0.11); fix: put it at the same path" in run.output
    assert "starting" not in run.output


def path() -> str:
    return f"{Path(sys.prefix) / 'bin'}:/usr/sbin:/usr/bin:/sbin:/bin"
