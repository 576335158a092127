"""What `reward_watch` finds in twelve runs whose reward or learning rate is wrong, and what it says of twenty healthy ones.

The runs are those of the embedded model; the wrong rewards pay for length, for one answer, or for the first figure of the answer.

    python benchmarks/reward_watch.py [--steps 60]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from pipeline_run import ROOT, run_pipeline, save_results

from roll.core.data.sample import Sample
from roll.core.rewards.worker import RewardWorker

RATE = "actor_train.training_args.learning_rate"
WORKER = "rewards.arithmetic.worker_cls"


class Longer(RewardWorker):
    reads = frozenset[str]()

    async def grade(self, sample: Sample) -> float:
        return min(1.0, len(sample.response_ids) / 16)


class OneAnswer(RewardWorker):
    """Pays for what the policy says now and then, whatever the prompt."""

    reads = frozenset[str]()
    answer = "101"

    async def grade(self, sample: Sample) -> float:
        return float(sample.response_text.strip() == self.answer)


class LikelierAnswer(OneAnswer):
    answer = "89"


class Beginning(RewardWorker):
    """Takes what the answer begins with for the answer, as a comparison the wrong way round does."""

    reads = frozenset[str]()

    async def grade(self, sample: Sample) -> float:
        said = sample.response_text.strip()
        return float(bool(said) and sample.prompt.ground_truth.startswith(said))


FAULTS = {
    "length": (f"{WORKER}=reward_watch.Longer", "response_length=16"),
    "one answer": (f"{WORKER}=reward_watch.OneAnswer",),
    "a likelier answer": (f"{WORKER}=reward_watch.LikelierAnswer",),
    "the beginning": (f"{WORKER}=reward_watch.Beginning",),
    "rate 1e-2": (f"{RATE}=1.0e-2",),
    "rate 3e-2": (f"{RATE}=3.0e-2",),
}
HEALTHY: dict[str, tuple[str, ...]] = {
    "as it is": (),
    "rate 1e-3": (f"{RATE}=1.0e-3",),
    "ratio 0": ("async_generation_ratio=0",),
    "ratio 2": ("async_generation_ratio=2",),
    "groups of 4": ("num_return_sequences_in_group=4", "rollout_batch_size=64"),
    "gspo": ("actor_train.pg_variant=gspo",),
    "reinforce": ("adv_estimator=reinforce",),
    "entropy bonus": ("entropy_loss_coef=0.01",),
    "longer room": ("response_length=16",),
    "small batches": ("rollout_batch_size=8", "actor_train.training_args.per_device_train_batch_size=64"),
}
UNSTEADY: dict[str, tuple[str, ...]] = {"ratio 2, cispo": ("async_generation_ratio=2", "actor_train.pg_variant=cispo")}
"""Success rises and falls by more than half, now and then: neither found nor false."""


def watched(folder: Path, name: str, seed: int, steps: int, changes: tuple[str, ...]) -> list[str]:
    overrides = [f"seed={seed}", f"max_steps={steps}", "save_steps=0", *changes]
    config = ROOT / "examples/config/rlvr_config_async.yaml"
    run = run_pipeline(config, overrides, folder / name.replace(" ", "-"), local=True, no_validation=())
    said = [line for line in run.summary["warnings"] if line.startswith("reward_watch")]
    print(f"{name:<22} {said[0][:150] if said else '-'}", flush=True)
    return said


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        wrong, healthy, unsteady = (
            {
                f"{each} {seed}": watched(Path(name), f"{each} {seed}", seed, args.steps, changes)
                for each, changes in runs.items()
                for seed in (1, 2)
            }
            for runs in (FAULTS, HEALTHY, UNSTEADY)
        )
    found, false = sum(map(bool, wrong.values())), sum(map(bool, healthy.values()))
    print(f"{found} of {len(wrong)} wrong runs were found, and {false} of {len(healthy)} healthy ones were warned of")
    save_results("reward_watch", {"wrong": wrong, "healthy": healthy, "unsteady": unsteady})


if __name__ == "__main__":
    main()
