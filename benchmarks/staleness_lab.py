"""How much staleness does each policy loss stand? Trains a model for every pg_variant x staleness x seed: the embedded one,
with --task sums SmolLM2-135M-Instruct (`make smollm2` makes it; a run of it takes minutes and 6 GB), or with --task gsm8k
Qwen2.5-1.5B-Instruct on a GPU (examples/qwen2.5-gsm8k/README.md says what it needs).

By default the pipeline keeps samples as fresh as it can, far below the bound. Here they are kept *at* the bound (held_back.py):
in a run of ratio 8 a batch is trained eight versions after it was sampled. The lag in the table is the measured one, over the
second half of a run. Every run of a task has the same number of samples, one optimiser step a batch, and the defaults of its
loss.

The learning rate is chosen so that staleness can hurt: where nothing breaks, nothing can be compared (`Task`, the second
command below, with --steps 60).

Runs are processes of their own, forked from one that has imported the pipeline once. Stop the script whenever you like: the same
command goes on with the runs that are not finished, as long as the code is the same (it compares settings, not code). Seeds are
the outer loop, so that an interrupted grid is complete for the first seeds.

    python benchmarks/staleness_lab.py [--variants ppo tis] [--ratios 0 4] [--seeds 1 2] [--jobs 2]  # trains, prints the table
    python benchmarks/staleness_lab.py --learning_rates 3e-4 6e-4 1e-3 2e-3 --variants vanilla ppo --ratios 0 4 8 --seeds 1
    python benchmarks/staleness_lab.py --task sums --variants ppo cispo cispo_masked --ratios 4
    python benchmarks/staleness_lab.py --variants tis --ratios 4 --folder output/ess --more staleness_tuning.learning_rate=true
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

import held_back
from pipeline_run import ROOT, Run, read_run
from staleness_report import FINAL, Row, draw, read_rows, table, write_rows

VARIANTS = ("vanilla", "ppo", "tis", "topr", "cispo", "kimi15", "gspo", "decoupled_ppo")
RATIOS = (0.0, 1.0, 2.0, 4.0, 8.0)
SEEDS = (1, 2, 3)


@dataclass(frozen=True)
class Task:
    config: Path
    groups: int
    """Of a step, as the configuration says."""
    steps: int
    eval_steps: int
    learning_rate: float
    more: tuple[str, ...] = ()
    """Overrides of all its runs."""


TASKS = {
    # The best of 3e-4, 6e-4, 1e-3 and 2e-3 at ratio 0 (final accuracy in 60 steps, seed 1: 0.72, 0.77, 0.70, 0.00), so the one
    # that would be chosen on fresh samples. Stale samples hurt there.
    "additions": Task(ROOT / "examples/config/rlvr_config_async.yaml", 32, 80, 5, 6e-4),
    "sums": Task(ROOT / "examples/smollm2/full.yaml", 8, 32, 4, 1e-5),
    # Responses of 50 to 300 tokens, one optimiser step a batch: 512 = 32 x 16. Not run on a GPU.
    "gsm8k": Task(
        ROOT / "examples/qwen2.5-gsm8k/full.yaml",
        64,
        200,
        20,
        1e-6,
        ("actor_train.training_args.gradient_accumulation_steps=16", "max_len_mask=false"),
    ),
}
FOUR_STEPS = "actor_train.training_args.per_device_train_batch_size=64"
"""Of the 256 samples of a step of additions."""
SETTINGS = {
    "cispo_masked": ("cispo", "actor_train.cispo_use_unified_mask=true"),
    "cispo_wide": ("cispo", "actor_train.cispo_epsilon_low=.inf", "actor_train.cispo_epsilon_high=4"),
    "gspo_wide": ("gspo", "actor_train.gspo_clip_low=0.2", "actor_train.gspo_clip_high=0.2"),
    "ppo_recomputed": ("ppo", "old_logprobs=recompute"),
    "ppo_4_steps": ("ppo", FOUR_STEPS),
    "decoupled_ppo_4_steps": ("decoupled_ppo", FOUR_STEPS),
}
"""Variants under names of their own: the loss, and what else is set."""

FOLDER = ROOT / "output" / "staleness_lab"
LIMIT_S = 3600.0
"""For one run: ends what hangs. A minute of work may take many at low priority on a busy machine."""

FORKS = multiprocessing.get_context("forkserver")
IMPORTED_ONCE = [
    "roll.prepare.compose",
    "roll.cli.train",
    "roll.core.workers.workers",
    "roll.prepare.rlvr_run",
    "roll.strategies.infer.hf.strategy",
    "roll.strategies.train.fsdp2",
    "transformers.models.qwen2.modeling_qwen2",
]
"""Half of what a short run would cost."""

Runner = Callable[[Path, list[str], Path], Run]
"""Configuration, overrides, folder -> what the run left there; raises `RuntimeError` if it failed."""


@dataclass(frozen=True)
class Cell:
    """One run: what is varied."""

    variant: str
    """A `pg_variant`, or one of SETTINGS."""
    ratio: float
    seed: int
    learning_rate: float
    more: tuple[str, ...] = ()
    """Further overrides."""
    task: str = "additions"

    @property
    def name(self) -> str:
        return f"{self.variant}-ratio{self.ratio:g}-lr{self.learning_rate:g}-seed{self.seed}"

    def overrides(self, steps: int) -> list[str]:
        loss, *settings = SETTINGS.get(self.variant, (self.variant,))
        task = TASKS[self.task]
        return [
            f"actor_train.pg_variant={loss}",
            *settings,
            f"actor_train.training_args.learning_rate={self.learning_rate:g}",
            f"seed={self.seed}",
            f"max_steps={steps}",
            f"eval_steps={task.eval_steps}",
            "save_steps=1000000",
            *held_back.overrides(task.groups, self.ratio, steps),
            *task.more,
            *self.more,
        ]


def grid(variants: Iterable[str], ratios: Iterable[float], seeds: Iterable[int], learning_rates: Iterable[float]) -> list[Cell]:
    """The last ratio first: its runs break first, and a mistake shows at once."""
    stale_first = sorted(ratios, reverse=True)
    return [Cell(v, r, seed, lr) for seed, lr, r, v in itertools.product(seeds, learning_rates, stale_first, variants)]


def train(config: Path, overrides: Sequence[str], folder: Path) -> None:
    """`start_rlvr_pipeline.py --local` as this very process, which ends with its exit code; what it says goes to a file."""
    console = os.open(folder / "console.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(console, 1)
    os.dup2(console, 2)
    os.chdir(ROOT)
    from roll.cli.train import main

    name = [f"--config_path={config.parent}", f"--config_name={config.stem}", "--local"]
    sys.exit(main([*name, f"output_dir={folder}", "exp_name=run", "track_with=none", "rollout_log_per_step=0", *overrides]))


def run_forked(config: Path, overrides: list[str], folder: Path) -> Run:
    folder.mkdir(parents=True)
    process = FORKS.Process(target=train, args=(config, overrides, folder))
    process.start()
    process.join(LIMIT_S)
    process.kill()  # unless it has ended
    process.join()
    if process.exitcode:
        raise RuntimeError(f"exit code {process.exitcode}\n{(folder / 'console.txt').read_text()[-3000:]}")
    return read_run(folder / "run")


def row_of(cell: Cell, run: Run) -> Row:
    """Off-policy figures are means over the second half of the steps, when the lag has reached its bound."""
    late = run.steps[len(run.steps) // 2 :]

    def mean(name: str) -> float:
        return sum(step[name] for step in late) / len(late)

    return Row(
        variant=cell.variant,
        ratio=cell.ratio,
        seed=cell.seed,
        learning_rate=cell.learning_rate,
        steps=len(run.steps),
        eval_steps=TASKS[cell.task].eval_steps,
        lag=mean("staleness/token_mean"),
        lag_all=run.summary["staleness"]["token_mean"],
        weight=mean("actor/train_infer_ratio_token_mean"),
        ess=mean("actor/train_infer_ess_token"),
        kl=mean("actor/train_infer_kl"),
        accuracy=tuple(point["accuracy"] for point in run.summary["validation"]),
    )


def finished(cell: Cell, folder: Path, steps: int) -> Row | None:
    """The row of a cell that was run to its end with these settings; None if it was not, or only in part."""
    path = folder / cell.name / "row.json"
    if not path.is_file():
        return None
    kept = json.loads(path.read_text())
    return Row.from_mapping(kept["row"]) if kept["overrides"] == cell.overrides(steps) else None


def run_cell(cell: Cell, folder: Path, steps: int, run: Runner = run_forked) -> Row:
    """Runs the cell unless it is finished. `row.json` appears whole or not at all, after everything else."""
    if row := finished(cell, folder, steps):
        return row
    home = folder / cell.name
    shutil.rmtree(home, ignore_errors=True)
    overrides = cell.overrides(steps)
    row = row_of(cell, run(TASKS[cell.task].config, overrides, home))
    shutil.rmtree(home / "run" / "checkpoints", ignore_errors=True)
    aside = home / "row.json.partial"
    aside.write_text(json.dumps({"overrides": overrides, "row": row.as_mapping()}, indent=1))
    aside.rename(home / "row.json")
    return row


def run_grid(cells: Sequence[Cell], folder: Path, steps: int, jobs: int, run: Runner = run_forked) -> tuple[list[Row], list[str]]:
    """Rows in the order of the cells, and what went wrong with the others, a line each: one broken run does not stop the grid."""
    rows: dict[Cell, Row] = {}
    failures: list[str] = []
    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(run_cell, cell, folder, steps, run): cell for cell in cells}
        try:
            for done, future in enumerate(as_completed(futures), start=1):
                cell = futures[future]
                try:
                    rows[cell] = row = future.result()
                    said = f"lag {row.lag:.2f}  accuracy {row.final:.3f}  worst drop {row.worst_drop:.3f}"
                except (RuntimeError, OSError) as error:
                    failures.append(f"{cell.name}: {error}")
                    said = f"FAILED: {error}"
                print(f"{done}/{len(cells)} {cell.name}: {said}", flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [rows[cell] for cell in cells if cell in rows], failures


def prepare_forks() -> None:
    """Before the fork server starts, which inherits it."""
    python_path = os.pathsep.join(filter(None, [str(ROOT), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH")]))
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": python_path}
    FORKS.set_forkserver_preload(IMPORTED_ONCE)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # no further run begins, and those that are going end


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=TASKS, default="additions")
    of_ours = ", ".join(SETTINGS)
    parser.add_argument("--variants", nargs="+", default=VARIANTS, metavar="NAME", help=f"or {of_ours}; default: %(default)s")
    parser.add_argument(
        "--ratios", type=float, nargs="+", default=RATIOS, metavar="R", help="async_generation_ratio, depth and lag"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS, metavar="N")
    parser.add_argument("--learning_rates", type=float, nargs="+", metavar="LR")
    parser.add_argument("--more", nargs="+", default=[], metavar="KEY=VALUE", help="overrides of all runs; name another --folder")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side, one core each")
    parser.add_argument("--folder", type=Path, help=f"of the runs, results.csv and lab.png (default: {FOLDER}/TASK)")
    args = parser.parse_args()
    task = TASKS[args.task]
    steps, folder = args.steps or task.steps, args.folder or FOLDER / args.task
    rates = args.learning_rates or [task.learning_rate]
    if steps % task.eval_steps or steps < FINAL * task.eval_steps:
        parser.error(f"--steps {steps}: must be a multiple of {task.eval_steps}, and at least {FINAL * task.eval_steps}")
    if any(each.startswith("async_pipeline_depth") for each in args.more):
        parser.error("--more async_pipeline_depth: it is the ratio, for steps are held back until so many batches have come")
    prepare_forks()
    plain = grid(args.variants, args.ratios, args.seeds, rates)
    cells = [replace(cell, more=tuple(args.more), task=args.task) for cell in plain]
    rows, failures = run_grid(cells, folder, steps, args.jobs)
    if rows:
        write_rows(folder / "results.csv", rows)
        draw(read_rows(folder / "results.csv"), folder / "lab.png")
        print(f"\n{table(rows)}\n\n{folder}: results.csv, lab.png")
    for failure in failures:
        print(f"failed: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
