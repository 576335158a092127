"""A rank on CPUs uses the cores of workers that wait, and gives them back between two layers."""

from __future__ import annotations

import tempfile

import pytest
import torch
from train_specs import fsdp2_spec
from transformers.modeling_layers import GradientCheckpointingLayer

from roll.core.workers.train_interface import RankContext
from roll.platform import cores
from roll.platform.cores import Contention, Cores
from roll.strategies.train.fsdp2 import FSDP2Strategy


@pytest.fixture
def four_cores(tmp_path, monkeypatch):
    """A machine of its own."""
    threads = torch.get_num_threads()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(cores, "usable_cores", lambda: 4)
    monkeypatch.setattr(Contention, "lets", lambda *_: True)  # this test may share its cores with any others
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("four_cores")
@pytest.mark.parametrize("options", [{}, {"gradient_checkpointing": True}], ids=["plain", "checkpointing"])
def test_threads_follow_the_work_from_layer_to_layer(model_path, rank_program, options):
    spec = fsdp2_spec(model_path, **{**rank_program.OPTIONS, "max_tokens_per_microbatch": 1000, **options})
    strategy, engine = FSDP2Strategy(RankContext(borrows_cores=True), spec), Cores(1)
    batch = rank_program.make_batch(0)
    assert torch.get_num_threads() == 1
    strategy.log_probs(batch)
    assert torch.get_num_threads() == 4, "it was alone"

    layers = [module for module in strategy._model.modules() if isinstance(module, GradientCheckpointingLayer)]
    forwards: list[int] = []
    backwards: list[int] = []

    def before(layer, given):
        forwards.append(torch.get_num_threads())
        if len(forwards) == 1:
            engine.begin()

    def after(layer, given, output):
        if output.requires_grad:
            output.register_hook(lambda gradient: backwards.append(torch.get_num_threads()))
        if layer is layers[-1]:
            engine.end()

    for layer in layers:
        layer.register_forward_pre_hook(before)
        layer.register_forward_hook(after)
    strategy.train_step(batch, rank_program.LOSS, rank_program.totals(batch))
    assert len(layers) > 1
    assert forwards[: len(layers)] == [4] + [2] * (len(layers) - 1), "four cores, of which another has one and borrows one"
    assert len(backwards) >= len(layers) and set(backwards) == {4}
    assert Cores(1).threads == 4, "it waits again"


@pytest.mark.usefixtures("four_cores")
def test_a_rank_that_borrows_nothing_lends(model_path, rank_program):
    strategy = FSDP2Strategy(RankContext(), fsdp2_spec(model_path, **rank_program.OPTIONS))
    strategy.log_probs(rank_program.make_batch(0))
    assert torch.get_num_threads() == 1 and Cores(1).threads == 4
