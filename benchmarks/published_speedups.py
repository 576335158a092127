"""Whether the speed-ups that others have published for asynchronous training follow from asynchrony alone: the code of `roll
simulate`, on virtual time, with their figures where they give any.

    verl      Qwen2.5-Math-7B, 32 GPUs, responses of up to 28k tokens, 16 a prompt. Synchronous on shared GPUs: 790 s a step, of
              which 357 are generation, 108 old log-probs, 270 the update. Asynchronous with 16 and 16, staleness 0.5: 295 s,
              2.66 times as fast over the run; an update takes 314 s there, and old log-probs are those of the sampler
    ROLL      ROLL Flash, Qwen3-8B: 2.24 times as fast; generation is more than 0.7 of a synchronous step
    AReaL     1.5B on 128 GPUs: 2.77 times

Neither seconds by role nor lengths are published of the last two, so the table has the tail that would explain them: lengths are
lognormal with a coefficient of variation `cv`, generation is 0.7 of the synchronous step, and the split is the best of all.
Rates are set so that the synchronous step has the shares that are published. `bound`: if both halves had work all the time and
engines ran at their best rate, a step would take max(generation / engines, training / trainers). `by group`: the same split
where a group is one request, which keeps its places on an engine until its last response is complete. A quarter of verl's
GPUs has a quarter of its batch here, and takes as long.

    python benchmarks/published_speedups.py
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline_run import ROOT, save_results

from roll.cli.options import that_generates
from roll.prepare.compose import load
from roll.simulate.costs import Costs, Spread
from roll.simulate.figures import steady, step_rows
from roll.simulate.run import Simulation, simulate, simulated

DEVICES, PROMPTS, SAMPLES, STEPS = 8, 120, 16, 16
LONGEST, MEAN, PROMPT = 28_000, 4_000, 200
RUNNING = 256
"""Requests of an engine at the most."""
RATES = ((1.0, 100.0), (64.0, 5_565.0), (256.0, 16_000.0))
"""Of an engine, by how many requests run: a token step takes 10 ms with one and 16 ms with 256, as decoding is bound by memory.
Scaled to the published seconds."""
TRIED = 1000.0
"""Tokens per second of a training rank, to find out how many a step has."""
TAILS = (0.5, 1.0, 2.0)


VERL = {"generation": 357.0, "training": 270.0, "log_probs": 108.0, "other": 55.0}
VERL_ASYNC_S, VERL_ASYNC_UPDATE_S = 294.8, 313.8
SHARES = {"generation": 70.0, "training": 30.0, "log_probs": 0.0, "other": 0.0}
SPLITS = (3, 4, 5)
"""Trainers of 8 devices."""


def step_s(costs: Costs, trainers: int, engines: int = 0, ratio: float = 0.0, recompute: bool = False) -> float:
    """`engines` 0: on the trainers' devices, in turns."""
    infer = list(range(trainers, trainers + engines)) if engines else list(range(trainers))
    overrides = [
        *(f"rollout_batch_size={PROMPTS}", f"num_return_sequences_in_group={SAMPLES}", f"max_steps={STEPS}", "validation=null"),
        *(f"response_length={LONGEST}", "prompt_length=512", f"max_running_requests={RUNNING}"),
        *(f"async_generation_ratio={ratio}", f"old_logprobs={'recompute' if recompute else 'bypass'}"),
        *(f"num_gpus_per_node={trainers + engines}", f"actor_train.device_mapping={list(range(trainers))}"),
        *(f"actor_infer.device_mapping={infer}", f"actor_train.training_args.per_device_train_batch_size={SAMPLES}"),
        f"actor_train.training_args.gradient_accumulation_steps={PROMPTS // trainers}",
    ]
    with tempfile.TemporaryDirectory() as folder:
        config, _ = load(ROOT / "examples/config", "rlvr_config_async", overrides)
        config = simulated(that_generates(config, "rlvr_config_async"), Path(folder))
        summary = simulate(Simulation(config, costs))
        if summary["status"] != "finished":
            raise RuntimeError(summary["reason"])
        return steady(step_rows(Path(config.run_dir)), PROMPTS * SAMPLES, MEAN * SAMPLES).step_s


@dataclass(frozen=True)
class World:
    """Costs with which a synchronous step on all devices takes what is published."""

    costs: Costs
    tokens: float
    """Of the responses of a step."""
    shares: dict[str, float]

    @classmethod
    def of(cls, cv: float, shares: dict[str, float]) -> World:
        raw = Costs(response_tokens=Spread(MEAN, cv), prompt_tokens=PROMPT, tokens_per_s=RATES)
        generation = step_s(raw, DEVICES)
        per_rank = TRIED * (step_s(replace(raw, train_tokens_per_s=TRIED), DEVICES) - generation)
        faster = generation / shares["generation"]
        costs = replace(
            raw,
            tokens_per_s=tuple((running, rate * faster) for running, rate in RATES),
            train_tokens_per_s=per_rank / shares["training"],
            score_tokens_per_s=per_rank / shares["log_probs"] if shares["log_probs"] else 0.0,
            train_s=shares["other"],
        )
        return cls(costs, per_rank * DEVICES - PROMPTS * SAMPLES * PROMPT, shares)

    @property
    def synchronous_s(self) -> float:
        return step_s(self.costs, DEVICES, recompute=bool(self.shares["log_probs"]))

    def bound_s(self, trainers: int, training_s: float | None = None) -> float:
        best_rate = max(rate for _, rate in self.costs.tokens_per_s)
        training = self.shares["training"] * DEVICES / trainers if training_s is None else training_s
        return max(self.tokens / best_rate / (DEVICES - trainers), training)

    def asynchronous_s(self, trainers: int, ratio: float, training_s: float | None = None) -> float:
        """Without old log-probs. `training_s`: of those trainers, if not what it takes when the work is divided evenly."""
        costs = replace(self.costs, train_s=0.0)
        if training_s is not None:
            even = self.shares["training"] * DEVICES / trainers
            costs = replace(costs, train_tokens_per_s=costs.train_tokens_per_s * even / training_s)
        return step_s(costs, trainers, DEVICES - trainers, ratio)


def verl() -> Iterator[dict[str, object]]:
    print("verl, published: 790 s, asynchronous 295 s: 2.68 times as fast by the step, 2.66 over the run")
    print(f"{'cv':>4}{'ratio':>7}{'even split':>14}{'':>7}{'bound':>7}{'their update':>14}{'':>7}{'bound':>7}")
    for cv in TAILS:
        world = World.of(cv, VERL)
        before, bounds = world.synchronous_s, (world.bound_s(4), world.bound_s(4, VERL_ASYNC_UPDATE_S))
        for ratio in (0.5, 1.0, 2.0):
            even, theirs = world.asynchronous_s(4, ratio), world.asynchronous_s(4, ratio, VERL_ASYNC_UPDATE_S)
            yield {"cv": cv, "ratio": ratio, "synchronous_s": before, "even_s": even, "theirs_s": theirs, "bounds_s": bounds}
            figures = f"{even:12.0f} s{before / even:6.2f}x{before / bounds[0]:6.2f}x"
            print(f"{cv:4}{ratio:7g}{figures}{theirs:12.0f} s{before / theirs:6.2f}x{before / bounds[1]:6.2f}x", flush=True)


def tails() -> Iterator[dict[str, object]]:
    print("\ngeneration 0.7 of the synchronous step, training divided evenly; published: 2.24 (ROLL Flash), 2.77 (AReaL)")
    print(f"{'cv':>4}{'ratio':>7}{'best split':>12}{'speed-up':>10}{'bound':>7}")
    for cv in TAILS:
        world = World.of(cv, SHARES)
        before = world.synchronous_s
        for ratio in (1.0, 4.0):
            found = {trainers: world.asynchronous_s(trainers, ratio) for trainers in SPLITS}
            best = min(found, key=lambda trainers: found[trainers])
            speed_up, bound = before / found[best], max(before / world.bound_s(trainers) for trainers in SPLITS)
            yield {"cv": cv, "ratio": ratio, "trainers": best, "speed_up": speed_up, "bound": bound}
            print(f"{cv:4}{ratio:7g}{best:8} : {DEVICES - best}{speed_up:9.2f}x{bound:6.2f}x", flush=True)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    save_results("published_speedups", {"verl": list(verl()), "tails": list(tails())})


if __name__ == "__main__":
    main()
