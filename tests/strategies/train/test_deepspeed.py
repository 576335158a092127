"""ZeRO-3 on two ranks: what comes in and goes out bit for bit, skipped steps, and checkpoints shared with FSDP2."""

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

pytestmark = pytest.mark.timeout(240)  # the first test waits for both ranks


@pytest.fixture(scope="module")
def step(rank_program):
    def take(strategy, seed):
        batch = rank_program.make_batch(seed)
        return strategy.train_step(batch, rank_program.LOSS, rank_program.totals(batch))

    return take


@pytest.fixture(scope="module")
def one(model_path, rank_program, step, tmp_path_factory):
    """FSDP2 on one rank: three steps, the checkpoint `fsdp2`, a fourth step."""
    folder = tmp_path_factory.mktemp("zero3")
    strategy = FSDP2Strategy(RankContext(), model_path, **rank_program.OPTIONS)
    metrics = [step(strategy, seed) for seed in range(3)]
    strategy.save(folder / "fsdp2")
    trained = rank_program.exported(strategy)
    metrics.append(step(strategy, 3))
    return SimpleNamespace(folder=folder, metrics=metrics, trained=trained, next=rank_program.exported(strategy))


@pytest.fixture(scope="module")
def ranks(one, model_path):
    """What both ranks left behind."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = Path(__file__).with_name("deepspeed_program.py")
    processes = [
        subprocess.Popen(
            [sys.executable, str(program), model_path, str(one.folder), str(rank), str(port)],
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[3])},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for process in processes:
            _, errors = process.communicate(timeout=220)
            assert process.returncode == 0, errors[-5000:]
    finally:
        for process in processes:
            process.kill()
    return SimpleNamespace(
        tensors=[load_file(one.folder / f"tensors-{rank}.safetensors") for rank in range(2)],
        metrics=[json.loads((one.folder / f"metrics-{rank}.json").read_text()) for rank in range(2)],
    )


def part(ranks, name):
    """Weights that rank 0 exported at this moment."""
    found = {key.removeprefix(f"{name}/"): t for key, t in ranks.tensors[0].items() if key.startswith(f"{name}/")}
    assert found
    return found


def assert_equal(got, expected):
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(got[name], tensor), name


def assert_close(got, expected):
    """To 1e-5 of each tensor's largest weight."""
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        if NOISE not in name:
            torch.testing.assert_close(got[name], tensor, rtol=1e-5, atol=1e-5 * float(tensor.abs().max()), msg=name)


def test_tied_weights_come_back_bit_for_bit(ranks, model_path):
    state = AutoModelForCausalLM.from_pretrained(model_path).state_dict()
    del state["lm_head.weight"]
    assert_equal(part(ranks, "fresh"), state)


def test_three_steps_are_those_of_one_rank(ranks, one):
    assert_close(part(ranks, "trained"), one.trained)
    for metrics in ranks.metrics:
        for got, expected in zip(metrics["steps"], one.metrics[:3], strict=True):
            assert got == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_a_gradient_that_is_not_finite_on_one_rank_is_skipped_and_counted_by_both(ranks):
    assert [metrics["broken"]["actor_train/skipped_steps"] for metrics in ranks.metrics] == [1, 1]
    assert_equal(part(ranks, "skipped"), part(ranks, "trained"))


def test_offloaded_and_reloaded_it_computes_the_same(ranks):
    for tensors in ranks.tensors:
        assert tensors["logprobs"].count_nonzero()
        assert torch.equal(tensors["logprobs-reloaded"], tensors["logprobs"])


def test_the_step_after_a_skipped_one_is_the_one_that_was_due(ranks, one):
    assert_close(part(ranks, "next"), one.next)
    assert ranks.metrics[0]["next"]["actor_train/lr"] == one.metrics[3]["actor_train/lr"], "the schedule did not move"


def test_loaded_run_continues_bit_for_bit(ranks):
    assert_equal(part(ranks, "resumed"), part(ranks, "next"))
    resumed, due = ({**metrics} for metrics in (ranks.metrics[0]["resumed"], ranks.metrics[0]["next"]))
    assert (resumed.pop("actor_train/skipped_steps"), due.pop("actor_train/skipped_steps")) == (0, 1)
    assert resumed == due


def test_fsdp2_continues_from_its_checkpoint(ranks, one, model_path, rank_program, step):
    strategy = FSDP2Strategy(RankContext(), model_path, **rank_program.OPTIONS)
    strategy.load(one.folder / "zero3")
    assert_equal(rank_program.exported(strategy), part(ranks, "trained"))
    assert step(strategy, 3) == pytest.approx(one.metrics[3], rel=1e-4, abs=1e-6)
    assert_close(rank_program.exported(strategy), one.next)


def test_it_continues_from_a_checkpoint_of_fsdp2(ranks, one):
    assert_equal(part(ranks, "fsdp2"), one.trained)
    assert_close(part(ranks, "fsdp2-next"), one.next)
    assert ranks.metrics[0]["fsdp2-next"] == pytest.approx(one.metrics[3], rel=1e-4, abs=1e-6)


def test_checkpoint_holds_a_hugging_face_folder_and_no_pickle(ranks, one):
    files = {path.relative_to(one.folder / "zero3").as_posix() for path in (one.folder / "zero3").rglob("*") if path.is_file()}
    assert {Path(name).suffix for name in files} <= {".json", ".safetensors", ".jinja"}
    assert {"model/model.safetensors", "optimizer.safetensors", "rng-0.safetensors", "rng-1.safetensors"} <= files
    model = AutoModelForCausalLM.from_pretrained(one.folder / "zero3" / "model")
    assert type(model).__name__ == "Qwen2ForCausalLM" and model.config.tie_word_embeddings
    state = model.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in part(ranks, "trained").items())
