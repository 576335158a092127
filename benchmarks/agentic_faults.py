"""What do failing environments cost? Agentic training with reliable environments, and with these faults in the same work:

* 5 % of the steps raise, 1 % hang (and are given up after `--timeout` seconds),
* one of the environment workers is killed (SIGKILL) in the middle of the run.

One row a policy (`on_env_failure`; `+n`: with n redundant episodes a group): what became of the groups, whether the accounts add
up, and trained episodes a second beside the run without faults. A turn waits a log-normal time, mean 0.2 s.

    python benchmarks/agentic_faults.py [--steps 8] [--groups 4] [--policies retry drop_sample drop_sample+4]
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline_run import Run, save_results
from processes import family
from slow_lake import ENV, run_lake, slow_lake

GROUP = 8
WARM_UP = 2
RAISES, HANGS = 0.05, 0.01


def overrides(steps: int, groups: int, wish: str, timeout_s: float, faulty: bool) -> list[str]:
    policy, _, redundant = wish.partition("+")
    faults = {"raise_share": RAISES, "hang_share": HANGS} if faulty else {}
    return [
        "async_generation_ratio=1",
        f"max_steps={WARM_UP + steps}",
        "save_steps=1000000",
        "val_batch_size=null",
        f"rollout_batch_size={groups * GROUP}",
        f"actor_train.training_args.per_device_train_batch_size={groups * GROUP}",
        f"train_env_manager.num_env_groups={2 * groups}",
        f"train_env_manager.group_size={GROUP}",
        f"train_env_manager.group_size_redundancy={redundant or 0}",
        f"train_env_manager.max_env_num_per_worker={groups * GROUP}",  # two workers
        "train_env_manager.group_filter_cls=null",
        f"++{ENV}.on_env_failure={policy}",
        f"++{ENV}.step_timeout_s={timeout_s}",
        *slow_lake(mean_s=0.2, sigma=1.0, **faults),
    ]


class KillOnce:
    """Kills an environment worker when the run has trained some steps."""

    def __init__(self, metrics: Path, after: int) -> None:
        self._metrics, self._after = metrics, after
        self.killed = 0

    def __call__(self, pid: int) -> None:
        if self.killed or not self._metrics.exists() or len(self._metrics.read_text().splitlines()) < self._after:
            return
        victims = [child for child, title in family(pid).items() if title.startswith("ray::environments-1")]
        if victims:
            os.kill(victims[0], signal.SIGKILL)
            self.killed += 1


def accounts(run: Run, folder: Path) -> bool:
    """Every group that was admitted has exactly one terminal status, and as many were trained as the steps needed."""
    from roll.core.record.journal import read_rows

    groups = run.summary["groups"]
    statuses = sorted(row["group_id"] for row in read_rows(folder / "run" / "groups.jsonl"))
    known = groups["trained"] + sum(groups["dropped"].values()) + groups["buffered"] + groups["in_flight"]
    return (
        groups["admitted"] == known
        and statuses == sorted(set(statuses))
        and len(statuses) + groups["buffered"] + groups["in_flight"] == known
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8, help="steps measured")
    parser.add_argument("--groups", type=int, default=4, help=f"groups of {GROUP} episodes in a step")
    parser.add_argument("--timeout", type=float, default=5.0, help="seconds after which a step has hung")
    parser.add_argument("--policies", nargs="+", default=["retry", "drop_sample", "drop_sample+4"])
    args = parser.parse_args()

    print(f"{args.steps} steps of {args.groups} x {GROUP} episodes; of the turns {RAISES:.0%} raise, {HANGS:.0%} hang; one kill")
    print(f"{'':<14}{'wall s':>8}{'episodes/s':>12}{'lost':>7}{'failed':>8}{'kills':>7}{'groups dropped':>16}{'accounts':>10}")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        for name in ("no faults", *args.policies):
            faulty = name != "no faults"
            folder = Path(temporary) / name.replace(" ", "-")
            kill = KillOnce(folder / "run" / "metrics.jsonl", WARM_UP + args.steps // 2)
            look: Callable[[int], None] | None = kill if faulty else None
            given = overrides(args.steps, args.groups, name if faulty else "retry", args.timeout, faulty)
            run = run_lake(given, folder, local=False, look=look)
            wall = run.period_s(WARM_UP, WARM_UP + args.steps)
            episodes = (
                sum(row.get("env/episodes", args.groups * GROUP) for row in run.between(WARM_UP, WARM_UP + args.steps)) / wall
            )
            failures = {key.rpartition("/")[2]: value for key, value in run.steps[-1].items() if key.startswith("env/failures/")}
            row = {
                "policy": name,
                "wall_s": wall,
                "episodes_per_s": episodes,
                "lost_share": 1 - episodes / rows[0]["episodes_per_s"] if rows else 0.0,
                "failures": failures,
                "worker_deaths": run.summary.get("environment_worker_deaths", 0),
                "groups": run.summary["groups"],
                "accounts_add_up": accounts(run, folder),
            }
            rows.append(row)
            print(
                f"{name:<14}{wall:>8.1f}{episodes:>12.2f}{row['lost_share']:>7.0%}{sum(failures.values()):>8.0f}"
                f"{row['worker_deaths']:>7}{sum(row['groups']['dropped'].values()):>16}{row['accounts_add_up']!s:>10}",
                flush=True,
            )
            assert not faulty or row["worker_deaths"] == kill.killed == 1
    save_results("agentic_faults", {"steps": args.steps, "groups": args.groups, "rows": rows})


if __name__ == "__main__":
    main()
