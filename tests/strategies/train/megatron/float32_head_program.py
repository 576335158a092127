"""One of two ranks that divide the vocabulary: `float32_head_program.py MODEL OUT RANK PORTS`. Saves what the head was given and
what it said, with logits in float32 and rounded."""

import runpy
import sys
from pathlib import Path

from safetensors.torch import save_file
from train_specs import train_spec

from roll.core.workers.train_interface import RankContext
from roll.strategies.train.logprobs import head_logprobs
from roll.strategies.train.megatron import model
from roll.strategies.train.megatron.strategy import MegatronStrategy

SHARED = runpy.run_path(str(Path(__file__).parents[1] / "rank_program.py"))


def main(folder, out, rank, ports):
    said = {}

    def recorded(hidden, weight, bias, targets, temperature, *given, **named):
        found = head_logprobs(hidden, weight, bias, targets, temperature, *given, **named)
        values = {"hidden": hidden, "weight": weight[: named["columns"]], "targets": targets, "temperature": temperature}
        said.update({name: value.detach().clone() for name, value in {**values, "logprobs": found[0]}.items()})
        return found

    model.head_logprobs = recorded
    for name, head_dtype, port in (("fp32", "fp32", ports[0]), ("rounded", None, ports[1])):
        options = {"dtype": "bf16", "head_dtype": head_dtype, "tensor_model_parallel_size": 2, "trainable": False}
        options |= {"max_tokens_per_microbatch_infer": 1000}
        strategy = MegatronStrategy(
            RankContext(rank=rank, world_size=2, master_port=port), train_spec("megatron_infer", folder, **options)
        )
        said.clear()
        strategy.log_probs(SHARED["make_batch"](9))
        save_file(said, out / f"{name}-{rank}.safetensors")
        strategy.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), [int(port) for port in sys.argv[4].split(",")])
