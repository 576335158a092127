"""Claims about losses on stale samples, each stated before its runs, and what SmolLM2-135M-Instruct says to them.

Every setting gets the learning rate that suits it: of a grid, the one that ends best at that lag over the seeds of selection. All
figures are those of other seeds at that rate. Intervals are percentiles of 10,000 bootstrap samples over the seeds; a claim is
held if its whole interval is on its side, refuted if it is on the other, and open otherwise.

    make smollm2                              # makes the model
    python benchmarks/staleness_claims.py     # 77 runs of some minutes; stop it whenever you like, it goes on where it was
    python benchmarks/staleness_claims.py --task additions --jobs 2
    python benchmarks/staleness_claims.py --page      # runs nothing: the page anew from the CSV files

On a GPU the same command with `--more "actor_train.device_mapping=[0]" "actor_infer.device_mapping=[0]" --jobs 1`; longer
responses and larger models are a `Task` more in staleness_lab.py.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from pipeline_run import ROOT
from staleness_lab import FOLDER, TASKS, Cell, prepare_forks, run_grid
from staleness_report import Row, filled, markdown, mean, read_rows, write_rows

LAG = 4.0
SELECTION, EVALUATION = (1, 2), (3, 4, 5, 6, 7)
RATES = {"sums": (5e-6, 1e-5, 2e-5), "additions": (1.5e-4, 3e-4, 6e-4)}
SHIPPED = ROOT / "docs_roll" / "pg_variants"
RESAMPLED = 10_000

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


CLAIMS = (
    Claim("`ppo` loses less than 0.1 at lag 4 against fresh samples", ("ppo", LAG), FRESH, -0.1),
    Claim("`vanilla` loses against `ppo` at lag 4", ("ppo", LAG), ("vanilla", LAG)),
    Claim("PPO's mask is what holds: `cispo` ends higher with it at lag 4", ("cispo_masked", LAG), ("cispo", LAG)),
    Claim("`gspo` ends no more than 0.1 below `ppo` at lag 4", ("gspo", LAG), ("ppo", LAG), -0.1),
    Claim("`decoupled_ppo`, weighted but hardly masked, ends below `ppo` at lag 4", ("ppo", LAG), ("decoupled_ppo", LAG)),
)


def settings() -> list[Setting]:
    return list(dict.fromkeys(side for claim in CLAIMS for side in (claim.worse, claim.better)))


def of(rows: Iterable[Row], setting: Setting) -> list[Row]:
    return [row for row in rows if (row.variant, row.ratio) == setting]


def chosen(sweep: Sequence[Row], setting: Setting) -> float:
    """The learning rate that ended best over the seeds of selection."""
    rates = sorted({row.learning_rate for row in of(sweep, setting)})
    return max(rates, key=lambda rate: mean([row.final for row in of(sweep, setting) if row.learning_rate == rate]))


def resampled_means(values: Sequence[float], generator: np.random.Generator) -> np.ndarray:
    drawn: np.ndarray = generator.choice(np.asarray(values), (RESAMPLED, len(values))).mean(1)
    return drawn


def interval(means: np.ndarray) -> tuple[float, float]:
    """95 %."""
    low, high = np.percentile(means, (2.5, 97.5))
    return float(low), float(high)


def figures_table(rows: Sequence[Row]) -> str:
    lines = []
    for variant, lag in settings():
        runs = of(rows, (variant, lag))
        if not runs:
            continue
        low, high = interval(resampled_means([run.final for run in runs], np.random.default_rng(0)))
        cells = [f"`{variant}`", f"{lag:g}", f"{runs[0].learning_rate:g}", str(len(runs))]
        cells += [f"{mean([run.final for run in runs]):.2f} ({low:.2f} to {high:.2f})", str(sum(run.collapsed for run in runs))]
        cells += [f"{mean([run.lag for run in runs]):.2f}", f"{mean([run.ess for run in runs]):.2f}"]
        lines.append([*cells, f"{mean([run.kl for run in runs]):z.3f}"])
    head = ["setting", "lag", "learning rate", "seeds", "final accuracy (95 %)", "collapsed", "measured lag", "ESS", "KL"]
    return markdown(head, lines)


def claims_table(rows: Sequence[Row]) -> str:
    lines = []
    for claim in CLAIMS:
        better, worse = ([run.final for run in of(rows, side)] for side in (claim.better, claim.worse))
        if len(better) < 2 or len(worse) < 2:
            lines.append([claim.says, "", "not run"])
            continue
        generator = np.random.default_rng(0)
        low, high = interval(resampled_means(better, generator) - resampled_means(worse, generator))
        difference = f"{mean(better) - mean(worse):+.2f} ({low:+.2f} to {high:+.2f})"
        lines.append([claim.says, difference, claim.holds(low, high)])
    return markdown(["claim", "difference (95 %)", "verdict"], lines)


def sweep_table(sweep: Sequence[Row]) -> str:
    rates = sorted({row.learning_rate for row in sweep})

    def cell(setting: Setting, rate: float) -> str:
        runs = [row.final for row in of(sweep, setting) if row.learning_rate == rate]
        return f"{mean(runs):.2f}" if runs else ""

    lines = [[f"`{each[0]}`", f"{each[1]:g}", *(cell(each, rate) for rate in rates)] for each in settings()]
    return markdown(["setting", "lag", *(f"{rate:g}" for rate in rates)], lines)


def write_page(task: str, folder: Path) -> Path:
    """Fills the marked places of the task's page from its CSV files."""
    rows, sweep = (read_rows(folder / f"claims_{task}{kind}.csv") for kind in ("", "_sweep"))
    page = folder / f"claims_{task}.md"
    blocks = {"claims": claims_table(rows), "figures": figures_table(rows), "sweep": sweep_table(sweep)}
    page.write_text(filled(page.read_text(), blocks))
    return page


def run(cells: Sequence[Cell], folder: Path, steps: int, jobs: int) -> list[Row]:
    """Raises `SystemExit` if a run failed: a mean over other seeds would be no answer."""
    rows, failures = run_grid(cells, folder, steps, jobs)
    if failures:
        sys.exit("\n".join(failures))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=TASKS, default="sums")
    parser.add_argument("--seeds", type=int, nargs="+", default=EVALUATION, metavar="N")
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side, one core each")
    parser.add_argument("--more", nargs="+", default=[], metavar="KEY=VALUE", help="overrides of all runs")
    parser.add_argument("--folder", type=Path, help=f"of the runs and CSV files (default: {FOLDER}/claims_TASK)")
    parser.add_argument("--page", action="store_true", help="train nothing")
    options = parser.parse_args()
    if options.page:
        print(write_page(options.task, SHIPPED).relative_to(ROOT))
        return
    prepare_forks()
    folder, steps = options.folder or FOLDER / f"claims_{options.task}", TASKS[options.task].steps

    def cells(seeds: Iterable[int], rates: Callable[[Setting], Iterable[float]]) -> list[Cell]:
        plain = [Cell(*each, seed, rate) for seed in seeds for each in settings() for rate in rates(each)]
        return [replace(cell, task=options.task, more=tuple(options.more)) for cell in plain]

    sweep = run(cells(SELECTION, lambda _: RATES[options.task]), folder, steps, options.jobs)
    write_rows(folder / f"claims_{options.task}_sweep.csv", sweep)
    rows = run(cells(options.seeds, lambda each: [chosen(sweep, each)]), folder, steps, options.jobs)
    write_rows(folder / f"claims_{options.task}.csv", rows)
    print(f"\n{sweep_table(sweep)}\n\n{figures_table(rows)}\n\n{claims_table(rows)}\n\n{folder}")


if __name__ == "__main__":
    main()
