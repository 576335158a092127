"""Trainer, critic and `hf_infer` on a device that refuses what an accelerator refuses, against the CPU: no tensor is left on the
other device, and the host waits for the device a bounded number of times."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

DEVICES = ("cpu", "stand:0")
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def ran(programs, model_path, tmp_path_factory):
    folders = {device: tmp_path_factory.mktemp("device") for device in DEVICES}
    programs.run(Path(__file__).with_name("stand_in_program.py"), *((model_path, folders[device], device) for device in DEVICES))

    def read(folder):
        return SimpleNamespace(
            tensors=load_file(folder / "tensors.safetensors"),
            **{name: json.loads((folder / f"{name}.json").read_text()) for name in ("metrics", "tokens", "waits", "refusals")},
        )

    return SimpleNamespace(here=read(folders["cpu"]), there=read(folders["stand:0"]))


def test_numbers_are_those_of_the_cpu(ran):
    """Every loss, gradients in parts, adapters, a critic, a checkpoint that is written and loaded."""
    assert ran.there.tensors.keys() == ran.here.tensors.keys()
    for name, tensor in ran.here.tensors.items():
        torch.testing.assert_close(ran.there.tensors[name], tensor, rtol=1e-5, atol=1e-5, msg=name)
    for step, metrics in ran.here.metrics.items():
        assert ran.there.metrics[step] == pytest.approx(metrics, rel=1e-3, abs=1e-5), step


def test_tokens_are_those_of_the_cpu(ran):
    """Greedy, sampled, cut by top_p and top_k; before and after a weight update, and after sleeping."""
    before, after, awake = ran.here.tokens
    assert ran.there.tokens == [before, after, awake] and before != after == awake


def test_the_host_seldom_waits_for_the_device(ran):
    """At most twice a micro-batch and five times a step. Two micro-batches a step are one copy each; the metrics come back in two
    parts, and the norm."""
    assert sum(ran.there.waits["step"].values()) <= 2 + 3, ran.there.waits["step"]
    assert sum(ran.there.waits["log_probs"].values()) <= 2 * 4 + 1, (
        "four micro-batches, whose log-probs come back, and one look at the head"
    )


def test_the_device_is_particular(ran):
    mixed, indexed, numpy, joined = ran.there.refusals
    assert "same device" in mixed and "same device" in indexed and "same device" in joined and "to numpy" in numpy
    assert ran.here.refusals == ["nothing"] * 4
