"""Claims about losses: which learning rate is chosen, what an interval says, and a page that is that of its CSV files."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs_roll" / "pg_variants"


@pytest.fixture(autouse=True)
def scripts(monkeypatch):
    """Benchmarks are scripts: they import each other by name."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def run(variant, ratio, seed, final, learning_rate=1e-5):
    from staleness_report import Row

    figures = {"lag": ratio, "lag_all": ratio, "weight": 1.0, "ess": 1.0, "kl": 0.0}
    return Row(variant, ratio, seed, learning_rate, 32, 4, **figures, accuracy=(0.1, *[final] * 8))


def test_the_learning_rate_is_the_one_that_ends_best_over_all_seeds_of_selection():
    from staleness_claims import chosen

    sweep = [run("ppo", 4.0, 1, 0.9, 1e-5), run("ppo", 4.0, 2, 0.1, 1e-5)]
    sweep += [run("ppo", 4.0, seed, 0.6, 2e-5) for seed in (1, 2)] + [run("ppo", 0.0, 1, 1.0, 5e-6)]
    assert chosen(sweep, ("ppo", 4.0)) == 2e-5


def test_a_verdict_needs_the_whole_interval():
    from staleness_claims import Claim

    claim = Claim("", ("ppo", 4.0), ("ppo", 0.0), least=-0.1)
    assert [claim.holds(-0.05, 0.1), claim.holds(-0.2, 0.1), claim.holds(-0.3, -0.15)] == ["held", "open", "refuted"]


def test_an_interval_of_a_mean_has_the_width_of_its_spread_over_seeds():
    """Of n values with standard deviation s (divisor n) a bootstrap mean has s / sqrt(n); 95 % of a normal law is 1.96 on each
    side, and five values are nearly that."""
    from staleness_claims import interval, resampled_means

    values = [0.1, 0.2, 0.4, 0.5, 0.7]
    low, high = interval(resampled_means(values, np.random.default_rng(0)))
    assert (high - low) / 2 == pytest.approx(1.96 * np.std(values) / np.sqrt(5), rel=0.05)
    assert interval(resampled_means([0.3] * 5, np.random.default_rng(0))) == pytest.approx((0.3, 0.3))


def test_claims_that_were_not_run_say_so_and_others_have_their_verdict():
    from staleness_claims import claims_table

    fresh = [run("ppo", 0.0, seed, 0.6 + seed / 1000) for seed in range(3, 8)]
    stale = [run("ppo", 4.0, seed, 0.3 + seed / 1000) for seed in range(3, 8)]
    lines = claims_table("sums", fresh + stale).splitlines()[2:]
    assert lines[0].endswith("| -0.30 (-0.30 to -0.30) | refuted |")
    assert all(line.endswith("|  | not run |") for line in lines[1:])
    equal = [replace(each, accuracy=(0.1, *[0.6] * 8)) for each in fresh + stale]
    assert claims_table("sums", equal).splitlines()[2].endswith("| held |")


@pytest.mark.parametrize("task", ["sums", "additions"])
def test_the_pages_in_the_repository_are_those_of_the_csv(task, tmp_path):
    from staleness_claims import write_pages

    for path in [*PAGES.glob("*.md"), *PAGES.glob("claims_*.csv")]:
        (tmp_path / path.name).write_text(path.read_text())
    for path in write_pages(task, tmp_path):
        if path.suffix == ".md":
            assert path.read_text() == (PAGES / path.name).read_text(), (
                f"make it again: python benchmarks/staleness_claims.py --task {task} --page"
            )


def test_a_loss_has_the_settings_that_are_it_with_something_set_on_its_page():
    from staleness_claims import figures_table

    rows = [run(name, 4.0, seed, 0.5) for name in ("cispo", "cispo_wide", "ppo") for seed in (3, 4)]
    lines = figures_table("additions", rows, {"cispo"}).splitlines()[2:]
    assert [line.split(" | ")[0] for line in lines] == ["| `cispo`", "| `cispo_wide`"]
    assert "0.50 (0.50 to 0.50)" in lines[0]


def test_what_the_page_says_in_words_is_so():
    from staleness_claims import CLAIMS, FRESH, LAG, claims_table, of
    from staleness_report import mean, read_rows

    rows, sweep = (read_rows(PAGES / f"claims_additions{kind}.csv") for kind in ("", "_sweep"))

    def ended(variant, lag=LAG):
        return mean([row.final for row in of(rows, (variant, lag))])

    def rate(variant, lag=LAG):
        return of(rows, (variant, lag))[0].learning_rate

    page = (PAGES / "choosing.md").read_text()
    assert f"It is {mean([row.accuracy[0] for row in rows]):.2f} before training" in page
    assert all(len(of(rows, side)) == 5 for claim in CLAIMS["additions"] for side in (claim.better, claim.worse))
    verdicts = [line.split(" | ")[-1].removesuffix(" |") for line in claims_table("additions", rows).splitlines()[2:]]
    assert verdicts.count("held") == len(verdicts) - 2
    assert [claim.says[:6] for claim, verdict in zip(CLAIMS["additions"], verdicts, strict=True) if verdict == "open"] == [
        "`gspo`"
    ] * 2
    weighed = ("vanilla", "tis", "cispo", "cispo_wide", "decoupled_ppo", "ppo_recomputed")
    masked = ("ppo", "cispo_masked", "gspo", "gspo_wide")
    assert {rate(variant) for variant in weighed} == {7.5e-5, 1.5e-4} and {rate(variant) for variant in masked} == {3e-4, 6e-4}
    assert max(map(ended, weighed)) < min(ended("ppo"), ended("cispo_masked"))
    assert not any(row.collapsed for row in rows)
    lost = [row.final for variant in weighed for row in of(sweep, (variant, LAG)) if row.learning_rate == 6e-4]
    assert sum(final < 0.1 for final in lost) == 5 and len(lost) == 6
    assert (rate("ppo", 1.0), rate(*FRESH)) == (6e-4, 3e-4)
    at_four = {variant: ended(variant) for variant, lag in {(row.variant, row.ratio) for row in rows} if lag == LAG}
    assert max(at_four, key=at_four.__getitem__) == "decoupled_ppo_4_steps"
    assert abs(ended("decoupled_ppo") - ended("ppo_recomputed")) < 0.01, "the same loss"
    assert ended("topr", 1.0) < ended("ppo", 1.0) and ended("topr") < ended("ppo") and ended("topr", 8.0) > ended("ppo", 8.0)
    # What the variants' pages say.
    start = mean([row.accuracy[0] for row in rows])
    assert (ended("cispo") - start) / (ended("cispo_masked") - start) == pytest.approx(1 / 3, abs=0.03)
    assert min(at_four, key=at_four.__getitem__) == "vanilla" and ended("cispo") - ended("vanilla") < 0.03
    assert ended("gspo", 1.0) < ended("ppo", 1.0) and ended("gspo") < ended("ppo")
    edges = {setting for setting in {(row.variant, row.ratio) for row in rows} if rate(*setting) in (7.5e-5, 1.2e-3)}
    assert edges == {("vanilla", LAG), ("tis", LAG), ("cispo", LAG), ("kimi15", LAG)} and rate("kimi15") == 1.2e-3


def test_what_the_page_of_the_real_model_says_in_words_is_so():
    from staleness_claims import CLAIMS, FRESH, LAG, claims_table, of
    from staleness_report import mean, read_rows

    rows, sweep = (read_rows(PAGES / f"claims_sums{kind}.csv") for kind in ("", "_sweep"))

    def over(variant, figure, lag=LAG):
        runs = of(rows, (variant, lag))
        assert len(runs) == 5
        return mean([figure(run) for run in runs])

    def final(run):
        return run.final

    verdicts = [line.split(" | ")[-1].removesuffix(" |") for line in claims_table("sums", rows).splitlines()[2:]]
    assert verdicts == ["open", "refuted", "refuted", "held", "refuted"] and len(CLAIMS["sums"]) == 5
    free, masked = ("vanilla", "cispo", "decoupled_ppo"), ("ppo", "cispo_masked", "gspo")
    assert [round(over(variant, final), 2) for variant in free] == [0.39, 0.37, 0.44]
    assert [round(over(variant, final), 2) for variant in masked] == [0.25] * 3
    assert all(0.02 < over(variant, lambda run: run.kl) < 0.03 for variant in masked)
    assert all(0.06 < over(variant, lambda run: run.kl) < 0.13 for variant in free)
    assert round(over("ppo", lambda run: run.ess), 2) == 0.96 and round(over("ppo", final, 0.0), 2) == 0.45

    def gap(figure):
        return mean([over(variant, figure) for variant in free]) - mean([over(variant, figure) for variant in masked])

    assert gap(lambda run: run.accuracy[1]) > gap(final) / 2, "a validation every four steps, and one before"

    def swept(variant, rate):
        return round(mean([run.final for run in of(sweep, (variant, LAG)) if run.learning_rate == rate]), 2)

    assert sorted(swept(variant, 2e-5) for variant in free) == [0.17, 0.22, 0.26] and swept("ppo", 2e-5) == 0.26
    smallest = {variant for variant in (*free, *masked) if of(rows, (variant, LAG))[0].learning_rate == 5e-6}
    assert smallest == {"ppo", *free} and of(rows, FRESH)[0].learning_rate == 1e-5
    assert not any(run.collapsed for run in rows)
