"""Two ranks that are killed in the middle of a checkpoint, and one that goes on from the last complete one, in every back end."""

import json
import runpy
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from saving import saved

from roll.core.errors import CheckpointError
from roll.core.record.checkpoint import CheckpointStore
from roll.platform.ports import free_port

PROGRAM = Path(__file__).with_name("resume_program.py")
SETUP = SimpleNamespace(**runpy.run_path(str(PROGRAM)))
NOISE = "k_proj.bias"
"""Softmax does not see it: its gradient is rounding error alone, and AdamW makes whole steps of that."""

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("megatron")]
pytest.importorskip("megatron.core", reason="needs requirements/megatron.txt")
pytest.importorskip("deepspeed", reason="needs requirements/deepspeed.txt")


@pytest.fixture(scope="module")
def out(programs, megatron_models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("killed")
    for layout, (_, model, *_rest) in SETUP.LAYOUTS.items():
        port = free_port()
        ranks = [programs.start(PROGRAM, "die", layout, megatron_models / model, folder, rank, port) for rank in range(2)]
        (killed, log), _ = ranks
        try:
            assert killed.wait(120) == -signal.SIGKILL, f"{layout}: {log.read_text()[-3000:]}"
        finally:
            for rank, _ in ranks:
                rank.kill()
    order = sorted(SETUP.LAYOUTS, key=lambda layout: layout == "zero3")  # leaves a process group behind
    programs.run(PROGRAM, ("resume", megatron_models, folder, *order))
    return folder


@pytest.fixture(params=SETUP.LAYOUTS)
def layout(request):
    return request.param


def test_the_checkpoint_that_was_being_written_does_not_count(out, layout):
    store = CheckpointStore(out / layout)
    half = out / layout / f".step-{SETUP.STEPS}.partial"
    assert (half / "trainer").is_dir() and store.steps() == [SETUP.SAVED]
    with pytest.raises(CheckpointError, match=rf"no manifest\.json; the last complete one is .*step-{SETUP.SAVED}"):
        store.load(half)
    assert json.loads((out / f"{layout}-resumed.json").read_text())["from"] == SETUP.SAVED


def test_the_next_steps_are_those_of_the_uninterrupted_run(out, layout):
    expected = json.loads((out / f"{layout}-0.json").read_text())
    got = json.loads((out / f"{layout}-resumed.json").read_text())["metrics"]
    assert [step["actor_train/lr"] for step in got] == [step["actor_train/lr"] for step in expected]
    assert len({step["actor_train/lr"] for step in got}) == len(got) == SETUP.STEPS - SETUP.SAVED, "the schedule went on"
    for mine, theirs in zip(got, expected, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(("folder", "stem"), [("model", "model"), ("", "optimizer")])
def test_weights_and_moments_end_where_those_of_the_uninterrupted_run_do(out, layout, folder, stem):
    runs = ("resumed", "uninterrupted", f"step-{SETUP.SAVED}/trainer")
    got, expected, before = (saved(out / layout / run / folder, stem) for run in runs)
    assert got.keys() == expected.keys() == before.keys()
    for name, tensor in expected.items():
        if NOISE not in name:
            # Relative to the tensor's largest value: the order of additions differs between two ranks and one.
            torch.testing.assert_close(got[name], tensor, rtol=0, atol=1e-5 * float(tensor.abs().max()), msg=name)
            assert not torch.equal(before[name], tensor), f"{name} did not move: the test is blind"
    assert json.loads((out / layout / "resumed/trainer.json").read_text()) == {"optimizer_step": SETUP.STEPS, "skipped_steps": 0}
