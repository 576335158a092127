"""One rank of two with ZeRO-3, as a process: `deepspeed_program.py MODEL OUT RANK PORT`. OUT holds FSDP2's checkpoint `fsdp2`."""

import json
import runpy
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from roll.strategies.train import make_train_strategy
from roll.strategies.train.interface import RankContext

_RANK = runpy.run_path(str(Path(__file__).with_name("rank_program.py")))
SHARES = ([0, 2, 3], [1, 4, 5, 6])


def main(model: str, out: str, rank: int, port: int) -> None:
    folder, result, metrics = Path(out), {}, {}
    context = RankContext(rank=rank, world_size=2, master_port=port)
    # Threshold 0: parameters of any size are divided.
    zero = {"stage": 3, "stage3_param_persistence_threshold": 0}
    strategy = make_train_strategy("deepspeed_train", context, {"model_path": model, **_RANK["OPTIONS"], "zero": zero})

    def step(seed: int, broken: bool = False) -> dict[str, float]:
        batch = _RANK["make_batch"](seed)
        if broken:
            batch.advantages[-1] = torch.nan  # of a sample that only rank 1 has
        return strategy.train_step(batch.select(SHARES[rank]), _RANK["LOSS"], _RANK["totals"](batch))

    def keep(name: str) -> None:
        result.update({f"{name}/{key}": tensor for key, tensor in _RANK["exported"](strategy).items()})

    keep("fresh")
    metrics["steps"] = [step(seed) for seed in range(3)]
    strategy.save(folder / "zero3")
    keep("trained")
    metrics["broken"] = step(3, broken=True)
    keep("skipped")

    probe = _RANK["make_batch"](9).select(SHARES[rank])
    result["logprobs"] = strategy.log_probs(probe)
    strategy.offload()
    strategy.reload()
    result["logprobs-reloaded"] = strategy.log_probs(probe)
    metrics["next"] = step(3)
    keep("next")

    strategy.load(folder / "zero3")
    metrics["resumed"] = step(3)
    keep("resumed")

    strategy.load(folder / "fsdp2")
    keep("fsdp2")
    metrics["fsdp2-next"] = step(3)
    keep("fsdp2-next")

    save_file(result, folder / f"tensors-{rank}.safetensors")
    (folder / f"metrics-{rank}.json").write_text(json.dumps(metrics))
    strategy.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
