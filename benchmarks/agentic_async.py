"""Does asynchrony pay for agents? Episodes whose turns take as long as a tool's answers, trained in four ways, with equal work.

FrozenLake played by the embedded agent; a step of the environment takes a log-normal time (mean 0.5 s, sigma 1), and one in a
hundred 20 s. The waits follow from the episode's seed and its actions, and cost no processor.

* lock-step: `async_generation_ratio` 0, and all environments of a batch take each turn together, as batched rollout loops do: a
  turn lasts as long as its slowest environment;
* ratio 0: every environment goes at its own pace, a step waits for its slowest episode;
* ratio 1: the next batch is played while this one is completed and trained;
* ratio 1 + redundancy: two episodes more than needed in each group, the first to finish count.

`wall` is the time of the measured steps (start-up, the first steps and the last ones are left out). `rollouts` is the same run
with a trainer that takes no time, `train` the seconds in which the trainer had a batch; the bound is the larger one.

The runs go side by side (`--jobs`): they wait nearly all the time, and none is held up by another's processor.

    python benchmarks/agentic_async.py [--steps 6] [--groups 8] [--jobs 7] [--ray]
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

from latency import LatencyEnv
from pipeline_run import Run, save_results
from slow_lake import run_lake, slow_lake

from roll.envs.environment import Reset, Step

GROUP = 8
WARM_UP, WIND_DOWN = 1, 1
MEAN_S, SIGMA, SLOW_SHARE, SLOW_S = 0.5, 1.0, 0.01, 20.0
MODES = ("lock-step", "ratio 0", "ratio 1", "ratio 1 + redundancy")
TARGET_SPEEDUP, TARGET_BOUND = 2.7, 1 / 0.85


class Turnstile:
    """Lets the environments of a batch go on when all of them, but those whose episode has ended, have taken their turn."""

    def __init__(self, batch: int) -> None:
        self._batch = self._playing = batch
        self._arrived = self._ended = 0
        self._turn = asyncio.Event()

    async def pass_(self, ended: bool) -> None:
        self._arrived += 1
        self._ended += ended
        turn = self._turn
        if self._arrived == self._playing:
            self._playing = (self._playing - self._ended) or self._batch
            self._arrived, self._ended, self._turn = 0, 0, asyncio.Event()
            turn.set()
        await turn.wait()


class LockstepEnv(LatencyEnv):  # type: ignore[misc]  # scripts that import each other by name are Any
    """All environments of this process that have the same `batch` take their turns together."""

    turnstiles: ClassVar[dict[int, Turnstile]] = {}

    def __init__(self, batch: int, max_turns: int, **latency: Any) -> None:
        super().__init__(**latency)
        self._turnstile = self.turnstiles.setdefault(batch, Turnstile(batch))
        self._max_turns = max_turns
        self._turns = 0

    async def reset(self, seed: int) -> Reset:
        self._turns = 0
        return await super().reset(seed)

    async def step(self, action_text: str) -> Step:
        self._turns += 1
        step = await super().step(action_text)
        _, _, terminated, truncated, _ = step
        await self._turnstile.pass_(terminated or truncated or self._turns == self._max_turns)
        return step


def overrides(mode: str, steps: int, groups: int) -> list[str]:
    redundant = 2 if "redundancy" in mode else 0
    latency: dict[str, Any] = {"mean_s": MEAN_S, "sigma": SIGMA, "hang_share": SLOW_SHARE, "hang_s": SLOW_S}
    lockstep = mode == "lock-step"
    return [
        f"async_generation_ratio={1 if 'ratio 1' in mode else 0}",
        f"max_steps={WARM_UP + steps + WIND_DOWN}",
        "save_steps=1000000",
        "val_batch_size=null",
        f"rollout_batch_size={groups * GROUP}",
        f"actor_train.training_args.per_device_train_batch_size={groups * GROUP}",
        f"train_env_manager.num_env_groups={2 * groups}",
        f"train_env_manager.group_size={GROUP}",
        f"train_env_manager.group_size_redundancy={redundant}",
        f"train_env_manager.max_env_num_per_worker={4 * groups * GROUP}",
        "train_env_manager.group_filter_cls=null",
        *slow_lake(
            "agentic_async.LockstepEnv" if lockstep else "latency.LatencyEnv",
            **({"batch": groups * GROUP, "max_turns": 10} if lockstep else {}),
            **latency,
        ),
    ]


def run(mode: str, extra: list[str], steps: int, groups: int, out: Path, ray: bool) -> Run:
    return run_lake([*overrides(mode, steps, groups), *extra], out, not ray)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=6, help="steps measured")
    parser.add_argument("--groups", type=int, default=8, help=f"groups of {GROUP} episodes in a step")
    parser.add_argument("--jobs", type=int, default=7, help="runs side by side")
    parser.add_argument("--ray", action="store_true", help="on Ray (else in one process)")
    args = parser.parse_args()

    print(
        f"{args.steps} steps of {args.groups} x {GROUP} episodes; turns log-normal, mean {MEAN_S} s, 1 % {SLOW_S:.0f} s; seconds"
    )
    print(f"{'':<22}{'wall':>8}{'speed-up':>10}{'train':>8}{'rollouts':>10}{'wall/bound':>12}{'lag':>6}{'idle: train':>13}")
    window = (WARM_UP, WARM_UP + args.steps)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(args.jobs) as pool:

        def begin(mode: str, instant: bool) -> Future[Run]:
            extra = ["actor_train.worker_cls=sync_vs_async.InstantTrainer"] if instant else []
            out = Path(folder) / f"{mode.replace(' ', '')}-{instant}"
            return pool.submit(run, mode, extra, args.steps, args.groups, out, args.ray)

        # The slowest first. Nothing overlaps in lock-step, so it has no bound of its own.
        real = {mode: begin(mode, instant=False) for mode in MODES}
        alone = {mode: begin(mode, instant=True) for mode in MODES[1:]}
        for mode in MODES:
            done = real[mode].result()
            wall = done.period_s(*window)
            train = sum(row["time/step_s"] for row in done.between(*window))
            rollouts = alone[mode].result().period_s(*window) if mode in alone else wall - train
            row = {
                "mode": mode,
                "wall_s": wall,
                "speedup": rows[0]["wall_s"] / wall if rows else 1.0,
                "train_s": train,
                "rollouts_s": rollouts,
                "wall_over_bound": wall / max(train, rollouts),
                "lag": done.summary["staleness"]["mean"],
                "idle_share": done.summary["idle_share"],
            }
            rows.append(row)
            print(
                f"{mode:<22}{wall:>8.1f}{row['speedup']:>9.2f}x{train:>8.1f}{rollouts:>10.1f}{row['wall_over_bound']:>12.2f}"
                f"{row['lag']:>6.2f}{row['idle_share']['actor_train']:>13.0%}",
                flush=True,
            )
    best = max(row["speedup"] for row in rows)
    print(f"against lock-step: {best:.2f}x (target {TARGET_SPEEDUP}x: {'met' if best >= TARGET_SPEEDUP else 'missed'})")
    within = rows[2]["wall_over_bound"] <= TARGET_BOUND
    print(f"ratio 1: wall <= bound / 0.85, that is {TARGET_BOUND:.2f}: {'met' if within else 'missed'}")
    save_results("agentic_async", {"steps": args.steps, "groups": args.groups, "rows": rows})


if __name__ == "__main__":
    main()
