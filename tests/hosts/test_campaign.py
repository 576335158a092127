"""Hosts that fail at random moments in random ways, by seed; `roll verify` and an account of the test's own say what came of it.
`ROLL_HOSTS_SEEDS=100-139` runs so many; the records are added to `ROLL_HOSTS_RECORD`, a JSON-lines file."""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest
from hosts import FAST, Host
from tiny_world import BATCH, read_json_lines

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.hosts, pytest.mark.timeout(600)]

LATEST = 12
"""A fault begins before this step."""
RUN = (
    "max_steps=100000",
    "actor_train.training_args.learning_rate=1e-8",
    "num_nodes=3",
    "num_gpus_per_node=1",
    "save_steps=5",
    "eval_steps=1000",
    "heartbeat_timeout=30",
)
LAYOUTS = {
    "engines": ("actor_train.device_mapping='0'", "actor_infer.device_mapping='1-2'"),
    "ranks": (
        *("actor_infer.device_mapping='0'", "actor_train.device_mapping='1-2'"),
        "actor_train.training_args.per_device_train_batch_size=8",
    ),
}
KINDS = ("cut", "freeze", "slow", "off", "mute", "deafen")


def seeds() -> list[int]:
    first, _, last = os.environ.get("ROLL_HOSTS_SEEDS", "0-3").partition("-")
    return list(range(int(first), int(last or first) + 1))


@pytest.mark.parametrize("seed", seeds())
def test_hosts_fail_at_random(site, seed):
    draw = random.Random(seed)
    layout = draw.choice(sorted(LAYOUTS))
    transport = draw.choice(["object_store", "collective", "checkpoint_dir"])
    ratio = draw.choice([0, 1, 2])
    here = site(3)
    address = here.start_ray()
    options = (*RUN, *LAYOUTS[layout], f"model_update_transport={transport}", f"async_generation_ratio={ratio}")
    run = here.launch(here.hosts[0], *options, "device_timeout=120", RAY_ADDRESS=address)
    run.wait_for_steps(2, 200)
    done = []
    for at in sorted(draw.sample(range(3, LATEST), 2)):
        run.wait_for_steps(at, 200)
        host, kind, seconds = here.hosts[draw.choice([1, 2])], draw.choice(KINDS), draw.uniform(2.0, 20.0)
        began = time.monotonic()
        fail(host, kind)
        time.sleep(seconds)  # the fault lasts so long
        mend(host, kind)
        if kind == "off":
            here.join_ray(host, f"--address={address}")
        run.wait_for_steps(len(run.steps()) + 2, 300)
        stop_s = round(run.longest_stop_s(began), 1)
        done.append({"kind": kind, "host": host.number, "step": at, "seconds": round(seconds, 1), "stop_s": stop_s})
    run.signal(2)  # no fault came when the last step was done
    assert run.end(300) == 130, run.output
    run.is_clean()
    nothing_is_lost(run.dir)
    here.note(seed=seed, layout=layout, transport=transport, ratio=ratio, faults=done)


def fail(host: Host, kind: str) -> None:
    {
        "cut": host.cut,
        "freeze": host.freeze,
        "slow": lambda: host.slow("2mbit"),
        "off": host.power_off,
        "mute": host.mute,
        "deafen": host.deafen,
    }[kind]()


def mend(host: Host, kind: str) -> None:
    {"cut": host.heal, "freeze": host.thaw, "off": host.boot}.get(kind, lambda: host.slow(FAST))()


def nothing_is_lost(folder: Path) -> None:
    rows, summary = read_json_lines(folder / "groups.jsonl"), json.loads((folder / "summary.json").read_text())
    assert max(Counter(row["group_id"] for row in rows).values()) == 1, "a group has two ends"
    trained = Counter(row["step"] for row in rows if row["status"] == "trained")
    assert trained == dict.fromkeys(range(1, summary["steps"] + 1), BATCH)
    assert all(row["reason"] for row in rows if row["status"] != "trained")
    groups = summary["groups"]
    assert groups["admitted"] == len(rows) + groups["buffered"] + groups["in_flight"]
