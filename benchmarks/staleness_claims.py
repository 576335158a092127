"""Claims about losses on stale samples, each stated before its runs, and what two models say to them: a tiny one that learns
additions, with every loss at several lags besides, and SmolLM2-135M-Instruct, which learns sums. For responses of hundreds of
tokens the same claims wait for a GPU, and Qwen2.5-1.5B-Instruct.

Every setting gets the learning rate that suits it: of a grid, the one that ends best at that lag over the seeds of selection. All
figures are those of other seeds at that rate. Intervals are percentiles of 10,000 bootstrap samples over the seeds; a claim is
held if its whole interval is on its side, refuted if it is on the other, and open otherwise.

    python benchmarks/staleness_claims.py     # 250 runs of ten seconds; stop it whenever you like, it goes on where it was
    make smollm2 && python benchmarks/staleness_claims.py --task sums     # 77 runs of some minutes
    python benchmarks/staleness_claims.py --page      # runs nothing: the task's pages anew from their CSV files
    python benchmarks/staleness_claims.py --task gsm8k --jobs 1     # on a GPU, as examples/qwen2.5-gsm8k/README.md says

On a GPU the first two with `--more "actor_train.device_mapping=[0]" "actor_infer.device_mapping=[0]" --jobs 1`; other models and
data are a `Task` more in staleness_lab.py.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from pipeline_run import ROOT
from staleness_lab import FOLDER, SETTINGS, TASKS, VARIANTS, Cell, prepare_forks, run_grid
from staleness_report import (
    Row,
    accuracy_cell,
    draw,
    filled,
    interval,
    markdown,
    mean,
    read_rows,
    resampled_means,
    write_rows,
)

LAG = 4.0
SELECTION, EVALUATION = {"sums": (1, 2), "additions": (1,), "gsm8k": (1,)}, (3, 4, 5, 6, 7)
RATES = {"sums": (5e-6, 1e-5, 2e-5), "additions": (7.5e-5, 1.5e-4, 3e-4, 6e-4, 1.2e-3), "gsm8k": (5e-7, 1e-6, 2e-6)}
SHIPPED = ROOT / "docs_roll" / "pg_variants"
PAGES, PICTURE = {"sums": "claims_sums.md", "additions": "choosing.md"}, "staleness_lab.png"

Setting = tuple[str, float]
"""A variant at a lag."""
FRESH: Setting = ("ppo", 0.0)
"""With one optimiser step a batch and fresh samples all these losses have the same gradient."""


@dataclass(frozen=True)
class Claim:
    """`better` ends higher than `worse` by more than `least`."""

    says: str
    better: Setting
    worse: Setting
    least: float = 0.0

    def holds(self, low: float, high: float) -> str:
        """`low`, `high`: the interval of the difference."""
        return "held" if low > self.least else "refuted" if high < self.least else "open"


OF_SUMS = (
    Claim("`ppo` loses less than 0.1 at lag 4 against fresh samples", ("ppo", LAG), FRESH, -0.1),
    Claim("`vanilla` loses against `ppo` at lag 4", ("ppo", LAG), ("vanilla", LAG)),
    Claim("PPO's mask is what holds: `cispo` ends higher with it at lag 4", ("cispo_masked", LAG), ("cispo", LAG)),
    Claim("`gspo` ends no more than 0.1 below `ppo` at lag 4", ("gspo", LAG), ("ppo", LAG), -0.1),
    Claim("`decoupled_ppo`, weighted but hardly masked, ends below `ppo` at lag 4", ("ppo", LAG), ("decoupled_ppo", LAG)),
)
OF_ADDITIONS = (
    Claim("`ppo` loses less than 0.05 at lag 1 against fresh samples", ("ppo", 1.0), FRESH, -0.05),
    Claim("`ppo` loses less than 0.1 at lag 4", ("ppo", LAG), FRESH, -0.1),
    Claim("One version of lag is enough for `vanilla` to lose against `ppo`", ("ppo", 1.0), ("vanilla", 1.0)),
    Claim("PPO's mask is what holds: `cispo` ends higher with it at lag 4", ("cispo_masked", LAG), ("cispo", LAG)),
    Claim("`cispo` ends higher with MiniMax's bounds than with ROLL's at lag 4", ("cispo_wide", LAG), ("cispo", LAG)),
    Claim("`gspo` ends no more than 0.05 below `ppo` at lag 4", ("gspo", LAG), ("ppo", LAG), -0.05),
    Claim("`gspo` with ROLL's clip of 0.2 ends below the paper's at lag 4", ("gspo", LAG), ("gspo_wide", LAG)),
    Claim("`decoupled_ppo` ends below `ppo` at lag 4", ("ppo", LAG), ("decoupled_ppo", LAG)),
    Claim("`topr` ends above `ppo` at lag 8", ("topr", 8.0), ("ppo", 8.0)),
    Claim("Recomputed old log-probs cost `ppo` its clip against the sampler, at lag 4", ("ppo", LAG), ("ppo_recomputed", LAG)),
    Claim(
        "With four optimiser steps a batch `decoupled_ppo` ends no more than 0.05 below `ppo`, at lag 4",
        ("decoupled_ppo_4_steps", LAG),
        ("ppo_4_steps", LAG),
        -0.05,
    ),
)
CLAIMS = {"sums": OF_SUMS, "additions": OF_ADDITIONS, "gsm8k": OF_SUMS}
GRID = {
    "sums": (),
    "gsm8k": (),
    "additions": tuple((variant, lag) for lag in (LAG, 1.0) for variant in VARIANTS),
}
"""Settings besides those of the claims."""


def settings(task: str) -> list[Setting]:
    of_claims = [side for claim in CLAIMS[task] for side in (claim.worse, claim.better)]
    return list(dict.fromkeys([*of_claims, *GRID[task]]))


def of(rows: Iterable[Row], setting: Setting) -> list[Row]:
    return [row for row in rows if (row.variant, row.ratio) == setting]


def loss_of(variant: str) -> str:
    """The `pg_variant` of a setting."""
    return SETTINGS.get(variant, (variant,))[0]


def chosen(sweep: Sequence[Row], setting: Setting) -> float:
    """The learning rate that ended best over the seeds of selection."""
    rates = sorted({row.learning_rate for row in of(sweep, setting)})
    return max(rates, key=lambda rate: mean([row.final for row in of(sweep, setting) if row.learning_rate == rate]))


def figures_table(task: str, rows: Sequence[Row], losses: Container[str] | None = None) -> str:
    """A line for each setting (of some losses)."""
    lines = []
    for variant, lag in settings(task):
        runs = of(rows, (variant, lag))
        if not runs or (losses is not None and loss_of(variant) not in losses):
            continue
        cells = [f"`{variant}`", f"{lag:g}", f"{runs[0].learning_rate:g}", str(len(runs)), accuracy_cell(runs)]
        cells += [f"{mean([getattr(run, name) for run in runs]):.2f}" for name in ("worst_drop", "lag", "ess")]
        lines.append([*cells, f"{mean([run.kl for run in runs]):z.3f}"])
    head = ["setting", "lag", "learning rate", "seeds", "final accuracy (95 %)", "worst drop", "measured lag", "ESS", "KL"]
    return markdown(head, lines)


def accuracy_matrix(task: str, rows: Sequence[Row]) -> str:
    """The losses of the grid down, lags across; the one that ends best at the largest lag first."""
    lags = sorted({lag for _, lag in GRID[task]})
    found = {setting: runs for setting in GRID[task] if (runs := of(rows, setting))}
    losses = list(dict.fromkeys(variant for variant, _ in found))

    def at_the_stalest(variant: str) -> float:
        return mean([run.final for run in found.get((variant, lags[-1]), [])] or [0.0])

    lines = [
        [f"[`{loss}`]({loss}.md)", *(accuracy_cell(found[loss, lag]) if (loss, lag) in found else "" for lag in lags)]
        for loss in sorted(losses, key=at_the_stalest, reverse=True)
    ]
    return markdown(["loss", *(f"lag {lag:g}" for lag in lags)], lines)


def claims_table(task: str, rows: Sequence[Row]) -> str:
    lines = []
    for claim in CLAIMS[task]:
        better, worse = ([run.final for run in of(rows, side)] for side in (claim.better, claim.worse))
        if len(better) < 2 or len(worse) < 2:
            lines.append([claim.says, "", "not run"])
            continue
        generator = np.random.default_rng(0)
        low, high = interval(resampled_means(better, generator) - resampled_means(worse, generator))
        difference = f"{mean(better) - mean(worse):+.2f} ({low:+.2f} to {high:+.2f})"
        lines.append([claim.says, difference, claim.holds(low, high)])
    return markdown(["claim", "difference (95 %)", "verdict"], lines)


def sweep_table(task: str, sweep: Sequence[Row]) -> str:
    rates = sorted({row.learning_rate for row in sweep})

    def cell(setting: Setting, rate: float) -> str:
        runs = [row.final for row in of(sweep, setting) if row.learning_rate == rate]
        return f"{mean(runs):.2f}" if runs else ""

    lines = [[f"`{each[0]}`", f"{each[1]:g}", *(cell(each, rate) for rate in rates)] for each in settings(task)]
    return markdown(["setting", "lag", *(f"{rate:g}" for rate in rates)], lines)


def write_pages(task: str, folder: Path) -> list[Path]:
    """Fills the marked places of the task's pages in `folder` from its CSV files there, and draws its picture."""
    rows, sweep = (read_rows(folder / f"claims_{task}{kind}.csv") for kind in ("", "_sweep"))
    blocks = {"claims": claims_table(task, rows), "figures": figures_table(task, rows), "sweep": sweep_table(task, sweep)}
    blocks["accuracy"] = accuracy_matrix(task, rows)
    pages = {folder / PAGES[task]: blocks}
    for loss in {loss for loss, _ in GRID[task]}:
        pages[folder / f"{loss}.md"] = {"figures": figures_table(task, rows, {loss})}
    for page, places in pages.items():
        page.write_text(filled(page.read_text(), places))
    if not GRID[task]:
        return list(pages)
    draw(rows, folder / PICTURE)
    return [*pages, folder / PICTURE]


def run(cells: Sequence[Cell], folder: Path, steps: int, jobs: int) -> list[Row]:
    """Raises `SystemExit` if a run failed: a mean over other seeds would be no answer."""
    rows, failures = run_grid(cells, folder, steps, jobs)
    if failures:
        sys.exit("\n".join(failures))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=TASKS, default="additions")
    parser.add_argument("--seeds", type=int, nargs="+", default=EVALUATION, metavar="N")
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side, one core each")
    parser.add_argument("--more", nargs="+", default=[], metavar="KEY=VALUE", help="overrides of all runs")
    parser.add_argument("--folder", type=Path, help=f"of the runs and CSV files (default: {FOLDER}/claims_TASK)")
    parser.add_argument("--page", action="store_true", help="train nothing")
    options = parser.parse_args()
    if options.page:
        if options.task not in PAGES:
            parser.error(f"--page: {options.task} has no page; there are those of {', '.join(PAGES)}")
        for path in write_pages(options.task, SHIPPED):
            print(path.relative_to(ROOT))
        return
    prepare_forks()
    task = options.task
    folder, steps = options.folder or FOLDER / f"claims_{task}", TASKS[task].steps

    def cells(seeds: Iterable[int], rates: Callable[[Setting], Iterable[float]]) -> list[Cell]:
        plain = [Cell(*each, seed, rate) for seed in seeds for each in settings(task) for rate in rates(each)]
        return [replace(cell, task=task, more=tuple(options.more)) for cell in plain]

    sweep = run(cells(SELECTION[task], lambda _: RATES[task]), folder, steps, options.jobs)
    write_rows(folder / f"claims_{task}_sweep.csv", sweep)
    rows = run(cells(options.seeds, lambda each: [chosen(sweep, each)]), folder, steps, options.jobs)
    write_rows(folder / f"claims_{task}.csv", rows)
    print(f"\n{sweep_table(task, sweep)}\n\n{figures_table(task, rows)}\n\n{claims_table(task, rows)}\n\n{folder}")


if __name__ == "__main__":
    main()
