"""Two roles that compute on one device at the same time share it; alone each has all of it."""

import asyncio
import json
from dataclasses import replace

import pytest
from test_engine import engine, now, request
from test_prediction import COSTS, predicted

from roll.core.configs.problems import ConfigError
from roll.simulate.calibration import calibrated
from roll.simulate.costs import Costs, with_figures
from roll.simulate.shared_devices import Part
from roll.simulate.virtual_loop import run_virtually

ONE_DEVICE = {"engines": 1, "shared": True, "ratio": 1.0}


def ended(*jobs, overlap_speed=0.5):
    """When each job ends: (devices, when it begins, its seconds alone)."""

    async def job(part, begins, seconds):
        await asyncio.sleep(begins)
        await part.work(seconds)
        return now()

    async def main():
        on = {}
        parts = [Part(devices, on, overlap_speed) for devices, _, _ in jobs]
        return await asyncio.gather(*(job(part, *times) for part, (_, *times) in zip(parts, jobs, strict=True)))

    return run_virtually(main())


def test_each_of_two_has_half_of_the_device_while_both_compute():
    assert ended(([0], 0, 10), ([0], 0, 10)) == pytest.approx([20, 20])
    assert ended(([0], 0, 10), ([0], 0, 4)) == pytest.approx([14, 8])
    assert ended(([0], 0, 10), ([0], 4, 2)) == pytest.approx([12, 8])


def test_devices_of_their_own_and_one_after_the_other_take_what_they_take_alone():
    assert ended(([0], 0, 10), ([1], 0, 4)) == [10, 4]
    assert ended(([0], 0, 10), ([0], 10, 4)) == [10, 14]


def test_a_worker_of_two_devices_is_as_fast_as_the_slower():
    assert ended(([0, 1], 0, 10), ([1], 0, 2)) == pytest.approx([12, 4])


def test_a_share_that_is_given_takes_the_place_of_half():
    """After 5 s at 0.8 the short one is done, and 6 s of work are left to the other."""
    assert ended(([0], 0, 10), ([0], 0, 4), overlap_speed=0.8) == pytest.approx([11, 5])
    for share in (0, 1.5):
        with pytest.raises(ConfigError, match=r"costs\.overlap_speed.*is no share above 0"):
            with_figures(Costs(), {"overlap_speed": share})


def test_an_engine_is_slower_while_a_trainer_computes_beside_it_and_takes_nothing_when_it_stands_or_has_died():
    """40 tokens at 10 a second: 2 s at half of it have 10 of them, the other 30 take 3 s. The trainer's second takes 2."""

    async def main():
        on = {}
        trainer, of_engine = Part([0], on, 0.5), Part([0], on, 0.5)
        serving = engine(part=of_engine)
        answer = asyncio.ensure_future(serving.generate(request("a")))
        await trainer.work(1)
        trained = now()
        await answer
        answered = now()
        await trainer.work(1)
        alone = now()
        asyncio.ensure_future(serving.generate(request("b")))  # noqa: RUF006
        await asyncio.sleep(1)
        of_engine.leave()
        await trainer.work(1)
        return trained, answered, alone, now()

    assert run_virtually(main()) == pytest.approx((2, 5, 6, 8))


def test_a_run_whose_roles_overlap_is_between_turns_and_devices_of_their_own_and_keeps_its_accounts(memory_folder):
    """The device works 4 s a step, 2 for each half; beside the last of six nobody generates. In turns it waits for rewards."""
    apart, _, _ = predicted(memory_folder / "apart", ratio=1.0, engines=1)
    turns, _, _ = predicted(memory_folder / "turns", **ONE_DEVICE)
    both, run_dir, simulation = predicted(memory_folder / "both", more={"sharing": "overlap"}, **ONE_DEVICE)
    free, _, _ = predicted(memory_folder / "free", replace(COSTS, overlap_speed=1.0), more={"sharing": "overlap"}, **ONE_DEVICE)
    assert apart.step_s == free.step_s < both.step_s < turns.step_s
    assert both.step_s == pytest.approx((5 * 4 + 2) / 6, rel=0.01)
    assert all(0 <= share <= 1 for share in both.idle.values()) and both.staleness_max <= 1
    summary = json.loads((run_dir / "summary.json").read_text())
    counts = summary["groups"]
    assert counts["trained"] == 12 * 4 and counts["admitted"] == counts["trained"] + counts["buffered"] + counts["in_flight"]
    assert "device_turns" not in summary
    found = calibrated(run_dir, simulation.config)
    assert found.overlap_speed == 1 and "beside the other" in found.measured["overlap_speed"]
    decided, _, _ = predicted(memory_folder / "auto", more={"sharing": "auto"}, **ONE_DEVICE)
    assert decided == both
