"""A thousand environments at once: what does the driver do, and does it do more when episodes are longer?

The environments wait (a turn takes 10 s on average, log-normal), as those do that ask a browser or a tool. All `--environments`
play at the same time, in one environment worker, episodes of few turns, then of many. Processor time and memory are from /proc.

* *driver*: processor seconds a group and the share of one core, in the run's steady part;
* *turns/s*: answers of the policy, that is requests to the engine. If the engine's core is busy, the environments wait for it.

    python benchmarks/many_environments.py [--environments 1000] [--turns 4 12] [--seconds 90]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from pipeline_run import save_results
from processes import Watch
from slow_lake import ENV, run_lake, slow_lake

from roll.envs.environment import Reset, Step

GROUP = 8
MEAN_S = 10.0
ROLES = ("driver", "environments", "actor_infer", "actor_train")


class Corridor:
    """Endless: an episode ends with `max_steps`. The reward is 1 for one letter, so there is something to learn."""

    instructions = "Go right."

    def reset(self, seed: int) -> Reset:
        return "P__G\n", {}

    def step(self, action_text: str) -> Step:
        right = action_text.strip() == "R"
        return "P__G\n", float(right), False, False, {"action_is_valid": True, "action_is_effective": right}

    def close(self) -> None: ...


class Steady:
    """The costs between two moments: when the run has trained its first step, and `steps` later."""

    def __init__(self, metrics: Path, steps: int) -> None:
        self._metrics, self._watch = metrics, Watch()
        self._last = 1 + steps
        self._from: tuple[float, dict[str, float]] | None = None
        self._to: tuple[float, dict[str, float]] | None = None
        self.memory: dict[str, float] = {}

    def __call__(self, pid: int) -> None:
        self._watch(pid)
        now = time.monotonic(), {name: self._watch.of(name).cpu_s for name in ROLES}
        trained = self._metrics.read_text().count("\n") if self._metrics.exists() else 0
        if trained >= 1:
            self._from = self._from or now
        if self._to is None and trained >= self._last:
            self._to = now
        self.memory = {name: self._watch.of(name).rss_mib for name in ROLES}

    def shares(self) -> tuple[float, dict[str, float]]:
        """Seconds, and processor seconds of each role in them."""
        assert self._from is not None and self._to is not None
        (begin, before), (end, after) = self._from, self._to
        return end - begin, {name: after[name] - before[name] for name in ROLES}


def overrides(environments: int, turns: int, steps: int) -> list[str]:
    groups = environments // GROUP
    batch = groups // 4 * GROUP
    return [
        "async_generation_ratio=4",
        "async_pipeline_depth=4",
        f"max_steps={steps}",
        "save_steps=1000000",
        "val_batch_size=null",
        f"rollout_batch_size={batch}",
        f"actor_train.training_args.per_device_train_batch_size={batch}",
        f"train_env_manager.num_env_groups={groups}",
        f"train_env_manager.group_size={GROUP}",
        f"train_env_manager.max_env_num_per_worker={environments}",
        "train_env_manager.group_filter_cls=null",
        "sequence_length=512",
        f"{ENV}.max_steps={turns}",
        *slow_lake(inside="many_environments.Corridor", mean_s=MEAN_S, sigma=0.5),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", type=int, default=1000)
    parser.add_argument("--turns", type=int, nargs="+", default=[4, 12], help="of an episode, one run each")
    parser.add_argument("--seconds", type=float, default=90.0, help="of the steady part, about")
    args = parser.parse_args()

    print(f"{args.environments} environments, turns of {MEAN_S:.0f} s; shares of one core, MiB resident")
    names = f"{'driver':>8}{'workers':>9}{'engine':>8}{'trainer':>9}"
    print(f"{'turns':>5}{'groups':>8}{'turns/s':>9}{'driver ms/group':>17}{names}{'memory':>46}")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        for turns in args.turns:
            folder = Path(temporary) / str(turns)
            # A step is a quarter of the environments, which end once in turns x 10 s; at the end places stay empty.
            steps = max(2, round(args.seconds / (turns * MEAN_S / 4)))
            look = Steady(folder / "run" / "metrics.jsonl", steps)
            run = run_lake(overrides(args.environments, turns, 1 + steps + 5), folder, local=False, look=look)
            wall, cpu = look.shares()
            episodes = sum(row["env/episodes"] for row in run.between(1, 1 + steps))
            row = {
                "turns": turns,
                "groups": episodes / GROUP,
                "turns_per_s": episodes * turns / wall,
                "driver_ms_per_group": 1000 * cpu["driver"] / (episodes / GROUP),
                "cpu_share": {name: seconds / wall for name, seconds in cpu.items()},
                "rss_mib": look.memory,
                "wall_s": wall,
            }
            rows.append(row)
            share = row["cpu_share"]
            memory = " ".join(f"{name.removeprefix('actor_')[:6]} {look.memory[name]:.0f}" for name in ROLES)
            print(
                f"{turns:>5}{row['groups']:>8.0f}{row['turns_per_s']:>9.0f}{row['driver_ms_per_group']:>17.1f}{share['driver']:>8.0%}"
                f"{share['environments']:>9.0%}{share['actor_infer']:>8.0%}{share['actor_train']:>9.0%}  {memory:>44}",
                flush=True,
            )
    save_results("many_environments", {"environments": args.environments, "rows": rows})


if __name__ == "__main__":
    main()
