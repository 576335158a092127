"""What the staleness laboratory found: its rows as CSV, a table, intervals, a picture, and the marked places of pages."""

from __future__ import annotations

import csv
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

FINAL = 4
"""Validations whose mean is a run's final accuracy: with 200 samples each, its standard error is at most 0.018."""


@dataclass(frozen=True)
class Row:
    """One run. `accuracy` has the validations at step 0, eval_steps, 2 eval_steps, ..., one sample a prompt."""

    variant: str
    ratio: float
    seed: int
    learning_rate: float
    steps: int
    eval_steps: int
    lag: float
    """Mean lag of the tokens trained in the second half, versions."""
    lag_all: float
    """The same over all steps."""
    weight: float
    """Mean importance ratio of a token, trained over sampling policy, in the second half; 1 if the policies are equal."""
    ess: float
    """Effective sample size of these ratios as a share."""
    kl: float
    """KL divergence of the sampling from the trained policy, nats a token, estimated on the samples."""
    accuracy: tuple[float, ...]

    @property
    def final(self) -> float:
        return mean(self.accuracy[-FINAL:])

    @property
    def worst_drop(self) -> float:
        """The farthest a validation fell below the best one before it."""
        best, worst = -math.inf, 0.0
        for value in self.accuracy:
            best = max(best, value)
            worst = max(worst, best - value)
        return worst

    @property
    def collapsed(self) -> bool:
        """Ended with less than half of the best accuracy it ever had."""
        return self.final < max(self.accuracy) / 2

    def as_mapping(self) -> dict[str, Any]:
        return {item.name: getattr(self, item.name) for item in fields(self)}

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Row:
        whole, text = ("seed", "steps", "eval_steps"), ("variant",)
        values: dict[str, Any] = {
            name: value if name in text else int(value) if name in whole else float(value)
            for name, value in mapping.items()
            if name != "accuracy"
        }
        return cls(**values, accuracy=tuple(map(float, mapping["accuracy"])))


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """CSV, a run a line; validations separated by spaces."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [item.name for item in fields(Row)], lineterminator="\n")
        writer.writeheader()
        for row in sorted(rows, key=lambda r: (r.learning_rate, r.variant, r.ratio, r.seed)):
            numbers = {k: f"{v:.5g}" if isinstance(v, float) else v for k, v in row.as_mapping().items()}
            writer.writerow({**numbers, "accuracy": " ".join(f"{v:.4g}" for v in row.accuracy)})


def read_rows(path: Path) -> list[Row]:
    with path.open(newline="") as file:
        return [Row.from_mapping({**line, "accuracy": line["accuracy"].split()}) for line in csv.DictReader(file)]


def by_setting(rows: Sequence[Row]) -> dict[tuple[float, str, float], list[Row]]:
    """(learning rate, variant, ratio) -> the runs of all seeds."""
    found: dict[tuple[float, str, float], list[Row]] = defaultdict(list)
    for row in rows:
        found[row.learning_rate, row.variant, row.ratio].append(row)
    return found


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *lines))


RESAMPLED = 10_000


def resampled_means(values: Sequence[float], generator: np.random.Generator) -> np.ndarray:
    drawn: np.ndarray = generator.choice(np.asarray(values), (RESAMPLED, len(values))).mean(1)
    return drawn


def interval(means: np.ndarray) -> tuple[float, float]:
    """95 % of bootstrap means: percentiles."""
    low, high = np.percentile(means, (2.5, 97.5))
    return float(low), float(high)


def accuracy_cell(runs: Sequence[Row]) -> str:
    """Mean of the final accuracy over seeds (95 %); bold with the number of collapsed runs if there are any."""
    finals = [run.final for run in runs]
    spread = ""
    if len(runs) > 1:
        low, high = interval(resampled_means(finals, np.random.default_rng(0)))
        spread = f" ({low:.2f} to {high:.2f})"
    collapsed = sum(run.collapsed for run in runs)
    return f"**{mean(finals):.2f}**{spread}, {collapsed} of {len(runs)} collapsed" if collapsed else f"{mean(finals):.2f}{spread}"


FIGURES = ("final accuracy", "worst drop", "lag", "mean ratio", "ESS", "KL")


def figures(runs: Sequence[Row]) -> list[str]:
    return [
        accuracy_cell(runs),
        f"{mean([run.worst_drop for run in runs]):.2f}",
        f"{mean([run.lag for run in runs]):.2f}",
        f"{mean([run.weight for run in runs]):.3g}",
        f"{mean([run.ess for run in runs]):.3f}",
        f"{mean([run.kl for run in runs]):z.4f}",
    ]


def table(rows: Sequence[Row]) -> str:
    """A line for each setting: means over its seeds."""
    lines = [
        [f"{rate:g}", variant, f"{ratio:g}", str(len(runs)), *figures(runs)]
        for (rate, variant, ratio), runs in by_setting(rows).items()
    ]
    return markdown(["learning rate", "pg_variant", "async_generation_ratio", "seeds", *FIGURES], lines)


SHADES = ("#9ecae1", "#6baed6", "#3182bd", "#08519c", "#b8431f")
"""Of the ratios, the smallest first; the largest stands out."""
INK = "#2b2f36"


def draw(rows: Sequence[Row], path: Path) -> None:
    """Learning curves (PNG): a panel for each variant (and learning rate, if there are several of one setting), a line for each
    ratio, its band from the worst to the best seed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL import Image

    several = len(by_setting(rows)) > len({(row.variant, row.ratio) for row in rows})
    settings: dict[tuple[str, float], list[Row]] = defaultdict(list)
    for row in rows:
        settings[f"{row.variant}, {row.learning_rate:g}" if several else row.variant, row.ratio].append(row)
    panels = list(dict.fromkeys(name for name, _ in settings))
    ratios = sorted({row.ratio for row in rows})
    across = min(4, len(panels))
    down = math.ceil(len(panels) / across)
    figure = Figure(figsize=(3.1 * across, 2.5 * down + 0.5), dpi=110, facecolor="white", layout="constrained")
    canvas = FigureCanvasAgg(figure)
    grid = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
    labelled: dict[str, Any] = {}
    for axes, name in zip(grid.flat, panels, strict=False):
        axes.set_title(name, loc="left", fontsize=10, color=INK, weight="bold")
        for index, ratio in enumerate(ratios):
            runs = settings.get((name, ratio), [])
            curves = list(zip(*(run.accuracy for run in runs), strict=False))
            if not curves:
                continue
            steps = [i * runs[0].eval_steps for i in range(len(curves))]
            colour = SHADES[index * (len(SHADES) - 1) // max(1, len(ratios) - 1)]
            (labelled[f"{ratio:g}"],) = axes.plot(steps, [mean(values) for values in curves], color=colour, linewidth=1.6)
            axes.fill_between(steps, [min(v) for v in curves], [max(v) for v in curves], color=colour, alpha=0.13, linewidth=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color("#c9ccd1")
        axes.tick_params(colors=INK, length=0, labelsize=8)
        axes.grid(axis="y", color="#e8eaed", linewidth=0.8)
        axes.set_ylim(0, 1)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    figure.supxlabel("training step", fontsize=9, color=INK)
    figure.supylabel("validation accuracy", fontsize=9, color=INK)
    style = {"ncols": len(ratios), "frameon": False, "fontsize": 9, "title_fontsize": 9, "labelcolor": INK}
    title = "versions between sampling and training"
    names = sorted(labelled, key=float)
    figure.legend([labelled[name] for name in names], names, title=title, loc="outside upper center", **style)
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.draw()
    # 128 colours are enough for lines and bands, and a third of the size.
    Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3]).quantize(128).save(path, optimize=True)


BLOCK = re.compile(r"(<!-- lab: (\w+) -->\n)(.*?)(<!-- end of lab -->)", re.DOTALL)
"""What stands between the two comments of a page is made from the CSV files."""


def filled(page: str, blocks: Mapping[str, str]) -> str:
    """The page with its marked places filled. Raises `KeyError` for a place not in `blocks`, `ValueError` if there is none."""
    if not BLOCK.search(page):
        raise ValueError("no <!-- lab: NAME --> ... <!-- end of lab -->")
    return BLOCK.sub(lambda found: f"{found[1]}{blocks[found[2]]}\n{found[4]}", page)
