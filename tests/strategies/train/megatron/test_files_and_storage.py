import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from roll.strategies.train import tensor_files
from roll.strategies.train.storage_offload import StorageOffload
from roll.strategies.train.tensor_files import FilesOf, TensorFiles, write_tensors


def test_large_models_are_written_in_several_files_with_an_index(family_models, tmp_path):
    source = family_models / "qwen3-untied"
    tensors = load_file(source / "model.safetensors")
    (tmp_path / "config.json").write_text((source / "config.json").read_text())
    write_tensors(tmp_path, tensors.items(), shard_bytes=5000)
    sizes = [path.stat().st_size for path in tmp_path.glob("*.safetensors")]
    assert len(sizes) > 2 and max(sizes) < 10000
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in model.state_dict().items())
    files = TensorFiles.of_model(tmp_path)
    assert all(torch.equal(files.read(name), tensor) for name, tensor in tensors.items())
    assert all(files.meta(name).shape == tensor.shape for name, tensor in tensors.items())


def test_offloaded_memory_comes_back_under_all_views():
    buffer = torch.arange(8.0)
    parameter = torch.nn.Parameter(torch.empty(0))
    parameter.data = buffer[:4].view(2, 2)
    scratch = torch.ones(16)
    offload = StorageOffload()
    offload.offload([parameter, buffer], [scratch])
    assert buffer.untyped_storage().nbytes() == scratch.untyped_storage().nbytes() == 0
    offload.offload([parameter, buffer], [scratch])
    offload.reload()
    assert torch.equal(buffer, torch.arange(8.0)) and torch.equal(parameter.data, torch.arange(4.0).view(2, 2))
    buffer[0] = 7
    assert parameter[0, 0] == 7 and scratch.untyped_storage().nbytes() == 64


@pytest.mark.parametrize("shard_bytes", [5000, 1 << 20])
def test_a_file_of_tensors_that_another_rank_has_seen_stays(tmp_path, monkeypatch, shard_bytes):
    """Each rank tells the driver what lies in the folder when it has written its own: all of it has to be there then."""
    seen, save = set(), tensor_files.save_file

    def watched(*args, **kwargs):
        save(*args, **kwargs)
        seen.update(tmp_path.glob("*.safetensors"))

    monkeypatch.setattr(tensor_files, "save_file", watched)
    write_tensors(tmp_path, {f"layer.{i}": torch.zeros(1000) for i in range(3)}.items(), FilesOf(1, 2), shard_bytes)
    files = {*tmp_path.iterdir()}
    assert seen <= files and all(path.suffix == ".safetensors" for path in files)
    assert len(files) == (3 if shard_bytes == 5000 else 1)
