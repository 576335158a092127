"""One rank of `test_resume_after_a_kill`, as a process.

`resume_program.py die LAYOUT MODEL OUT RANK PORT` trains on two ranks, and is killed by SIGKILL in the middle of a checkpoint;
`resume_program.py resume MODELS OUT LAYOUT...` goes on from each last complete one on one rank.
"""

import json
import os
import runpy
import signal
import sys
from pathlib import Path

import safetensors.torch
import torch.distributed as dist
from safetensors.torch import save_file
from saving import save
from train_specs import train_spec

from roll.core.record.checkpoint import TRAINER, CheckpointStore
from roll.core.workers.train_backends import make_train_strategy
from roll.core.workers.train_interface import RankContext

SHARED = runpy.run_path(str(Path(__file__).with_name("rank_program.py")))
OPTIONS, LOSS, make_batch, totals, SHARES = (SHARED[name] for name in ("OPTIONS", "LOSS", "make_batch", "totals", "SHARES"))
SAVED, STEPS = 2, 4
MEGATRON = {"sequence_parallel": True}
LAYOUTS = {
    # name: back end, model, options on two ranks and on one, whether the ranks are given different samples
    "fsdp2": ("fsdp2_train", "qwen2-tied", {}, {}, True),
    "zero3": ("deepspeed_train", "qwen2-tied", *[{"zero": {"stage": 3, "stage3_param_persistence_threshold": 0}}] * 2, True),
    "tp2": ("megatron_train", "qwen2-tied", {"tensor_model_parallel_size": 2, **MEGATRON}, {}, False),
    "ep2": ("megatron_train", "qwen3_moe", {"expert_model_parallel_size": 2}, {}, True),
}


def train(strategy, steps, indices):
    batches = [(make_batch(step), indices(step)) for step in steps]
    return [strategy.train_step(batch.select(chosen), LOSS, totals(batch)) for batch, chosen in batches]


def die_half_way(*arguments, **options):
    """A file whose second half is missing."""
    path = Path(arguments[1])
    save_file(*arguments, **options)
    os.truncate(path, path.stat().st_size // 2)
    os.kill(os.getpid(), signal.SIGKILL)


def die(layout, model, out, rank, port):
    backend, _, options, _, different = LAYOUTS[layout]
    context = RankContext(rank=rank, world_size=2, master_port=port)
    strategy = make_train_strategy(context, train_spec(backend, model, **OPTIONS, **options))
    store = CheckpointStore(out / layout)

    def indices(step):
        return SHARES[step % len(SHARES)][rank] if different else list(range(len(make_batch(step))))

    def begin(step):
        """In a run the driver does this, before the ranks save."""
        folder = (store.begin(step) if rank == 0 else store.root / f".step-{step}.partial") / TRAINER
        dist.barrier()
        return folder

    train(strategy, range(SAVED), indices)
    save(strategy, begin(SAVED))
    dist.barrier()
    if rank == 0:
        store.commit(SAVED, {}, [])
    metrics = train(strategy, range(SAVED, STEPS), indices)
    save(strategy, out / layout / "uninterrupted")
    (out / f"{layout}-{rank}.json").write_text(json.dumps(metrics))
    for module in list(sys.modules.values()):
        if (
            rank == 0
            and module.__name__.startswith("roll.")
            and getattr(module, "save_file", None) is safetensors.torch.save_file
        ):
            module.save_file = die_half_way
    save(strategy, begin(STEPS))


def resume(models, out, layout):
    backend, model, _, options, _ = LAYOUTS[layout]
    strategy = make_train_strategy(RankContext(), train_spec(backend, models / model, **OPTIONS, **options))
    checkpoint = CheckpointStore(out / layout).resolve("auto")
    strategy.load(checkpoint.trainer)
    metrics = train(strategy, range(checkpoint.step, STEPS), lambda step: list(range(len(make_batch(step)))))
    save(strategy, out / layout / "resumed")
    (out / f"{layout}-resumed.json").write_text(json.dumps({"from": checkpoint.step, "metrics": metrics}))
    strategy.close()


if __name__ == "__main__":
    if sys.argv[1] == "die":
        die(sys.argv[2], sys.argv[3], Path(sys.argv[4]), int(sys.argv[5]), int(sys.argv[6]))
    else:
        for name in sys.argv[4:]:
            resume(Path(sys.argv[2]), Path(sys.argv[3]), name)
        sys.stdout.flush()
        os._exit(0)  # process groups that libraries made are left to the end of the process
