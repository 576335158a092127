"""Model folders whose tensors are not all of one type."""

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from train_specs import fsdp2_spec

from roll.core.workers.train_interface import RankContext
from roll.strategies import model_folder
from roll.strategies.model_folder import stored_dtype
from roll.strategies.train.fsdp2 import FSDP2Strategy


@pytest.fixture
def mixed(model_path, tmp_path):
    """bf16 but for the norms."""
    folder = tmp_path / "mixed"
    shutil.copytree(model_path, folder)
    tensors = load_file(folder / "model.safetensors")
    norms = {name: tensor + torch.arange(len(tensor)) * 1e-6 for name, tensor in tensors.items() if "norm" in name}
    rest = {name: tensor.bfloat16() for name, tensor in tensors.items() if name not in norms}
    save_file(norms | rest, folder / "model.safetensors", metadata={"format": "pt"})
    return folder, norms


def test_what_is_stored_wider_keeps_its_bits_and_the_rest_its_memory(mixed, monkeypatch):
    """A model that is loaded in float32 for some norms would be whole in the memory of each rank, in twice its size."""
    folder, norms = mixed
    load, types = model_folder.load_model, []

    def seen(path, dtype, *more, **named):
        types.append(dtype)
        return load(path, dtype, *more, **named)

    monkeypatch.setattr(model_folder, "load_model", seen)
    strategy = FSDP2Strategy(RankContext(), fsdp2_spec(folder))
    assert types == [torch.bfloat16] and stored_dtype(folder) == (torch.bfloat16, norms.keys())
    masters = strategy.snapshot().weights
    assert all(torch.equal(masters[name], tensor.float()) for name, tensor in load_file(folder / "model.safetensors").items())
    assert any(not torch.equal(tensor, tensor.bfloat16().float()) for tensor in norms.values()), "the test is blind"


def test_other_mixtures_are_float32(mixed):
    folder, _ = mixed
    tensors = load_file(folder / "model.safetensors")
    first = next(iter(tensors))
    save_file(tensors | {first: tensors[first].half()}, folder / "model.safetensors", metadata={"format": "pt"})
    assert stored_dtype(folder) == (torch.float32, set())
