"""Two gloo processes against one: the same losses, weights and checkpoints."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from roll.strategies.train.fsdp2 import FSDP2Strategy
from roll.strategies.train.interface import RankContext

NOISE = "k_proj.bias"
"""Softmax does not see it: its gradient is rounding error alone, and AdamW makes whole steps of that."""


def weights(strategy):
    return {name: tensor for bucket in strategy.export_weights(1 << 20) for name, tensor in bucket.tensors.items()}


def assert_same_weights(got, expected):
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        if NOISE not in name:
            torch.testing.assert_close(got[name], tensor, rtol=1e-5, atol=1e-5 * float(tensor.abs().max()), msg=name)


@pytest.fixture(scope="module")
def runs(model_path, rank_program, tmp_path_factory):
    """Three steps on one rank, then the same on two, which end by continuing from the checkpoint of the one."""
    folder = tmp_path_factory.mktemp("ranks")
    one = FSDP2Strategy(RankContext(), model_path, **rank_program.OPTIONS)
    logprobs = one.log_probs(rank_program.make_batch(9))
    metrics = []
    for step in range(3):
        batch = rank_program.make_batch(step)
        metrics.append(one.train_step(batch, rank_program.LOSS, rank_program.totals(batch)))
    trained = weights(one)
    one.save(folder / "one")

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = Path(__file__).with_name("rank_program.py")
    root = str(Path(__file__).parents[3])
    arguments = [sys.executable, str(program), model_path, str(folder)]
    processes = [
        subprocess.Popen(
            [*arguments, str(rank), str(port), str(folder / "one")],
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": root},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for process in processes:
            _, errors = process.communicate(timeout=120)
            assert process.returncode == 0, errors
    finally:
        for process in processes:
            process.kill()
    return SimpleNamespace(folder=folder, one=one, logprobs=logprobs, metrics=metrics, trained=trained)


def test_log_probs(runs, rank_program):
    batch = rank_program.make_batch(9)
    for rank, indices in enumerate(rank_program.SHARES[0]):
        expected = batch.with_(behaviour_logprobs=runs.logprobs).select(indices).behaviour_logprobs
        got = load_file(runs.folder / f"logprobs-{rank}.safetensors")["logprobs"]
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


def test_metrics_are_those_of_one_rank_on_every_rank(runs):
    got = [json.loads((runs.folder / f"metrics-{rank}.json").read_text()) for rank in range(2)]
    assert got[0] == got[1]
    for step, expected in zip(got[0], runs.metrics, strict=True):
        assert step == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_weights_after_three_steps(runs):
    assert_same_weights(load_file(runs.folder / "exported-0.safetensors"), runs.trained)
    assert load_file(runs.folder / "exported-1.safetensors") == {}


def test_checkpoint_of_two_ranks_continues_on_one(runs, model_path, rank_program):
    strategy = FSDP2Strategy(RankContext(), model_path, **rank_program.OPTIONS)
    strategy.load(runs.folder / "checkpoint")
    saved = weights(strategy)
    exported = load_file(runs.folder / "exported-0.safetensors")
    assert saved.keys() == exported.keys()
    assert all(torch.equal(saved[name], tensor) for name, tensor in exported.items())
    batch = rank_program.make_batch(3)
    strategy.train_step(batch, rank_program.LOSS, rank_program.totals(batch))
    runs.one.load(runs.folder / "one")
    runs.one.train_step(batch, rank_program.LOSS, rank_program.totals(batch))
    assert_same_weights(weights(strategy), weights(runs.one))
    assert type(AutoModelForCausalLM.from_pretrained(runs.folder / "checkpoint/model")).__name__ == "Qwen2ForCausalLM"


def test_checkpoint_of_one_rank_continues_on_two(runs, rank_program):
    runs.one.load(runs.folder / "one")
    batch = rank_program.make_batch(3)
    runs.one.train_step(batch, rank_program.LOSS, rank_program.totals(batch))
    assert_same_weights(load_file(runs.folder / "continued-0.safetensors"), weights(runs.one))


def test_non_finite_gradient_of_one_rank_is_skipped_by_both(runs):
    assert [json.loads((runs.folder / f"skipped-{rank}.json").read_text()) for rank in range(2)] == [1, 1]
