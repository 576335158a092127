"""The limits that roofline.py holds speeds against, and what a model needs."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # benchmarks are scripts: they import each other by name
import roofline
from tiny_models import tiny_qwen2


def test_what_a_token_multiplies_is_counted_without_the_weights(tmp_path: Path) -> None:
    model = tiny_qwen2(64, seed=0)
    model.config.save_pretrained(tmp_path)
    counts, vocabulary = roofline.counted(tmp_path)
    products = [module.weight.numel() for module in model.modules() if isinstance(module, torch.nn.Linear)]
    assert vocabulary == 64
    assert sum(products) <= counts.parameters <= sum(products) * 1.05, "but for norms and biases"
    assert counts.training(2) == pytest.approx(6 * counts.parameters + 24 * counts.attention)


def test_the_limits_are_those_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of whatever size: a product of n³ multiplications and additions, a matrix that is read once."""
    monkeypatch.setattr(roofline, "SIZE", 64)
    monkeypatch.setattr(roofline, "MATRIX", (128, 32))
    seconds = iter([2.0, 4.0])
    monkeypatch.setattr(roofline, "best", lambda work: (work(), next(seconds))[1])
    assert roofline.limits(torch.bfloat16, 1) == (2 * 64**3 / 2.0, 128 * 32 * 4 / 4.0)


def test_the_fastest_of_several_calls_counts_and_the_first_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 10.0, 15.0, 20.0, 23.0, 30.0, 34.0])
    monkeypatch.setattr(roofline.time, "perf_counter", lambda: next(clock))
    assert roofline.best(lambda: None, times=3) == 3.0
