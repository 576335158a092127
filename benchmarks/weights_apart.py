"""How long new weights need from a trainer to an explorer that is a process of its own, by each transport.

Both are the product's commands (--local), and meet as theirs do: in SQLite and a folder. A third process, this one, looks at the
database every millisecond. `update`: from the end of a step, in the database, to the moment at which the explorer's engine serves
that step's weights, also in the database; `published`: the part of it after the trainer has announced the version, so without
gathering, and without writing where versions are files. Medians over the steps after the first ones; the transports alternate.

    python benchmarks/weights_apart.py [--transports object_store checkpoint_dir] [--rounds 2] [--steps 8]
        [--hidden 768] [--layers 8]
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import letters
from pipeline_run import LIMIT_S, ROOT, save_results

from roll.core.configs.base import TRANSPORTS_APART

WARM_UP = 3
BATCH, GROUP = 2, 2
QUERY = "SELECT trained, newest, (SELECT served FROM members WHERE role = 'explorer') FROM runs"


def command(folder: Path, out: Path, transport: str, steps: int, *half: str) -> list[str]:
    sizes = [f"rollout_batch_size={BATCH}", f"num_return_sequences_in_group={GROUP}", "response_length=8", f"max_steps={steps}"]
    files = [f"pretrain={folder / 'model'}", f"actor_train.data_args.file_name={folder / 'prompts.jsonl'}", f"output_dir={out}"]
    batch = f"actor_train.training_args.per_device_train_batch_size={BATCH * GROUP}"
    name = ["--local", f"--config_path={ROOT / 'benchmarks'}", "--config_name=letters"]
    always = ["exp_name=run", "track_with=none", "num_gpus_per_node=1", f"model_update_transport={transport}", batch]
    return [sys.executable, "examples/start_rlvr_pipeline.py", *name, *always, *sizes, *files, *half]


def measure(folder: Path, out: Path, transport: str, steps: int) -> list[tuple[float, float]]:
    """(update, published) of each step but the first, in seconds."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'benchmarks'}", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    halves = (("mode=train", "actor_train.device_mapping=0"), ("mode=explore", "actor_infer.device_mapping=0"))
    out.mkdir()
    console = (out / "console.txt").open("w")
    processes = [
        subprocess.Popen(command(folder, out, transport, steps, *half), cwd=ROOT, env=environment, stdout=console, stderr=console)
        for half in halves
    ]
    try:
        seen = watch(out / "run" / "groups.db", steps, processes)
        if any(process.wait(LIMIT_S) for process in processes):
            raise RuntimeError(f"{transport} failed:\n{(out / 'console.txt').read_text()[-3000:]}")
    finally:
        for process in processes:
            process.kill()
    trained, newest, served = seen
    return [(served[step] - trained[step], served[step] - newest[step]) for step in range(1 + WARM_UP, steps)]


def watch(file: Path, steps: int, processes: list[subprocess.Popen[bytes]], batch: int = BATCH) -> tuple[dict[int, float], ...]:
    """When each step was trained, published and served, at the latest."""
    seen: tuple[dict[int, float], ...] = ({}, {}, {})
    while steps not in seen[2] and all(process.poll() is None for process in processes):
        time.sleep(0.001)
        try:
            with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as connection:
                trained, *versions = connection.execute(QUERY).fetchone()
        except (sqlite3.OperationalError, TypeError):  # the file, its tables or the run are not there yet
            continue
        now = time.perf_counter()
        for known, reached in zip(seen, (trained // batch, *versions), strict=True):
            for step in range(len(known), (reached or 0) + 1):
                known[step] = now
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transports", nargs="+", choices=TRANSPORTS_APART, default=TRANSPORTS_APART)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8, help="of each run, besides the first ones")
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--layers", type=int, default=8)
    args = parser.parse_args()
    steps = WARM_UP + args.steps
    spent: dict[str, list[tuple[float, float]]] = {transport: [] for transport in args.transports}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parameters = letters.make(folder, args.hidden, args.layers, BATCH * (steps + 4))
        print(f"{parameters / 1e6:.1f} M parameters, {parameters * 4 / 1e6:.0f} MB; load {os.getloadavg()[0]:.1f}", flush=True)
        for number in range(args.rounds):
            for transport, all_spent in spent.items():
                all_spent += measure(folder, folder / f"{transport}-{number}", transport, steps)
    print(f"{'milliseconds':16}{'update':>9}{'published':>11}")
    rows = {}
    for transport, all_spent in spent.items():
        update, published = (statistics.median(each[part] for each in all_spent) for part in range(2))
        rows[transport] = {"update": update, "published": published}
        print(f"{transport:16}{1e3 * update:9.0f}{1e3 * published:11.0f}")
    save_results("weights_apart", {"parameters": parameters, "seconds": rows})


if __name__ == "__main__":
    main()
