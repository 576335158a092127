import pytest

from roll.core.workers.lr_schedule import lr_scale, warmup_length


def scales(total, kind, warmup, steps):
    return [lr_scale(step, total, kind, warmup) for step in range(steps)]


def test_golden_values():
    assert scales(None, "constant", 0, 3) == [1, 1, 1]
    assert scales(None, "constant", 4, 6) == [0.25, 0.5, 0.75, 1, 1, 1]
    assert scales(6, "linear", 2, 8) == pytest.approx([0.5, 1, 1, 0.75, 0.5, 0.25, 0, 0])
    assert scales(4, "cosine", 0, 5) == pytest.approx([1, 0.5 + 0.5**1.5, 0.5, 0.5 - 0.5**1.5, 0], abs=1e-12)


def test_warmup_length():
    assert warmup_length(10, 0, 0.25) == 3
    assert warmup_length(10, 4, 0.25) == 4
    assert warmup_length(None, 0, 0.0) == 0
    with pytest.raises(ValueError, match="warmup_ratio"):
        warmup_length(None, 0, 0.1)


def test_no_step_of_the_run_stands_still():
    for kind in ("constant", "linear", "cosine"):
        for warmup in (0, 3, 10):
            assert all(0 < scale <= 1 for scale in scales(10, kind, warmup, 10))


def test_errors():
    with pytest.raises(ValueError, match="needs the total"):
        lr_scale(0, None, "linear")
    with pytest.raises(ValueError, match="unknown lr_scheduler_type"):
        lr_scale(0, 1, "step")
