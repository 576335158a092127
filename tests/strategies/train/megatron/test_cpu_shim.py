import sys

import pytest
import torch
from transformers import AutoModelForCausalLM

pytest.importorskip("megatron.core", reason="needs requirements/megatron.txt")

REAL = {name: getattr(torch, name) for name in ("tensor", "zeros", "ones", "empty")} | {
    "type": torch.Tensor.type,
    "current_device": torch.cuda.current_device,
    "synchronize": torch.cuda.synchronize,
}

from roll.strategies.train.megatron import cpu_shim  # noqa: E402


def test_only_megatron_sees_the_stand_in(family_models):
    path = family_models / "llama-untied"
    tokens = torch.arange(12)[None]
    before = AutoModelForCausalLM.from_pretrained(path).eval()(tokens).logits
    cpu_shim.install()
    cpu_shim.install()
    assert all(getattr(torch, name) is REAL[name] for name in ("tensor", "zeros", "ones", "empty"))
    assert torch.Tensor.type is REAL["type"] and torch.zeros(1).type() == "torch.FloatTensor"
    assert torch.cuda.current_device is REAL["current_device"] and torch.cuda.synchronize is REAL["synchronize"]
    assert torch.equal(AutoModelForCausalLM.from_pretrained(path).eval()(tokens).logits, before)

    schedules = sys.modules["megatron.core.pipeline_parallel.schedules"]
    assert schedules.torch is not torch and schedules.torch.Tensor is torch.Tensor
    assert schedules.torch.zeros([], device="cuda").device == schedules.torch.cuda.current_device() == torch.device("cpu")
    assert schedules.torch.tensor(1.5, device=torch.device("cuda")).device.type == "cpu"


def test_parameters_alone_say_that_they_are_on_a_gpu():
    layer, other = torch.nn.Linear(2, 2).bfloat16(), torch.nn.Linear(2, 2)
    cpu_shim.mark_parameters(layer)
    assert layer.weight.type() == "torch.cuda.BFloat16Tensor"
    assert layer.weight.detach().type() == "torch.BFloat16Tensor" and other.weight.type() == "torch.FloatTensor"
