"""One of two ranks that load a mixture of experts, then a model and a checkpoint of it: `host_memory_program.py FOLDER OUT RANK
PORT PORT PORT PORT`. Writes how many bytes a process gained at its peak: by starting, by resuming, and by taking what a
checkpoint is written from."""

import ctypes
import json
import multiprocessing
import sys
from pathlib import Path

from train_specs import fsdp2_spec

from roll.core.workers.train_backends import make_train_strategy
from roll.core.workers.train_interface import RankContext, TrainStrategy

M_MMAP_THRESHOLD = -3


def status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def restart() -> int:
    """The peak begins anew; bytes that are resident now."""
    Path("/proc/self/clear_refs").write_text("5")
    return status("VmRSS")


def start(model: Path, rank: int, port: int) -> tuple[TrainStrategy, int]:
    before = restart()
    strategy = make_train_strategy(RankContext(rank=rank, world_size=2, master_port=port), fsdp2_spec(model, dtype="bf16"))
    return strategy, status("VmHWM") - before


def touch_libraries(folder: Path, rank: int, port: int) -> None:
    """A fork has not touched their pages yet."""
    start(folder / "tiny", rank, port)[0].close()


def load_mixture(folder: Path, out: Path, rank: int, first_port: int, port: int) -> None:
    touch_libraries(folder, rank, first_port)
    strategy, started = start(folder / "mixture", rank, port)
    (out / f"mixture-{rank}.json").write_text(json.dumps({"started": started}))
    strategy.write(strategy.snapshot(), out / "mixture")
    strategy.close()


def main(folder: Path, out: Path, rank: int, *ports: int) -> None:
    assert ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1_000_000) == 1  # so that no heap keeps memory that was freed
    # A process of its own leaves no memory behind that the next model would find.
    mixture = multiprocessing.get_context("fork").Process(target=load_mixture, args=(folder, out, rank, *ports[:2]))
    mixture.start()
    mixture.join()
    touch_libraries(folder, rank, ports[2])
    strategy, started = start(folder / "model", rank, ports[3])
    before = restart()
    strategy.load(folder / "checkpoint")
    resumed, before = status("VmHWM") - before, restart()
    snapshot = strategy.snapshot()
    gained = {"started": started, "resumed": resumed, "snapshot": status("VmHWM") - before}
    strategy.write(snapshot, out / "saved")
    (out / f"{rank}.json").write_text(json.dumps(gained))
    strategy.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
