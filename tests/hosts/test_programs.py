"""Agents that are programs on other hosts than the policy: behind a gateway on each host, and behind a firewall."""

from __future__ import annotations

import shlex
import shutil

import pytest
from tiny_world import WORKERS, read_json_lines

pytestmark = [pytest.mark.slow, pytest.mark.hosts, pytest.mark.timeout(500)]

PORT = 7030
RUNS_AGENTS = f"""
import json, os, socket, subprocess, sys
with socket.create_server(("", {PORT})) as server:
    while True:
        one, _ = server.accept()
        if os.fork() == 0:
            told = json.loads(one.makefile().readline())
            one.sendall(b"%d" % subprocess.run([sys.executable, "agent.py"], env=told).returncode)
            os._exit(0)
        one.close()
"""
"""What a remote sandbox does: starts the agent where it runs, with the variables that it is sent."""
ASKS = f"""
import json, os, socket, sys
with socket.create_connection((sys.argv[1], {PORT})) as there:
    there.sendall(json.dumps(dict(os.environ)).encode() + b"\\n")
    sys.exit(int(there.recv(9) or 1))
"""
SHORT = ("max_steps=3", "save_steps=100", "actor_train.training_args.learning_rate=1e-8")


@pytest.mark.ray
def test_programs_are_played_on_several_hosts_each_with_a_gateway_of_its_own(site):
    here = site(3)
    roles = ("actor_train.device_mapping='0'", "actor_infer.device_mapping='1-2'", "num_nodes=3", "num_gpus_per_node=1")
    address = here.start_ray()
    options = (*SHORT, *roles, "train_env_manager.max_env_num_per_worker=2")
    run = here.launch(here.hosts[0], *options, "gateway_host=10.77.0.0/24", agentic="programs", RAY_ADDRESS=address)
    assert run.end(200) == 0, run.output
    assert run.summary()["steps"] == 3
    run.is_clean()
    refused = here.launch(here.hosts[0], *options, "gateway_host=10.77.0.11", agentic="programs", RAY_ADDRESS=address)
    assert refused.end() != 0
    assert "gateway_host" in refused.output and "a network in which each machine has an address" in refused.output, refused.output


def test_a_firewall_that_drops_what_the_gateway_sends_is_told(site):
    """Nothing is refused: the agent on the other host waits for its connection until its time is over."""
    here = site(2)
    policy, sandbox = here.hosts
    folder = here.hosts.shared / "remote"
    shutil.copytree(WORKERS / "letters_agent", folder)
    (folder / "ask.py").write_text(ASKS)
    sandbox.run(f"cd {folder}; setsid python3 -c {shlex.quote(RUNS_AGENTS)} > /mnt/agents.log 2>&1 < /dev/null &")
    program = f"custom_envs.letters.program.command=[python,ask.py,{sandbox.address}]"
    options = (*SHORT, program, f"custom_envs.letters.program.folder={folder}", f"gateway_host={policy.address}")
    open_to_agents = f"ip rule {{}} pref 9 to {sandbox.address} ipproto tcp dport {PORT} lookup main"
    drop = f"ip rule {{}} pref 10 to {sandbox.address} ipproto tcp blackhole"
    policy.run(f"{open_to_agents.format('add')} && {drop.format('add')}")
    limit = "custom_envs.letters.program.agent_timeout_s=3"
    run = here.launch(policy, *options, limit, agentic="programs", local=True)
    assert run.end(200) == 1, run.output
    said = f"no agent of 'letters' has had an answer of the policy: no request of it has reached the gateway at {policy.address}"
    assert run.summary()["reason"].endswith(f"{said} (gateway_host): does a firewall drop what goes there?")
    ended = {row["reason"] for row in read_json_lines(run.dir / "groups.jsonl")}
    assert ended and not any("trained" in reason for reason in ended)
    policy.run(drop.format("del"))
    run = here.launch(policy, *options, "exp_name=open", agentic="programs", local=True)
    assert run.end() == 0, run.output
    run.is_clean()
