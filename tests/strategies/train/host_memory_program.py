"""One of two ranks that load a model and a checkpoint: `host_memory_program.py MODEL CHECKPOINT OUT RANK PORT`. Writes how
many bytes the process gained at its peak: by starting, by resuming, and by taking what a checkpoint is written from."""

import json
import sys
from pathlib import Path

from train_specs import fsdp2_spec

from roll.strategies.train import make_train_strategy
from roll.strategies.train.interface import RankContext


def status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def restart() -> int:
    """The peak begins anew; bytes that are resident now."""
    Path("/proc/self/clear_refs").write_text("5")
    return status("VmRSS")


def main(model: str, checkpoint: str, out: str, rank: int, port: int) -> None:
    spec = fsdp2_spec(model, dtype="bf16")
    context = RankContext(rank=rank, world_size=2, master_port=port)
    before = restart()
    strategy = make_train_strategy(context, spec)
    started, before = status("VmHWM") - before, restart()
    strategy.load(Path(checkpoint))
    resumed, before = status("VmHWM") - before, restart()
    snapshot = strategy.snapshot()
    gained = {"started": started, "resumed": resumed, "snapshot": status("VmHWM") - before}
    strategy.write(snapshot, Path(out, "saved"))
    Path(out, f"{rank}.json").write_text(json.dumps(gained))
    strategy.close()


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]), int(sys.argv[5]))
