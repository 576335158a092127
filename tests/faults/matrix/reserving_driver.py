"""A driver that joins the cluster at `RAY_ADDRESS` and reserves devices; given who, nodes, per_node, devices and within_s.

It prints where its two roles have their devices, as JSON, or why it is refused. For each line that it is given it says so again,
with workers that have started anew; it ends when there are no more."""

import asyncio
import json
import sys

from roll.core.configs.problems import ConfigError
from roll.core.distributed.backend import WorkerSpec
from roll.core.distributed.cluster import Cluster
from roll.core.distributed.devices import place
from roll.core.errors import NodeLost, WorkerStartError
from roll.platform.ray_backend import RayBackend


async def tell(backend: RayBackend, specs: list[WorkerSpec]) -> None:
    while True:
        try:
            cluster = await Cluster.start("role", backend, specs, 60.0)
        except NodeLost as lost:
            print(json.dumps({"lost": str(lost)}), flush=True)
        except WorkerStartError:  # on a node of whose loss Ray did not know
            continue
        else:
            print(json.dumps({"places": await cluster.call_all("place")}), flush=True)
            await cluster.end()
        if not await asyncio.to_thread(sys.stdin.readline):
            return


def main(who: str, nodes: str, per_node: str, devices: str, within_s: str) -> None:
    backend = RayBackend(patience_s=float(within_s))
    used = tuple(map(int, devices.split(",")))
    try:
        inventory = backend.devices(int(nodes), int(per_node))
        backend.reserve(used, who)
    except ConfigError as error:
        print(json.dumps({"refused": str(error)}), flush=True)
    else:
        kwargs = {"rank": 0}
        roles = [("one", place(used, inventory)), ("other", place(used, inventory))]
        specs = [WorkerSpec(f"{role}-{p.rank}", "backend_worker.Counter", p, kwargs) for role, of_role in roles for p in of_role]
        asyncio.run(tell(backend, specs))
    asyncio.run(backend.shutdown())


main(*sys.argv[1:])
