"""What one rank and `hf_infer` compute on a device, as a process: `stand_in_program.py MODEL OUT cpu`, or `... stand:0`."""

import asyncio
import contextlib
import json
import runpy
import sys
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from saving import save
from train_specs import fsdp2_spec

from roll.core.configs.losses import POLICY_LOSSES
from roll.core.weights.bucket import manifest_of
from roll.core.workers.infer_interface import GenerateRequest, SamplingParams
from roll.core.workers.train_interface import RankContext
from roll.strategies.infer.hf.strategy import HFInferStrategy
from roll.strategies.train.critic import FSDP2Critic
from roll.strategies.train.fsdp2 import FSDP2Strategy

_HERE = Path(__file__).parent
SHARED = runpy.run_path(str(_HERE / "rank_program.py"))
CRITIC = runpy.run_path(str(_HERE / "critic_program.py"))
OPTIONS, LOSS, make_batch, totals, exported = (SHARED[name] for name in ("OPTIONS", "LOSS", "make_batch", "totals", "exported"))
SAMPLED = {
    "greedy": SamplingParams(temperature=0.0, max_new_tokens=6),
    "whole": SamplingParams(max_new_tokens=6),
    "cut": SamplingParams(top_p=0.8, top_k=20, max_new_tokens=6, with_kept=True),
}


def train(model, out, device, counted):
    """Log-probs, a step of each loss, and what leaves a trainer."""
    strategy = FSDP2Strategy(RankContext(device=device), fsdp2_spec(model, **OPTIONS))
    batch, metrics = make_batch(0), {}
    with counted("log_probs"):
        tensors = {"logprobs": strategy.log_probs(batch)}
    for variant in POLICY_LOSSES:
        with counted("step"):
            metrics[variant] = strategy.train_step(batch, replace(LOSS, pg_variant=variant), totals(batch))
    in_parts = SHARED["in_parts"](strategy, batch, LOSS, totals(batch))
    save(strategy, out / "checkpoint")
    strategy.load(out / "checkpoint")
    tensors |= {f"trained/{name}": tensor.cpu() for name, tensor in exported(strategy).items()}
    adapted = FSDP2Strategy(RankContext(device=device), fsdp2_spec(model, **{**OPTIONS, **SHARED["LORA"]}))
    metrics |= {"in parts": in_parts, "lora": adapted.train_step(batch, LOSS, totals(batch))}
    tensors |= {f"adapted/{name}": tensor.cpu() for name, tensor in exported(adapted).items()}
    critic, batch = FSDP2Critic(RankContext(device=device), fsdp2_spec(model, **OPTIONS)), CRITIC["make_batch"](0)
    metrics["critic"] = critic.train_values(batch, CRITIC["LOSS"], totals(batch))
    tensors["values"] = critic.values(batch)
    (out / "metrics.json").write_text(json.dumps(metrics))
    save_file(tensors, out / "tensors.safetensors")
    return list(strategy.export_weights(1 << 20))


async def generate(model, device, buckets):
    """Tokens before and after a weight update, and after the engine has slept."""
    engine = HFInferStrategy(model, max_running_requests=4, max_length=32, threads=1, device=device)

    async def said():
        asked = [
            GenerateRequest(f"{name}/{n}", (1, 2, 3 + n), replace(each, seed=n))
            for name, each in SAMPLED.items()
            for n in range(3)
        ]
        return [list((await engine.generate(request)).token_ids) for request in asked]

    found = [await said()]
    for bucket in buckets:
        await engine.receive_bucket(1, bucket)
    await engine.activate_weights(manifest_of(1, buckets), "in_flight")
    found.append(await said())
    await engine.sleep()
    await engine.wake()
    found.append(await said())
    await engine.close()
    return found


def refusals(device):
    """What this device says to what it should refuse."""
    here, there = torch.ones(2), torch.ones(2, device=device)
    for asked in (lambda: here + there, lambda: here[there.long()], there.numpy, lambda: torch.cat([here, there])):
        try:
            asked()
            yield "nothing"
        except (RuntimeError, TypeError) as error:
            yield str(error)


def main(model, out, device):
    waits, everywhere = {}, contextlib.nullcontext()
    if device != "cpu":
        import stand_in_device

        everywhere = stand_in_device.everywhere()

    @contextlib.contextmanager
    def counted(what):
        if device != "cpu":
            stand_in_device.waits.clear()
        yield
        if device != "cpu":
            waits[what] = dict(stand_in_device.waits)

    folder = Path(out)
    with everywhere:
        buckets = train(model, folder, device, counted)
        tokens = asyncio.run(generate(model, device, buckets))
        (folder / "refusals.json").write_text(json.dumps([*refusals(device)]))
    (folder / "tokens.json").write_text(json.dumps(tokens))
    (folder / "waits.json").write_text(json.dumps(waits))


if __name__ == "__main__":
    main(*sys.argv[1:])
