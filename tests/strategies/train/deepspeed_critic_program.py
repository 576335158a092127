"""The critic on DeepSpeed, in a process of its own (DeepSpeed keeps its process group for life): `... MODEL OUT ZERO_STAGE`."""

import json
import runpy
import sys
from pathlib import Path

from safetensors.torch import save_file
from saving import save
from train_specs import train_spec

from roll.core.workers.train_backends import make_critic
from roll.core.workers.train_interface import RankContext

_CRITIC = runpy.run_path(str(Path(__file__).with_name("critic_program.py")))


def main(model, out, stage):
    folder = Path(out)
    spec = train_spec("deepspeed_train", model, **_CRITIC["OPTIONS"], zero={"stage": stage})
    critic = make_critic(RankContext(), spec)
    metrics = []
    for step in range(2):
        batch = _CRITIC["make_batch"](step)
        metrics.append(critic.train_values(batch, _CRITIC["LOSS"], _CRITIC["totals"](batch)))
    (folder / "metrics.json").write_text(json.dumps(metrics))
    save_file({"values": critic.values(_CRITIC["make_batch"](9))}, folder / "values.safetensors")
    save(critic, folder / "checkpoint")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
