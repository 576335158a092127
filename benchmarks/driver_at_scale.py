"""What the driver computes for a group, a token and a step, and how long it stops, with thousands of engines and long responses.

The driver is that of every run, on virtual time (`roll/simulate`): engines, trainer ranks and judges are scripted, and what
passes between them and the driver is pickled and read again as between processes. Only the driver's side is counted: the steps
of its event loop, and apart from them what it computes in threads beside the loop, where it shares the interpreter with it.

`python benchmarks/driver_at_scale.py [--quick]`; exits 1 where a target is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import pickle
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline_run import ROOT, save_results

from roll.core.configs.rlvr import RLVRConfig
from roll.core.distributed.backend import WorkerSpec
from roll.platform.garbage import search_all_objects, searching_young_objects, spare_what_is_there
from roll.prepare.compose import load
from roll.simulate.backend import SimulatedBackend, SimulatedHandle
from roll.simulate.costs import Costs, Spread
from roll.simulate.engine import ScriptedEngine
from roll.simulate.run import SimulatedRun, Simulation, simulated, unheard
from roll.simulate.split import with_devices
from roll.simulate.virtual_loop import run_virtually

SAMPLES, STEPS = 8, 4
MOST_PER_TOKEN_US, LONGEST_STOP_MS, MOST_GROWTH = 0.05, 50.0, 1.25
WORKERS_SIDE = ("SimulatedHandle._work", "Scripted", "InferWorker", "Wire")
BESIDE = "VirtualLoop.run_in_executor"
BEFORE = "drive.<locals>.main"
"""Preparation, before the first worker starts."""


@dataclass
class Counted:
    loop_s: float = 0.0
    beside_s: float = 0.0
    longest_s: float = 0.0
    longest: str = ""
    bytes: int = 0
    workers_s: float = field(default=0.0, repr=False)

    def add(self, callback: Any, seconds: float) -> None:
        owner = getattr(callback, "__self__", None)
        name: str = getattr(owner.get_coro() if isinstance(owner, asyncio.Task) else callback, "__qualname__", "")
        if isinstance(owner, ScriptedEngine) or name.startswith(WORKERS_SIDE):
            self.workers_s += seconds
        elif name.startswith(BESIDE):
            self.beside_s += seconds
        elif name != BEFORE:
            self.loop_s += seconds
            if seconds > self.longest_s:
                self.longest_s, self.longest = seconds, name


@contextlib.contextmanager
def counted() -> Iterator[Counted]:
    found, run = Counted(), asyncio.events.Handle._run

    def timed(handle: Any) -> None:
        callback, began = handle._callback, time.thread_time()
        run(handle)
        found.add(callback, time.thread_time() - began)

    setattr(asyncio.events.Handle, "_run", timed)  # noqa: B010
    try:
        yield found
    finally:
        setattr(asyncio.events.Handle, "_run", run)  # noqa: B010


class Wire:
    """A worker behind bytes."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker

    def __getattr__(self, method: str) -> Any:
        async def answer(message: bytes) -> bytes:
            return pickle.dumps(await getattr(self._worker, method)(*pickle.loads(message)))

        return answer


class WiredHandle(SimulatedHandle):
    count: Counted

    async def call(self, method: str, *args: object) -> Any:
        message = pickle.dumps(args)
        answer = await super().call(method, message)
        self.count.bytes += len(message) + len(answer)
        return pickle.loads(answer)


class WiredBackend(SimulatedBackend):
    count: Counted

    async def start(self, spec: WorkerSpec) -> SimulatedHandle:
        part = self.part(spec)
        worker = Wire(self._make(spec, part))
        handle = self.workers[spec.name] = WiredHandle(spec.name, worker, self.links, self._costs.call_s, part)
        handle.count = self.count
        return handle


class WholeTokens(Simulation):
    grain = 1


def drive(engines: int, tokens: int, folder: Path, ranks: int = 8) -> dict[str, Any]:
    """A run of `STEPS` steps of one group per engine."""
    lengths = [f"prompt_length={max(16, tokens // 8)}", f"response_length={4 * tokens}"]
    batch = [f"rollout_batch_size={engines}", f"num_return_sequences_in_group={SAMPLES}", f"max_steps={STEPS}"]
    steps = [
        f"actor_train.training_args.per_device_train_batch_size={SAMPLES}",
        f"actor_train.training_args.gradient_accumulation_steps={engines // ranks}",
        "validation=null",
    ]
    config, _ = load(ROOT / "examples/config", "rlvr_config_async", [*lengths, *batch, *steps])
    assert isinstance(config, RLVRConfig)
    costs = Costs(response_tokens=Spread(tokens, 0.5), prompt_tokens=tokens // 8, weights_mb=0.0, train_tokens_per_s=1e5)
    config = simulated(with_devices(config, engines, ranks), folder)
    simulation = WholeTokens(config, costs)

    async def main() -> dict[str, Any]:
        backend = WiredBackend(simulation.inventory, costs, simulation.worker)
        backend.count = count
        prepared = simulation.prepared()
        return await SimulatedRun(config, prepared, simulation.inventory, backend).run()

    search_all_objects()  # those of the run before are spared
    with counted() as count, unheard():
        summary = run_virtually(main())
    groups = engines * STEPS
    return {
        "engines": engines,
        "tokens": tokens,
        "status": summary["status"],
        "reason": summary["reason"],
        "ms_per_group": 1e3 * count.loop_s / groups,
        "beside_ms_per_group": 1e3 * count.beside_s / groups,
        "s_per_step": (count.loop_s + count.beside_s) / STEPS,
        "longest_stop_ms": 1e3 * count.longest_s,
        "longest": count.longest,
        "bytes_per_group": count.bytes / groups,
        "workers_s": count.workers_s,
    }


def missed(runs: list[dict[str, Any]]) -> Iterator[str]:
    """The targets that are not met. What a token costs is the slope between the shortest and the longest responses."""
    few = min(run["engines"] for run in runs)
    short, *_, long = sorted((run for run in runs if run["engines"] == few), key=lambda run: run["tokens"])
    per_token = 1e3 * (long["ms_per_group"] - short["ms_per_group"]) / (SAMPLES * (long["tokens"] - short["tokens"]))
    print(f"{per_token:.3f} µs of the event loop per response token")
    if per_token > MOST_PER_TOKEN_US:
        yield f"a token costs {per_token:.3f} µs: at most {MOST_PER_TOKEN_US}"
    stop = max(runs, key=lambda run: run["longest_stop_ms"])
    if stop["longest_stop_ms"] > LONGEST_STOP_MS:
        yield f"the loop stops for {stop['longest_stop_ms']:.0f} ms in {stop['longest']}: at most {LONGEST_STOP_MS:g}"
    by_engines = {run["engines"]: run["ms_per_group"] for run in runs if run["tokens"] == short["tokens"]}
    growth = by_engines[max(by_engines)] / by_engines[few]
    print(f"{growth:.2f} times the cost of a group with {max(by_engines) / few:g} times the engines")
    if growth > MOST_GROWTH:
        yield f"a group costs {growth:.2f} times as much with {max(by_engines)} engines as with {few}: at most {MOST_GROWTH}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="up to 1,024 engines and 4,000 tokens")
    options = parser.parse_args()
    cases = [(64, 250), (64, 1000), (64, 4000), (256, 250), (1024, 250)]
    cases += [] if options.quick else [(64, 16_000), (4096, 250)]
    print(f"{'engines':>8}{'tokens':>8}{'ms/group':>10}{'beside':>8}{'s/step':>8}{'stop ms':>9}{'MB/group':>10}  in")
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        drive(16, 100, Path(folder) / "imports")
        spare_what_is_there()  # as `roll train` does
        for engines, tokens in sorted(cases):
            with searching_young_objects():
                run = drive(engines, tokens, Path(folder) / f"{engines}-{tokens}")
            if run["status"] != "finished":
                raise RuntimeError(run["reason"])
            runs.append(run)
            figures = f"{run['ms_per_group']:10.2f}{run['beside_ms_per_group']:8.2f}{run['s_per_step']:8.2f}"
            sizes = f"{run['longest_stop_ms']:9.0f}{run['bytes_per_group'] / 1e6:10.2f}"
            print(f"{engines:8}{tokens:8}{figures}{sizes}  {run['longest']}", flush=True)
    complaints = list(missed(runs))
    save_results("driver_at_scale", {"runs": runs, "missed": complaints})
    print("\n".join(complaints) or "all targets are met")
    return bool(complaints)


if __name__ == "__main__":
    sys.exit(main())
