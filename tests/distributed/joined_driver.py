"""A driver that joins the cluster at `RAY_ADDRESS`, says when its worker is up, and what ends it. A program of its own: a process
has one Ray token."""

import asyncio
import faulthandler

from roll.core.distributed.backend import WorkerSpec
from roll.core.distributed.cluster import Cluster
from roll.core.distributed.devices import detect, place
from roll.core.errors import BackendLost
from roll.platform import ray_nodes
from roll.platform.ray_backend import RayBackend

ray_nodes.LOOK_S, ray_nodes.LOST_S = 0.2, 2.0


faulthandler.dump_traceback_later(45)  # where it stands, if it does not end before Ray ends it


async def main() -> None:
    backend = RayBackend(detect())
    specs = [WorkerSpec("role-0", "backend_worker.Counter", place((0,), detect())[0], {"rank": 0})]
    cluster = await Cluster.start("role", backend, specs, 60.0)
    watch = asyncio.ensure_future(cluster.watch(cluster.restart))  # the worker may be gone before its head is missed
    await asyncio.wait({watch}, timeout=3.0)  # longer than the limit: a head that lives is reached
    print("up", await cluster.call(0, "add", 3), watch.done(), flush=True)
    try:
        await watch
    except BackendLost as error:
        print(error, flush=True)
    await backend.shutdown()


asyncio.run(main())
