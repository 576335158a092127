"""The layouts of benchmarks/backend_parity.py that divide a transformers model, against its plain PyTorch loop.

Four layers, tied embeddings, four optimiser steps with clipping, weight decay and a schedule; two processes a layout."""

from pathlib import Path
from types import SimpleNamespace

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "backend_parity.py"
LAYOUTS = ("fsdp2-2", "zero1-2", "zero2-2", "zero3-2")
STEPS = 4

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPT.parent))
        import backend_parity
    model = tmp_path_factory.mktemp("parity") / "model"
    backend_parity.make_model(model)
    return SimpleNamespace(script=backend_parity, model=model, result=backend_parity.plain_loop(model, STEPS))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_steps_are_those_of_a_plain_loop(programs, plain, layout, tmp_path):
    programs.run(SCRIPT, *plain.script.arguments_of_ranks(layout, plain.model, tmp_path / layout, STEPS))
    row = plain.script.compare(layout, tmp_path / layout, plain.result)
    # Relative to the largest weight of each tensor, to the norm, absolute.
    assert row.weights <= 1e-4
    assert row.grad_norm <= 1e-5
    assert row.logprobs <= 1e-5


def test_the_plain_loop_clips_and_moves_the_weights(plain):
    """Otherwise agreement with it would say little."""
    from safetensors.torch import load_file

    weights, norms, logprobs, _ = plain.result
    assert min(norms) > plain.script.MAX_GRAD_NORM
    assert logprobs.min() < -1
    before = load_file(plain.model / "model.safetensors")
    assert all((weights[name] - tensor).abs().max() > 5e-4 for name, tensor in before.items())
