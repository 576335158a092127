"""The staleness laboratory: what is run again and what is not, how runs become figures, and pages that are those of the CSV."""

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

ROOT = Path(__file__).parents[2]


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


@pytest.mark.parametrize("task", ["additions", "sums", "gsm8k"])
def test_a_task_is_its_example_with_one_optimiser_step_a_batch(task):
    from staleness_lab import TASKS, Cell

    from roll.prepare.compose import load

    what = TASKS[task]
    cell = Cell("cispo_masked", 4.0, 1, what.learning_rate, task=task)
    config, report = load(what.config.parent, what.config.stem, cell.overrides(what.steps))
    assert not report.lacking and not report.unknown
    arguments = config.actor_train.training_args
    batch = arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps
    assert config.rollout_batch_size == what.groups and batch == what.groups * config.num_return_sequences_in_group
    assert (config.async_generation_ratio, config.max_steps, config.eval_steps) == (4, what.steps, what.eval_steps)
    assert config.actor_train.cispo_use_unified_mask and not config.max_len_mask


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
    assert "| ppo | 0 | 2 | 0.70 (0.60 to 0.80) | 0.00 | 0.00 |" in lines[2], "95 % of the means of two"
    assert "| ppo | 8 | 1 | **0.00**, 1 of 1 collapsed | 0.60 | 7.90 |" in lines[3]


def test_rows_survive_their_csv(tmp_path):
    from staleness_report import read_rows, write_rows

    rows = [row(seed=2, weight=1.25, accuracy=(0.235, 0.01)), row(variant="tis", ratio=4.0, lag=3.5)]
    write_rows(tmp_path / "rows.csv", rows)
    assert read_rows(tmp_path / "rows.csv") == rows


def test_a_place_of_a_page_that_nothing_fills_is_an_error():
    from staleness_report import filled

    page = "before\n<!-- lab: drop -->\nold\n<!-- end of lab -->\nafter\n"
    assert filled(page, {"drop": "new"}) == "before\n<!-- lab: drop -->\nnew\n<!-- end of lab -->\nafter\n"
    with pytest.raises(KeyError, match="drop"):
        filled(page, {"accuracy": "new"})
    with pytest.raises(ValueError, match="lab: NAME"):
        filled("nothing to fill", {})
