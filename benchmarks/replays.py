"""Can an asynchronous run be had again, bit for bit? Twenty short runs of the embedded models, each recorded, disturbed, and then
trained again by `roll replay`: at four ratios, with a critic, adapters, two ranks, killed workers and drivers, interrupts,
explorers apart, and agents. Their tokens are generated again, too (`--all`).

Needs the models of make_embedded.py and make_frozen_lake.py. What a run has recorded must lead to its own weights at every step.

    python benchmarks/replays.py [--only NAME ...] [--steps 12] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline_run import ROOT, save_results
from processes import family

ROLL = [sys.executable, "-m", "roll.cli.main"]
LIMIT_S = 600.0
RECORDED = ["rollout_log_per_step=all", "deterministic=training", "save_steps=2", "eval_steps=1000000", "track_with=none"]
THREE = "++num_gpus_per_node=3"  # slots of this machine
CRITIC = ["adv_estimator=gae", "++critic.device_mapping=[0]", "++critic.training_args.learning_rate=3.0e-4"]
KL = ["++reference.device_mapping=[0]", "adv_estimator=reinforce", "++norm_mean_type=running", "++add_token_level_kl=true"]
TWO_RANKS = ["actor_train.device_mapping=[0,1]", "actor_infer.device_mapping=[2]"]
TWO_RANKS += ["actor_train.training_args.per_device_train_batch_size=128"]
WHOLE_EPISODES = "roll.pipeline.agentic.env_manager.traj_env_manager.TrajEnvManager"
RESUMED = "resume_from_checkpoint=auto"


@dataclass(frozen=True)
class Case:
    ratio: float
    changes: Sequence[str] = ()
    agents: bool = False
    trouble: str = ""
    """A worker that is killed, "SIGINT" or "SIGKILL" of the driver, which is then resumed, or "apart"."""

    @property
    def local(self) -> bool:
        """Workers that are killed, and ranks, are processes: they need Ray."""
        return not self.trouble.startswith("ray::") and self.changes is not TWO_RANKS


CASES = {
    "half a batch ahead": Case(0.5),
    "one batch ahead": Case(1),
    "two batches ahead, groups are trained twice": Case(2, ["max_reuse=2"]),
    "four batches ahead": Case(4),
    "versions every second step": Case(2, ["weight_push_interval=2"]),
    "a critic": Case(1, CRITIC),
    "adapters": Case(2, ["++actor_train.model_args.lora_target=all-linear"]),
    "a reference, running moments": Case(1, KL),
    "a copy scores the version before": Case(2, ["old_logprobs=recompute", "++actor_log_prob.device_mapping=[2]"]),
    "a cut distribution": Case(1, ["++actor_infer.generating_args.top_p=0.7"]),
    "groups train as they arrive": Case(1, ["train_on_arrival=true"]),
    "two ranks": Case(1, TWO_RANKS),
    "an engine is killed": Case(2, ["actor_infer.device_mapping=[1,2]"], trouble="ray::actor_infer-1"),
    "a trainer is killed": Case(2, ["++max_trainer_restarts=2"], trouble="ray::actor_train-0"),
    "interrupted and resumed": Case(2, trouble="SIGINT"),
    "the driver is killed, and resumed": Case(4, trouble="SIGKILL"),
    "trainer and explorer apart": Case(2, trouble="apart"),
    "agents, turn by turn": Case(1, agents=True),
    "agents, whole episodes": Case(4, [f"custom_envs.FrozenLake.env_manager_cls={WHOLE_EPISODES}"], agents=True),
    "agents, the driver is killed, and resumed": Case(2, agents=True, trouble="SIGKILL"),
}


def started(case: Case, folder: Path, steps: int, *more: str) -> subprocess.Popen[bytes]:
    kind, name = ("agentic", "agent_val_frozen_lake_async") if case.agents else ("rlvr", "rlvr_config_async")
    no_validation = ["val_batch_size=null"] if case.agents else ["validation=null"]
    where = ["--config_path", str(ROOT / "examples" / "config"), "--config_name", name, *(["--local"] if case.local else [])]
    given = [f"async_generation_ratio={case.ratio}", f"max_steps={steps}", f"output_dir={folder}", "exp_name=run", THREE]
    command = [*ROLL, "train", kind, *where, *given, *RECORDED, *no_validation, *case.changes, *more]
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    with (folder / "console.txt").open("ab") as console:
        environment = {**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1"}
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=console, stderr=subprocess.STDOUT)


def trained(folder: Path) -> int:
    """Steps that metrics.jsonl has."""
    file = folder / "run" / "metrics.jsonl"
    return file.read_text().count('"time/step_s"') if file.exists() else 0


def strike(process: subprocess.Popen[bytes], folder: Path, trouble: str) -> None:
    """Waits for the third step, then kills the driver, or a worker whose title begins so."""
    end = time.monotonic() + LIMIT_S
    while trained(folder) < 3 and process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    if not trouble.startswith("ray::"):
        process.send_signal(signal.Signals[trouble])
        return
    for pid in [pid for pid, title in family(process.pid).items() if title.startswith(trouble)]:
        os.kill(pid, signal.SIGKILL)


def ended(process: subprocess.Popen[bytes], folder: Path, codes: Sequence[int] = (0,)) -> None:
    if (code := process.wait(LIMIT_S)) not in codes:
        raise RuntimeError(f"exit code {code}\n{(folder / 'console.txt').read_text()[-3000:]}")


def run(case: Case, folder: Path, steps: int) -> None:
    if case.trouble == "apart":
        halves = [started(case, folder, steps, f"mode={mode}") for mode in ("train", "explore")]
        for half in halves:
            ended(half, folder)
        return
    process = started(case, folder, steps)
    if case.trouble:
        strike(process, folder, case.trouble)
    if case.trouble.startswith("SIG"):
        ended(process, folder, (130, -signal.SIGKILL))
        process = started(case, folder, steps, RESUMED)
    ended(process, folder)


def replayed(case: Case, folder: Path, steps: int) -> dict[str, Any]:
    """What `roll replay` has found, from the files that it leaves."""
    mode = ["--all", *(["--local"] if case.local else [])]
    done = subprocess.run(
        [*ROLL, "replay", str(folder / "run"), *mode], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    into = folder / "run.replay"
    if not (into / "regenerated.json").is_file():
        raise RuntimeError(f"exit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    found = json.loads((into / "replay.json").read_text())
    files = [line for line in done.stdout.splitlines() if line.startswith("checkpoint step-")]
    unlike = [line for line in files if "are equal (SHA-256)" not in line]
    tokens = json.loads((into / "regenerated.json").read_text())
    published = [step for step in range(1, steps + 1) if not ("weight_push_interval=2" in case.changes and step % 2)]
    all_there = sorted(found["equal"] + found["unknown"]) == published
    equal = done.returncode == 0 and all_there and not found["different"] and not unlike
    summary = json.loads((folder / "run" / "summary.json").read_text())
    restarts = summary.get("engine_restarts", 0) + len(summary.get("trainer_resumed_from") or [])
    if case.trouble.startswith("ray::") and not restarts:
        raise RuntimeError(f"{case.trouble} was not killed: the run was over before")
    return {
        "steps": steps,
        "is_equal": equal,
        **{name: len(found[name]) for name in ("equal", "different", "unknown")},
        "checkpoints": len(files) - len(unlike),
        "tokens": tokens["tokens"],
        "tokens_equal": tokens["equal"],
        "largest_gap": tokens["largest_gap"],
        "staleness": summary.get("staleness", {}).get("max"),
        "restarts": restarts,
    }


def line(name: str, row: dict[str, Any]) -> str:
    tokens = f"{row['tokens_equal']:,} of {row['tokens']:,}"
    unknown = f" ({row['unknown']} without a digest)" if row["unknown"] else ""
    verdict = "equal" if row["is_equal"] else "DIFFERS"
    steps = f"{row['equal']} of {row['equal'] + row['different']}{unknown}"
    return f"| {name} | {row['staleness']} | {steps} | {row['checkpoints']} | {tokens} | {verdict} |"


def attempted(work: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
    try:
        return work()
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        print(error, file=sys.stderr, flush=True)
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="NAME")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--out", type=Path, help="where the runs stay; else they are removed")
    args = parser.parse_args()
    print("| run | largest lag | steps with equal weights | checkpoints with equal files | equal tokens | |")
    print("|---|---|---|---|---|---|", flush=True)
    rows: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        temporary = args.out or stack.enter_context(tempfile.TemporaryDirectory())
        for number, name in enumerate(args.only):
            folder, case = Path(temporary) / str(number), CASES[name]
            folder.mkdir()

            def work(case: Case = case, folder: Path = folder) -> dict[str, Any]:
                run(case, folder, args.steps)
                return replayed(case, folder, args.steps)

            rows[name] = attempted(work)
            print(line(name, rows[name]) if rows[name] is not None else f"| {name} | | failed | | | |", flush=True)
    print(f"{sum(row is not None and row['is_equal'] for row in rows.values())} of {len(rows)} runs are equal at every step")
    save_results("replays", {"steps": args.steps, "runs": rows})


if __name__ == "__main__":
    main()
