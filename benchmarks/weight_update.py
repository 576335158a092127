"""What a weight update costs: engine x mode x transport x size, from a trainer's process to an engine's, through the product.

For each update `--slots` requests run. The trainer's ranks gather their weights (`gather`), the engine takes the buckets as they
are made while it goes on generating (`send`: what is left when all are made), and activates them (`wait`: with the token step or
the drain before the flip); `pause` is the part of that without token steps. `update` is all of it, from the end of a step to the
new version in service, GB/s its rate, beside a plain copy of as many bytes in memory. Medians over `--updates` after a first one
that is not counted (and three before all rows, which are the first to touch the memory); `max` is the longest pause.
Transport `apart` is what object_store means between a trainer and explorers that are processes of their own: over TCP.
`copies` are those of a byte in host memory (docs_roll/weights.md, where a test counts them) and on the device, `handle` the share
of the bytes that the engine copied from the trainer's own memory: on one GPU (`--shared`) by CUDA's handles, without one
(`--stand_in`) by memory files in their place.
Random weights of the Qwen2 architecture, in float32 on CPUs and bfloat16 on GPUs, of which there have to be one for each rank and
one for the engine (`--shared`: one in all); each size and engine with a trainer and Ray of its own: 500M needs 16 GB.

    python benchmarks/weight_update.py [--size 1M 50M 500M] [--engines hf_infer vllm sglang] [--modes interrupt in_flight drain]
        [--transports object_store ipc collective checkpoint_dir apart] [--ranks 1] [--updates 5] [--slots 16]
        [--bucket_mb 256] [--gather_first] [--shared] [--stand_in] [--sglang PYTHON] [--vllm PYTHON]

On a card, for models of 0.5B to 7B:

    python benchmarks/weight_update.py --shared --transports ipc object_store --size 500M 1.5B 7B --engines hf_infer vllm
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import statistics
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, get_args

import torch
from engines import LONGEST, PROMPT, SIZES, make_model, make_prompts, requests, save, seconds
from pipeline_run import save_results

from roll.core.configs.arguments import FSDP2Config, ModelArguments
from roll.core.configs.base import WeightTransport
from roll.core.configs.engines import engine_of
from roll.core.distributed.backend import WorkerSpec
from roll.core.distributed.cluster import Cluster
from roll.core.distributed.device_locks import DeviceLocks
from roll.core.distributed.devices import Inventory, detect, place
from roll.core.engines.engine_fleet import EngineFleet, FleetRules
from roll.core.engines.fleet import Fleet
from roll.core.groups.changes import Changes
from roll.core.pipeline import roles
from roll.core.weights.store import Buckets, MemoryWeightStore, WeightStore
from roll.core.weights.transport import gather_weights
from roll.core.workers.infer_interface import InferStrategy, WeightUpdateMode
from roll.core.workers.train_interface import RankContext
from roll.core.workers.train_spec import TrainSpec
from roll.core.workers.workers import InferWorker, TrainWorker
from roll.platform.ports import free_port
from roll.platform.ray_backend import RayBackend
from roll.strategies.infer.sglang.strategy import SGLangInferStrategy
from roll.strategies.infer.sglang.weights import ServerWeights
from roll.transports.directory import DirectoryWeightStore, ServedWeightStore
from roll.transports.ends import BroadcastSender
from roll.transports.loans import LendingHandleStore
from roll.transports.shared_buffers import FileBuffer
from roll.transports.weight_broadcast import WeightBroadcast

DEADLINE_S = 900.0
SLOTS_AND_UPDATES = {"1M": (16, 5), "50M": (16, 5), "100M": (16, 5), "500M": (8, 2), "1.5B": (8, 2), "7B": (8, 2)}
"""By default."""
APART = "apart"
TRANSPORTS = (*(each for each in get_args(WeightTransport) if each != "nccl"), APART)
ENGINES = ("hf_infer", "vllm", "sglang")
HOST_COPIES = {"object_store": (3, 3), "ipc": (2, 1), "checkpoint_dir": (2, 2), "collective": (5, 5), APART: (5, 5)}
"""Of a byte, with hf_infer and with the others."""
MIB = 1 << 20


def devices(count: int) -> Inventory:
    """That many GPUs, or CPU slots on a machine without."""
    found = detect()
    if found.kind == "cuda" and found.count < count:
        raise SystemExit(f"{count} GPUs are needed, there are {found.count}: CUDA_VISIBLE_DEVICES= measures on CPUs")
    return Inventory(found.kind, 1, count, count)


class FileLender(TrainWorker):
    """A rank that lends its buckets in memory files, as one on a GPU does in memory of the device."""

    def __init__(self, context: RankContext, spec: TrainSpec) -> None:
        super().__init__(context, spec)
        self._sending = BroadcastSender({"cpu": FileBuffer})


class FileBorrower(InferWorker):
    """An engine's worker that copies what is lent into memory files, as SGLang's on a GPU does into memory of the device."""

    def _serve(self, strategy: InferStrategy, devices: int) -> None:
        super()._serve(strategy, devices)
        if isinstance(strategy, SGLangInferStrategy):
            strategy._received = ServerWeights(["cpu"], {"cpu": FileBuffer})


async def start(engine: str, model: str, slots: int, args: argparse.Namespace) -> tuple[RayBackend, Cluster, Cluster]:
    inventory = devices(args.ranks + (not args.shared))
    backend, port = RayBackend(inventory), free_port()
    trainers = place(tuple(range(args.ranks)), inventory)
    server = trainers[0] if args.shared else place(tuple(range(args.ranks + 1)), inventory)[-1]
    device = "cuda:0" if inventory.kind == "cuda" else "cpu"  # as the worker counts them, which sees its own alone
    python = {"sglang": args.sglang, "vllm": args.vllm}.get(engine)
    given = {"python": python} if python else {}
    if args.shared and inventory.kind == "cuda" and (share := engine_of(engine).share_argument):
        given[share] = args.share
    options: dict[str, Any] = {
        "model_path": model,
        "max_running_requests": slots,
        "max_length": PROMPT + LONGEST - 1,  # SGLang wants a position more than that
        "threads": 1,
        "dtype": "bfloat16" if inventory.kind == "cuda" else "float32",
        **({"device": device} if engine == "hf_infer" else {"devices": [device]}),
        **({"engine_args": given} if given else {}),
    }
    frozen = TrainSpec(
        model_path=model,
        model=ModelArguments(),
        backend=FSDP2Config(),
        optimisation=None,
        max_tokens_per_microbatch_infer=16384,
        collective_timeout_s=600.0,
    )
    specs = [
        WorkerSpec(
            f"actor_train-{rank}",
            "weight_update.FileLender" if args.stand_in else roles.TRAIN_WORKER,
            placement,
            {"context": RankContext(rank, args.ranks, master_port=port, device=device), "spec": frozen},
        )
        for rank, placement in enumerate(trainers)
    ]
    borrower = "weight_update.FileBorrower" if args.stand_in else roles.INFER_WORKER
    worker = WorkerSpec("actor_infer-0", borrower, server, {"strategy_name": engine, "options": options})
    ready = await asyncio.gather(
        Cluster.start("actor_train", backend, specs, DEADLINE_S), Cluster.start("actor_infer", backend, [worker], DEADLINE_S)
    )
    return backend, *ready


async def measure(
    fleet: EngineFleet,
    store: WeightStore,
    trainers: Cluster,
    version: int,
    vocabulary: int,
    drain: bool,
    slots: int,
    bucket_mb: int,
    ahead: bool,
) -> dict[str, float]:
    """One update under load, in seconds. `ahead`: buckets are sent while others are made."""
    lengths = [24 + i % 16 for i in range(2 * slots)] if drain else [LONGEST] * slots
    load = requests(make_prompts(len(lengths), vocabulary), lengths)
    calls = asyncio.gather(*(fleet.engines.call(0, "generate", request) for request in load))
    while (await fleet.engines.call(0, "stats")).running < slots:
        await asyncio.sleep(0.01)
    began = time.perf_counter()
    coming = Buckets(version)
    sending = asyncio.ensure_future(fleet.send_ahead(coming, [0])) if ahead else None
    weights = await gather_weights(trainers, store, version, bucket_mb * MIB, coming)
    await store.publish(weights.manifest, weights.buckets)
    gathered = time.perf_counter()
    if sending is not None:
        await sending
    await fleet.send(version, [0])
    sent = time.perf_counter()
    [pause] = await fleet.flip(version, [0])
    ended = time.perf_counter()
    taken = 0
    if isinstance(store, LendingHandleStore):
        taken, store.taken = store.taken, 0
    await fleet.store.retain({version})
    await fleet.engines.call(0, "abort", None)
    await calls
    return {
        "gather": gathered - began,
        "send": sent - gathered,
        "wait": ended - sent,
        "pause": pause,
        "update": ended - began,
        "bytes": weights.manifest.nbytes,
        "by_handle": taken / weights.manifest.nbytes,
    }


async def copy_rate(nbytes: int) -> float:
    """Bytes/s of a plain copy in memory."""
    source = torch.ones(nbytes, dtype=torch.uint8)
    target = torch.zeros_like(source)
    return nbytes / statistics.median([await seconds(asyncio.to_thread(target.copy_, source)) for _ in range(5)])


def make_store(transport: str, folder: Path, backend: RayBackend) -> WeightStore:
    if transport == APART:
        return ServedWeightStore(folder, -1, backend.driver_address(), backend)
    if transport == "ipc":
        return LendingHandleStore()
    return DirectoryWeightStore(folder) if transport == "checkpoint_dir" else MemoryWeightStore()


async def table(size: str, engine: str, model: str, args: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    slots, updates = (
        given or default for given, default in zip((args.slots, args.updates), SLOTS_AND_UPDATES[size], strict=True)
    )
    backend, trainers, engines = await start(engine, model, slots, args)
    rows = []
    versions, warm_up = itertools.count(1), 4
    try:
        for transport, mode in itertools.product(args.transports, args.modes):
            store = make_store(transport, folder, backend)
            broadcast = WeightBroadcast(trainers, engines, backend.driver_address(), DEADLINE_S)
            fleet = EngineFleet(
                engines,
                store,
                Fleet(1, 0, 0),
                Changes(),
                DeviceLocks({"actor_infer": frozenset()}),
                FleetRules(mode=mode, restartable=False, health_interval_s=DEADLINE_S, health_timeout_s=DEADLINE_S),
                broadcast if transport == "collective" else None,
            )
            vocabulary = SIZES[size]["vocab_size"]
            ahead = transport not in (APART, "collective") and not args.gather_first
            load = (vocabulary, mode == "drain", slots)
            runs = [
                await measure(fleet, store, trainers, next(versions), *load, args.bucket_mb, ahead)
                for _ in range(warm_up + updates)
            ][warm_up:]
            warm_up = 1
            row = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
            row["pause_max"] = max(run["pause"] for run in runs)
            row["bytes_per_s"] = row["bytes"] / row["update"]
            row["of_copy"] = row["bytes_per_s"] / await copy_rate(int(row["bytes"]))
            copies, handle = HOST_COPIES[transport][engine != "hf_infer"], row["by_handle"]
            row["host_copies"] = handle + (1 - handle) * copies  # of what is lent a file is written, too
            row["device_copies"] = handle * (2 if engine == "hf_infer" else 3)
            rows.append({"size": size, "engine": engine, "mode": mode, "transport": transport, **row})
            print(
                f"{size:5} {engine:9} {mode:10} {transport:15}"
                + "".join(f"{row[key] * 1e3:9.1f}" for key in ("gather", "send", "wait", "pause", "pause_max", "update"))
                + f"{row['bytes_per_s'] / 1e9:8.3f} {row['of_copy']:8.1%}"
                + f"{row['host_copies']:7.2f} {row['device_copies']:7.2f} {handle:7.0%}",
                flush=True,
            )
            await store.retain(())
    finally:
        await backend.shutdown()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", nargs="+", choices=SIZES, default=["1M", "50M"])
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=["hf_infer", "vllm"])
    parser.add_argument("--modes", nargs="+", choices=get_args(WeightUpdateMode), default=get_args(WeightUpdateMode))
    parser.add_argument("--transports", nargs="+", choices=TRANSPORTS, default=TRANSPORTS)
    parser.add_argument("--ranks", type=int, default=1, help="of the trainer, which share the buckets")
    parser.add_argument("--updates", type=int, help="by default 5, of 500M 2")
    parser.add_argument("--slots", type=int, help="requests that run; by default 16, with 500M 8")
    parser.add_argument("--bucket_mb", type=int, default=256)
    parser.add_argument("--gather_first", action="store_true", help="send nothing before all is gathered")
    parser.add_argument("--shared", action="store_true", help="the engine is on the device of the trainer's first rank")
    parser.add_argument("--share", type=float, default=0.4, help="of that GPU's memory, for vLLM or SGLang")
    parser.add_argument("--stand_in", action="store_true", help="without a GPU: ipc lends through memory files")
    parser.add_argument("--vllm", help="the interpreter that has vLLM (default: this one)")
    parser.add_argument("--sglang", default=".venv-sglang/bin/python", help="the interpreter that has SGLang")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows, failed = [], False
    print(f"load {os.getloadavg()[0]:.1f}; milliseconds")
    print(
        f"{'':42}{'gather':>9}{'send':>9}{'wait':>9}{'pause':>9}{'max':>9}{'update':>9}{'GB/s':>8} {'of copy':>8}"
        f"{'copies':>7} {'device':>7} {'handle':>7}"
    )
    for size, engine in itertools.product(args.size, args.engines):
        with tempfile.TemporaryDirectory() as folder:
            save(make_model(size), f"{folder}/model")
            try:
                rows += asyncio.run(table(size, engine, f"{folder}/model", args, Path(folder) / "weights"))
            except Exception as error:  # boundary: the others are measured all the same
                failed = True
                traceback.print_exception(error)
                print(f"{size:5} {engine:9} failed: {type(error).__name__}: {' '.join(str(error).split()[:40])}", flush=True)
    save_results("weight_update", {"ranks": args.ranks, "bucket_mb": args.bucket_mb, "rows": rows})
    sys.exit(failed)


if __name__ == "__main__":
    main()
