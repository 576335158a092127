"""Bias and noise of every registered policy loss against the age of its data, and bias of advantages: prints two exact tables.

The world is a tabular softmax policy over all sequences of at most 3 tokens (`tests/algorithms/exact_world.py`). The policy has
made `max(lags)` exact gradient steps; data of lag k come from the policy k steps back. Advantages are rewards minus the behaviour
policy's mean reward, losses have their default settings and are summed over the tokens of a sequence. Nothing is sampled.

    bias   ‖E[update] − g‖ / ‖g‖, g the true policy gradient: 0 is right
    angle  between E[update] and g, in degrees: what is left of the bias if only the direction matters
    noise  √(trace of the covariance of one sample's update) / ‖g‖

`sequence weight, not cut` is −w·A·ℓ with w the whole sequence's importance weight: the one unbiased estimator. A clipped loss is
meant to stop where a policy has moved far from its data; the table shows by how much it then misses the gradient.

The second table is on-policy: the exact mean of A·∇log π over all groups of 2 and 3 samples of one prompt with real-valued
rewards, before any whitening.

The third is on-policy, too, in a world of 24 tokens: what is sampled is cut by top_p or top_k, and the truth is the gradient of
the expected reward of the cut policy. `whole`: log-probs are those of the whole distribution; `kept`: over the tokens that were
kept (`keep_sampling_mask`). Exit code 1 if a bias of `kept` is above 1e-6.

    python benchmarks/exact_world_table.py [--lags 0 1 2 4 8] [--rate 1.0] [--top_p 0.9 0.7] [--top_k 20]
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "algorithms"))

from exact_world import CutWorld, Estimate, World, baseline_expectation, estimate

from roll.core.algorithms.loss import LossSpec
from roll.core.algorithms.pg_variants import get_policy_loss
from roll.core.algorithms.policy_loss import policy_losses
from roll.core.algorithms.sequence_advantages import advantage_estimator

EXACT = "sequence weight, not cut"


def bias_and_angle(mean: Tensor, truth: Tensor) -> tuple[float, float]:
    cosine = float(mean @ truth / (mean.norm() * truth.norm()).clamp(min=1e-300))
    return float((mean - truth).norm() / truth.norm()), math.degrees(math.acos(max(-1.0, min(1.0, cosine))))


def cell(found: Estimate, truth: Tensor) -> str:
    bias, angle = bias_and_angle(found.mean, truth)
    return f"| {bias:6.3f} {angle:6.1f} {math.sqrt(found.variance) / float(truth.norm()):7.2f}".ljust(26)


def print_baselines(sizes: tuple[int, ...] = (2, 3)) -> None:
    world = World(binary=False)
    policy = world.policy(seed=5)
    truth = world.true_gradient(policy)
    print(f"\n{'':30}" + "".join(f"| groups of {size}".ljust(18) for size in sizes))
    print(f"{'adv_estimator':30}" + f"{'|   bias  angle':18}" * len(sizes))
    for name in advantage_estimator.names:
        if name != "gpg":  # that is dr_grpo, times a factor that only a batch of several groups has
            found = [bias_and_angle(baseline_expectation(world, policy, name, size), truth) for size in sizes]
            print(f"{name:30}" + "".join(f"| {bias:6.3f} {angle:6.1f}".ljust(18) for bias, angle in found))


KEPT_BIAS = 1e-6
"""More is a fault."""


def cut_biases(top_p: float, top_k: int, variant: str = "ppo") -> tuple[float, float, float]:
    """Bias with log-probs of the whole distribution, bias with those over what was kept, and the mean kept probability."""
    whole = World(vocabulary=24, length=2, binary=False)
    policy = whole.policy(seed=3, scale=1.5)
    cut = CutWorld(vocabulary=24, length=2, binary=False, kept_of=policy, top_p=top_p, top_k=top_k)
    truth = cut.true_gradient(policy)
    advantages = whole.rewards - cut.probabilities(policy) @ whole.rewards
    spec = LossSpec(pg_variant=variant, aggregation="seq-mean-token-sum")
    found = [estimate(world, spec, policy, policy, advantages, sampled=cut).mean for world in (whole, cut)]
    mass = policy.softmax(-1).masked_fill(cut.kept.cut(0, 24), 0.0).sum(1).mean()
    return bias_and_angle(found[0], truth)[0], bias_and_angle(found[1], truth)[0], float(mass)


def print_cuts(settings: list[tuple[float, int]]) -> bool:
    """Whether log-probs over what was kept have no bias."""
    print(f"\n{'sampling':14}| p(kept) |  whole |    kept")
    right = True
    for top_p, top_k in settings:
        whole, kept, mass = cut_biases(top_p, top_k)
        name = f"top_k {top_k}" if top_k else f"top_p {top_p:g}"
        print(f"{name:14}|  {mass:6.3f} | {whole:6.3f} | {kept:7.0e}")
        right &= kept <= KEPT_BIAS
    return right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lags", type=int, nargs="+", default=[0, 1, 2, 4, 8])
    parser.add_argument("--rate", type=float, default=1.0, help="step size of the gradient steps between the policies")
    parser.add_argument("--top_p", type=float, nargs="+", default=[0.9, 0.7])
    parser.add_argument("--top_k", type=int, nargs="+", default=[20])
    args = parser.parse_args()
    torch.set_num_threads(1)

    get_policy_loss()  # registers the built-in ones
    world = World()
    policies = world.ascent(world.policy(seed=1), max(args.lags), args.rate)
    current = policies[-1]
    truth = world.true_gradient(current)
    behaviours = [policies[-1 - lag] for lag in args.lags]

    print(f"{len(world.sequences)} sequences, {current.numel()} parameters, expected reward of the policies by lag:")
    print(
        "  "
        + "  ".join(f"{lag}: {world.probabilities(b) @ world.rewards:.3f}" for lag, b in zip(args.lags, behaviours, strict=True))
    )
    head = "".join(f"| lag {lag}".ljust(26) for lag in args.lags)
    print(f"\n{'':26}{head}\n{'pg_variant':26}" + f"{'|   bias  angle   noise':26}" * len(args.lags))
    for name in [EXACT, *policy_losses.names]:
        cells = []
        for behaviour in behaviours:
            advantages = world.rewards - world.probabilities(behaviour) @ world.rewards
            if name == EXACT:
                advantages = advantages * world.probabilities(current) / world.probabilities(behaviour)
            spec = LossSpec(pg_variant="vanilla" if name == EXACT else name, aggregation="seq-mean-token-sum")
            cells.append(cell(estimate(world, spec, current, behaviour, advantages), truth))
        print(f"{name:26}" + "".join(cells))
    print_baselines()
    if not print_cuts([*((top_p, 0) for top_p in args.top_p), *((1.0, top_k) for top_k in args.top_k)]):
        sys.exit(f"log-probs over the kept tokens have a bias above {KEPT_BIAS:g}")


if __name__ == "__main__":
    main()
