"""Three hosts and eight, whose engines hold 2,000 requests: the cost of that for the driver, and seconds to start, to lose hosts
and to end."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.hosts, pytest.mark.timeout(900)]

REQUESTS, GROUP = 2000, 8
RUN = (
    *("max_steps=100000", "actor_train.training_args.learning_rate=1e-8", "save_steps=1000", "eval_steps=1000"),
    *(f"rollout_batch_size={REQUESTS // GROUP}", f"num_return_sequences_in_group={GROUP}", "max_running_requests=1000"),
    *(f"actor_train.training_args.per_device_train_batch_size={REQUESTS}", "num_gpus_per_node=1"),
    *("actor_infer.worker_cls=fault_engines.AnswersLater", "actor_train.device_mapping='0'", "heartbeat_timeout=120"),
)
STEPS = 3
"""Those that are measured."""


@pytest.mark.parametrize(("count", "lost"), [(3, 1), (8, 2)])
def test_hosts_whose_engines_hold_two_thousand_requests(site, count, lost):
    here = site(count)
    devices = f"actor_infer.device_mapping='1-{count - 1}'"
    run = here.launch(here.hosts[0], *RUN, devices, f"num_nodes={count}", RAY_ADDRESS=here.start_ray(1))
    run.wait_for_steps(1, 400)
    driver = Path("/proc", str(run.driver))
    before, busy_s, began = len(run.steps()), processor_s(driver), time.monotonic()
    run.wait_for_steps(before + STEPS, 200)
    groups = (len(run.steps()) - before) * REQUESTS // GROUP
    row = {
        "hosts": count,
        "ms_a_group": round(1e3 * (processor_s(driver) - busy_s) / groups, 2),
        "step_s": round((time.monotonic() - began) / (len(run.steps()) - before), 2),
        "sockets": sockets(driver),
        "memory_mb": memory_mb(driver),
    }
    for host in list(here.hosts)[-lost:]:
        host.power_off()
    began = time.monotonic()
    steps = len(run.steps())
    run.wait_for_steps(steps + 2, 120)
    row["lost_stop_s"] = round(run.longest_stop_s(began), 1)
    began = time.monotonic()
    run.signal(signal.SIGINT)
    assert run.end(200) == 130, run.output
    row |= {"end_s": round(time.monotonic() - began, 1), "start_s": round(run.summary()["started_s"], 1)}
    run.is_clean()
    here.note(**row, lost=lost)


def processor_s(process: Path) -> float:
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def sockets(process: Path) -> int:
    found = 0
    for each in (process / "fd").iterdir():
        with contextlib.suppress(OSError):
            found += os.readlink(each).startswith("socket:")
    return found


def memory_mb(process: Path) -> int:
    lines = (process / "status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS:")).split()[1]) // 1024
