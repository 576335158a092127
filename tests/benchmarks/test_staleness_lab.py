"""The staleness laboratory: what is run again and what is not, how runs become figures, and pages that are those of the CSV."""

import asyncio
import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs_roll" / "pg_variants"
BLOCK = re.compile(r"<!-- lab: (\w+) -->.*?<!-- end of lab -->|```.*?```", re.DOTALL)


@pytest.fixture(autouse=True)
def scripts(monkeypatch):
    """Benchmarks are scripts: they import each other by name."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def step(number, lag, weight=1.0):
    return {
        "step": number,
        "staleness/token_mean": lag,
        "actor/train_infer_ratio_token_mean": weight,
        "actor/train_infer_ess_token": 0.5,
        "actor/train_infer_kl": 0.01,
    }


class FakeRuns:
    """Stands for the pipeline: four steps whose lag rises, a validation before and after. Fails for the variants in `broken`."""

    def __init__(self, broken=()):
        self.broken = broken
        self.asked = []

    def __call__(self, config, overrides, folder):
        from pipeline_run import Run

        self.asked.append(folder.name)
        folder.mkdir(parents=True)
        if any(f"actor_train.pg_variant={name}" in overrides for name in self.broken):
            (folder / "console.txt").write_text("half")
            raise RuntimeError("exit code 1")
        validation = [{"step": 0, "accuracy": 0.25}, {"step": 5, "accuracy": 0.75}]
        summary = {"staleness": {"token_mean": 3.0}, "validation": validation}
        return Run([step(1, 0.0), step(2, 2.0), step(3, 4.0), step(4, 6.0, weight=2.0)], summary)


def row(**changes):
    from staleness_report import Row

    plain = Row("ppo", 0.0, 1, 1e-3, 20, 5, lag=0.0, lag_all=0.0, weight=1.0, ess=1.0, kl=0.0, accuracy=(0.2, 0.6, 0.6, 0.6, 0.6))
    return replace(plain, **changes)


def test_a_finished_run_is_not_repeated_and_one_that_broke_off_is(tmp_path):
    from staleness_lab import grid, run_grid

    cells = grid(["ppo", "tis"], [0.0], [1, 2], [1e-3])
    first = FakeRuns(broken=["tis"])
    rows, failures = run_grid(cells, tmp_path, 4, jobs=1, run=first)
    assert [(r.variant, r.seed) for r in rows] == [("ppo", 1), ("ppo", 2)]
    assert len(failures) == 2 and all("exit code 1" in line for line in failures)

    second = FakeRuns()
    rows, failures = run_grid(cells, tmp_path, 4, jobs=1, run=second)
    assert second.asked == ["tis-ratio0-lr0.001-seed1", "tis-ratio0-lr0.001-seed2"]
    assert [r.variant for r in rows] == ["ppo", "tis", "ppo", "tis"] and not failures
    assert not list(tmp_path.rglob("console.txt")), "what a broken run left is gone"


def test_a_run_of_other_settings_does_not_count_as_finished(tmp_path):
    from staleness_lab import grid, run_grid

    cells = grid(["ppo"], [0.0], [1], [1e-3])
    runs = FakeRuns()
    for steps in (4, 6, 6):
        run_grid(cells, tmp_path, steps, jobs=1, run=runs)
    assert len(runs.asked) == 2


def test_off_policy_figures_are_those_of_the_second_half(tmp_path):
    from staleness_lab import Cell, run_cell

    found = run_cell(Cell("ppo", 8.0, 1, 1e-3), tmp_path, 4, FakeRuns())
    assert (found.lag, found.lag_all, found.weight, found.ess) == (5.0, 3.0, 1.5, 0.5)
    assert found.accuracy == (0.25, 0.75)


@pytest.mark.slow
def test_a_real_run_gives_every_figure_of_its_row(tmp_path, monkeypatch):
    """The model of the embedded task before its training."""
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "embedded"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    from make_embedded import Settings, make_model, make_tokenizer, split_problems, write_rows
    from staleness_lab import TASKS, Cell, row_of, run_forked

    torch.manual_seed(0)
    make_model(Settings()).save_pretrained(tmp_path / "model")
    make_tokenizer().save_pretrained(tmp_path / "model")
    train, validation = split_problems(Settings())
    write_rows(tmp_path / "train.jsonl", train)
    write_rows(tmp_path / "validation.jsonl", validation)
    cell = Cell("tis", 1.0, 1, 1e-3)
    here = [
        f"pretrain={tmp_path / 'model'}",
        f"actor_train.data_args.file_name={tmp_path / 'train.jsonl'}",
        f"validation.data_args.file_name={tmp_path / 'validation.jsonl'}",
    ]
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'benchmarks'}")
    run = run_forked(TASKS["additions"].config, [*cell.overrides(5), *here], tmp_path / "cell")
    found = row_of(cell, run)
    assert (found.steps, len(found.accuracy)) == (5, 2)
    # Whichever half is faster: the first step has samples of version 0, every other those of the version before its own.
    assert [step["staleness/token_mean"] for step in run.steps] == [0, 1, 1, 1, 1]
    # An untrained model earns no reward, so its weights hardly move: the figures are those of equal policies, up to rounding.
    assert found.weight == pytest.approx(1, abs=0.1) and found.ess == pytest.approx(1, abs=0.1)
    assert found.kl == pytest.approx(0, abs=0.1)


def test_a_step_is_held_back_until_all_rollouts_that_may_be_ahead_have_come(monkeypatch):
    from held_back import Complete, HeldBack

    monkeypatch.setattr(Complete, "groups", 0)
    complete, held = Complete(), HeldBack(groups=2, ahead=1, steps=3)

    async def scenario():
        passed = [asyncio.ensure_future(held.process(SimpleNamespace(number=number))) for number in range(3)]
        seen = []
        for _ in range(6):
            await complete.process(None)
            for _ in range(5):
                await asyncio.sleep(0)
            seen.append([step.done() for step in passed])
        return seen

    seen = asyncio.run(scenario())
    assert seen[2] == [False] * 3 and seen[3] == [True, False, False]
    # The last step has no batch behind it.
    assert seen[4] == [True, False, False] and seen[5] == [True] * 3


def test_a_setting_is_a_loss_and_more_and_samples_are_as_old_as_allowed():
    from staleness_lab import Cell

    overrides = Cell("cispo_masked", 8.0, 1, 1e-3).overrides(60)
    assert {"async_generation_ratio=8", "async_pipeline_depth=8"} <= set(overrides)
    assert {"actor_train.pg_variant=cispo", "actor_train.cispo_use_unified_mask=true"} <= set(overrides)
    assert any("groups: 32, ahead: 8, steps: 60" in each for each in overrides)


def test_stability_of_a_run():
    risen = row(accuracy=(0.2, 0.7, 0.5, 0.6, 0.8, 0.7, 0.8, 0.9))
    assert risen.final == pytest.approx(0.8) and risen.worst_drop == pytest.approx(0.2) and not risen.collapsed
    fallen = row(accuracy=(0.2, 0.8, 0.6, 0.3, 0.1, 0.0, 0.0))
    assert fallen.final == pytest.approx(0.1) and fallen.worst_drop == pytest.approx(0.8) and fallen.collapsed
    assert row(accuracy=(0.1, 0.2, 0.3)).worst_drop == 0.0


def test_the_table_has_a_line_a_setting_with_its_spread_and_its_collapses():
    from staleness_report import table

    fallen = row(ratio=8.0, lag=7.9, accuracy=(0.2, 0.6, 0.0, 0.0, 0.0, 0.0))
    lines = table([row(), row(seed=2, accuracy=(0.2, 0.8, 0.8, 0.8, 0.8)), fallen]).splitlines()
    assert len(lines) == 2 + 2
    assert "| ppo | 0 | 2 | 0.70 (0.60 to 0.80) | 0.00 | 0.00 |" in lines[2]
    assert "| ppo | 8 | 1 | **0.00**, 1 of 1 collapsed | 0.60 | 7.90 |" in lines[3]


def test_rows_survive_their_csv(tmp_path):
    from staleness_report import read_rows, write_rows

    rows = [row(seed=2, weight=1.25, accuracy=(0.235, 0.01)), row(variant="tis", ratio=4.0, lag=3.5)]
    write_rows(tmp_path / "rows.csv", rows)
    assert read_rows(tmp_path / "rows.csv") == rows


def test_the_pages_in_the_repository_are_those_of_the_csv(tmp_path):
    from staleness_report import write_pages

    for path in [*PAGES.glob("*.md"), *PAGES.glob("*.csv")]:
        (tmp_path / path.name).write_text(path.read_text())
    for path in write_pages(tmp_path):
        if path.suffix == ".md":
            assert path.read_text() == (PAGES / path.name).read_text(), "make it again: python benchmarks/staleness_lab.py --page"


@pytest.fixture
def measured():
    """Mean final accuracies of the table, and of both CSV files at step 60."""
    from staleness_report import by_setting, mean, read_rows

    def finals(name, steps=80):
        runs = by_setting(read_rows(PAGES / name)).items()
        last = {key: [mean(run.accuracy[steps // 5 - 3 : steps // 5 + 1]) for run in rows] for key, rows in runs}
        return {(*key[1:], key[0]): values for key, values in last.items()}

    return SimpleNamespace(
        table=finals("staleness_lab.csv"), early=finals("staleness_lab.csv", 60), sweep=finals("staleness_lab_sweep.csv", 60)
    )


def two(*values):
    return [f"{value:.2f}" for value in values]


def test_the_findings_are_those_of_the_csv(measured):
    """Every accuracy in the text of the page is in one of these statements, each made from the CSV files."""
    from staleness_report import mean, read_rows

    page = " ".join(BLOCK.sub("", (PAGES / "choosing.md").read_text()).split())
    rows = read_rows(PAGES / "staleness_lab.csv")
    fresh = [run for run in rows if run.ratio == 0]
    ended = {key[:2]: mean(values) for key, values in measured.table.items()}
    rate = 6e-4

    def at(variant, *ratios):
        return two(*(ended[variant, ratio] for ratio in ratios))

    def sixty(rate, ratio, runs=measured.sweep):
        return mean(runs["ppo", ratio, rate])

    def once(ratio):
        return measured.early["ppo", ratio, rate][0]

    low, high = two(min(run.final for run in fresh), max(run.final for run in fresh))
    weighted = two(*(edge(ended[name, ratio] for name in ("tis", "decoupled_ppo") for ratio in (2, 4, 8)) for edge in (min, max)))
    lags = at("topr", 1, 2, 4, 8)
    pairs = [f"{p} and {g}" for p, g in zip(at("ppo", 2, 4, 8), at("gspo", 2, 4, 8), strict=True)]
    half, same = [two(*(sixty(each, ratio) for ratio in (4, 8))) for each in (3e-4, rate)]
    again, of_three = two(once(4), once(8)), two(*(sixty(rate, ratio, measured.early) for ratio in (4, 8)))
    gain = two(*(sixty(3e-4, ratio) - sixty(rate, ratio, measured.early) for ratio in (4, 8)))
    start = mean([run.accuracy[0] for run in fresh])
    statements = [
        f"They ended between {low} and {high}.",
        f"`vanilla` ended at {at('vanilla', 1)[0]} at lag 1, below the {start:.2f} before training;",
        f"its default bounds of 1 ± 0.1 at {at('cispo', 1)[0]}.",
        f"({', '.join(pairs)})",
        f"they ended between {weighted[0]} and {weighted[1]}.",
        f"{', '.join(lags[:3])} and {lags[3]} at lags 1, 2, 4 and 8",
        f"against `ppo` at lags 1 and 2, by {ended['ppo', 1] - ended['topr', 1]:.2f} each",
        f"At lag 8 it ended {ended['topr', 8] - ended['ppo', 8]:.2f} higher",
        "`decoupled_ppo` ({1} after {0})".format(*at("decoupled_ppo", 4, 8)),
        f"At half the rate `ppo` had {half[0]} at lag 4 and {half[1]} at lag 8",
        f"at 6·10⁻⁴ had {same[0]} and {same[1]}.",
        f"had {again[0]} and {again[1]} at that step, and {of_three[0]} and {of_three[1]} in the mean",
        f"from its own repetition by {once(8) - sixty(rate, 8):.2f}, and what is left of the gain is {gain[0]} and {gain[1]},",
        f"It is {start:.2f} before training.",
        f"standard error of at most {math.sqrt(0.25 / 800):.3f} from the 800 samples",
    ]
    settings = ["(0.3 M parameters", "up to about 0.1 are noise"]
    for statement in statements + settings:
        assert statement in page, statement
        page = page.replace(statement, "")
    assert re.findall(r"(?<![\w.])[01]\.\d+", page) == []
    assert f"{ended['ppo', 2] - ended['topr', 2]:.2f}" == f"{ended['ppo', 1] - ended['topr', 1]:.2f}"


def test_what_the_findings_say_in_words_is_so(measured):
    from staleness_report import by_setting, mean, read_rows

    runs = by_setting(read_rows(PAGES / "staleness_lab.csv"))
    names = sorted({variant for _, variant, _ in runs})
    ended = {key[:2]: mean(values) for key, values in measured.table.items()}
    noise = {0: 0.03, 1: 0.09, 2: 0.12, 4: 0.15, 8: 0.16}  # the table of the page, which the CSV makes

    distinct = [len({runs[6e-4, name, 0][seed].accuracy for name in names}) for seed in range(3)]
    assert distinct[2] == 1 and max(distinct) <= len(names) == 8
    assert not any(run.collapsed for name in ("ppo", "gspo") for ratio in noise for run in runs[6e-4, name, ratio])
    assert all(abs(ended["ppo", ratio] - ended["gspo", ratio]) < noise[ratio] for ratio in (2, 4, 8))
    best = {ratio: sorted(names, key=lambda name: -ended[name, ratio])[:2] for ratio in (1, 2, 4)}
    assert all(set(pair) == {"ppo", "gspo"} for pair in best.values())
    assert all(ended["ppo", ratio] - ended["topr", ratio] > noise[ratio] for ratio in (1, 2))
    ahead = {(a, b): ended[a, 8] - ended[b, 8] for a in ("gspo", "topr") for b in ("ppo",)}
    assert max(ahead.values()) == ahead["topr", "ppo"] < noise[8]
    higher = [name for name in names if ended[name, 8] > ended[name, 4] and not name.startswith(("cispo", "vanilla"))]
    assert [name for name in higher if ended[name, 8] - ended[name, 4] > noise[8]] == ["decoupled_ppo"] and len(higher) == 4
    assert "| 8 | 0.071 | 0.139 | 0.16 |" in (PAGES / "choosing.md").read_text()
    sweep = {key: values[0] for key, values in measured.sweep.items()}
    assert max(sweep["vanilla", ratio, rate] for ratio in (4, 8) for rate in (3e-4, 6e-4, 1e-3, 2e-3)) < 0.1
    assert all(sweep["ppo", ratio, rate] < sweep["ppo", ratio, 6e-4] for ratio in (0, 4, 8) for rate in (1e-3, 2e-3))


def test_the_noise_of_two_seeds_is_left_out_and_of_three_is_pooled():
    from staleness_report import noise

    def finals(*values, **changes):
        return [row(seed=n, accuracy=(0.2, *[value] * 4), **changes) for n, value in enumerate(values)]

    rows = [*finals(0.5, 0.6, 0.7), *finals(0.2, 0.2, 0.2, variant="tis"), *finals(0.1, 0.9, variant="topr")]
    pooled = math.sqrt(0.01 / 2)
    assert noise(rows).splitlines()[2:] == [f"| 0 | {pooled:.3f} | 0.100 | {2.776 * pooled * math.sqrt(2 / 3):.2f} |"]


def test_a_place_of_a_page_that_nothing_fills_is_an_error():
    from staleness_report import filled

    page = "before\n<!-- lab: drop -->\nold\n<!-- end of lab -->\nafter\n"
    assert filled(page, {"drop": "new"}) == "before\n<!-- lab: drop -->\nnew\n<!-- end of lab -->\nafter\n"
    with pytest.raises(KeyError, match="drop"):
        filled(page, {"accuracy": "new"})
    with pytest.raises(ValueError, match="lab: NAME"):
        filled("nothing to fill", {})
