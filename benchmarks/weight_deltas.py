"""What a version takes that is published as what changed (`weight_anchor_interval`), by learning rate, with a real model: bytes,
and the time to make it and to put it together.

A rank of the product's trainer takes steps of AdamW in bfloat16 with master weights in float32, each on other random tokens and
advantages (an element changes when its master weight crosses into another number of bfloat16, and Adam's steps are about as large
whatever the gradient). After each step the weights are gathered, published in a folder, and put together by a reader as in an
explorer, from the version before; they are compared with what the trainer would have published whole. `link`: seconds at
`--mbit` Mbit/s. Medians after the first two changes, for Adam's first steps are its largest.

    python benchmarks/weight_deltas.py --model examples/smollm2/cache/model [--rates 1e-6 1e-5 1e-4] [--steps 8] [--every 100]
        [--mbit 100] [--bucket_mb 256] [--dtype bf16]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from gpu import random_batch
from pipeline_run import save_results
from transformers import AutoConfig

from roll.core.algorithms.loss import LossSpec
from roll.core.configs.arguments import FSDP2Config, ModelArguments, TrainingArguments
from roll.core.distributed.backend import WorkerSpec
from roll.core.distributed.cluster import Cluster
from roll.core.distributed.devices import Inventory, place
from roll.core.pipeline import roles
from roll.core.weights.store import BucketRef
from roll.core.weights.transport import gather_weights
from roll.core.workers.train_interface import BatchTotals, RankContext
from roll.core.workers.train_spec import Optimisation, TrainSpec
from roll.platform.local_backend import LocalBackend
from roll.transports.assembled import AssembledWeights
from roll.transports.delta import VALUES, WHOLE
from roll.transports.directory import DirectoryWeightStore, WeightFolder

MIB = 1 << 20
SEQUENCES, LENGTH = 8, 128
FIRST = 2
"""Changes that are not counted."""


@dataclass(frozen=True)
class Version:
    nbytes: int
    changed: int
    """Elements; of tensors that went whole all."""
    elements: int
    made_s: float
    read_s: float
    wrong: int
    """Tensors that are not bit by bit the trainer's."""


async def start(args: argparse.Namespace, rate: float) -> Cluster:
    optimisation = Optimisation(
        arguments=TrainingArguments(learning_rate=rate, lr_scheduler_type="constant"),
        total_steps=None,
        max_grad_norm=1.0,
        max_tokens_per_microbatch=SEQUENCES * LENGTH,
    )
    spec = TrainSpec(
        model_path=str(args.model),
        model=ModelArguments(dtype=args.dtype),
        backend=FSDP2Config(),
        optimisation=optimisation,
        max_tokens_per_microbatch_infer=SEQUENCES * LENGTH,
        collective_timeout_s=600.0,
    )
    [placement] = place((0,), Inventory("cpu", 1, 1, 1))
    context = RankContext(threads=args.threads)
    worker = WorkerSpec("actor_train-0", roles.TRAIN_WORKER, placement, {"context": context, "spec": spec})
    return await Cluster.start("actor_train", LocalBackend(), [worker], 600.0)


async def read(source: WeightFolder, version: int) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}

    async def take(_: int, bucket: BucketRef) -> None:
        tensors.update((await asyncio.to_thread(bucket.argument.read)).tensors)

    await source.pull(version, take)
    return tensors


def count_changed(parts: dict[str, torch.Tensor]) -> int:
    return sum(tensor.numel() for name, tensor in parts.items() if name.startswith((WHOLE, VALUES)))


async def measure(args: argparse.Namespace, rate: float, folder: Path) -> tuple[list[Version], Version]:
    """Each version of changes, and the whole one that they began with."""
    trainer = await start(args, rate)
    store, source = DirectoryWeightStore(folder, anchor_every=args.every), AssembledWeights(folder, "", 60.0, LocalBackend())
    vocabulary = AutoConfig.from_pretrained(args.model).vocab_size
    versions = []
    for version in range(FIRST + args.steps + 1):
        if version:
            batch = random_batch(SEQUENCES, LENGTH, vocabulary, seed=version)
            totals = BatchTotals(int(batch.loss_mask.sum()), len(batch))
            await trainer.call(0, "train", [batch], LossSpec(pg_variant="ppo"), [totals])
        began = time.perf_counter()
        weights = await gather_weights(trainer, store, version, args.bucket_mb * MIB)
        await store.publish(weights.manifest, weights.buckets)
        made_s, began = time.perf_counter() - began, time.perf_counter()
        found = await read(source, version)
        read_s = time.perf_counter() - began
        await source.retain({version})
        expected = await exported(trainer, args.bucket_mb * MIB)
        wrong = sum(not torch.equal(found[name], tensor) for name, tensor in expected.items()) + len(found.keys() ^ expected)
        changed = count_changed(await read(WeightFolder(folder), version)) if version else 0
        elements = sum(tensor.numel() for tensor in expected.values())
        versions.append(Version(weights.manifest.nbytes, changed, elements, made_s, read_s, wrong))
    return versions[1 + FIRST :], versions[0]


async def exported(trainer: Cluster, bucket_bytes: int) -> dict[str, torch.Tensor]:
    """The trainer's weights, whole."""
    await trainer.call(0, "begin_export", bucket_bytes)
    tensors: dict[str, torch.Tensor] = {}
    while (made := await trainer.call(0, "next_bucket"))[0] is not None:
        tensors |= made[0].tensors
    return tensors


def row(rate: float, versions: list[Version], whole: Version, args: argparse.Namespace) -> dict[str, Any]:
    nbytes = statistics.median(each.nbytes for each in versions)
    figures = {
        "rate": rate,
        "changed": statistics.median(each.changed / each.elements for each in versions),
        "bytes": nbytes,
        "share": nbytes / whole.nbytes,
        "bytes_an_element": nbytes / max(statistics.median(each.changed for each in versions), 1),
        "link_s": nbytes * 8e-6 / args.mbit,
        "link_whole_s": whole.nbytes * 8e-6 / args.mbit,
        "made_s": statistics.median(each.made_s for each in versions),
        "made_whole_s": whole.made_s,
        "read_s": statistics.median(each.read_s for each in versions),
        "read_whole_s": whole.read_s,
        "wrong": sum(each.wrong for each in [*versions, whole]),
    }
    print(
        f"{rate:8.0e}{100 * figures['changed']:9.3f} %{nbytes / 1e6:9.2f}{100 * figures['share']:8.2f} %"
        f"{figures['bytes_an_element']:7.2f}{figures['link_s']:8.2f}{figures['link_whole_s']:8.1f}"
        f"{figures['made_s']:8.2f}{figures['made_whole_s']:7.2f}{figures['read_s']:8.2f}{figures['read_whole_s']:7.2f}"
        f"{figures['wrong']:7d}",
        flush=True,
    )
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a folder of Hugging Face's")
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-6, 1e-5, 1e-4])
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--every", type=int, default=100, help="weight_anchor_interval")
    parser.add_argument("--mbit", type=float, default=100.0)
    parser.add_argument("--bucket_mb", type=int, default=256)
    parser.add_argument("--dtype", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    print(f"{args.model}, {args.dtype}; load {os.getloadavg()[0]:.1f}")
    print(
        f"{'rate':>8}{'changed':>11}{'MB':>9}{'share':>10}{'B/el.':>7}{'link':>8}{'whole':>8}"
        f"{'made':>8}{'whole':>7}{'read':>8}{'whole':>7}{'wrong':>7}"
    )
    rows = []
    for rate in args.rates:
        with tempfile.TemporaryDirectory() as name:
            rows.append(row(rate, *asyncio.run(measure(args, rate, Path(name))), args))
    save_results("weight_deltas", {"model": str(args.model), "dtype": args.dtype, "rows": rows})


if __name__ == "__main__":
    main()
