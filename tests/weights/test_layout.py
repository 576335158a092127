import os

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from roll.core.weights.layout import CODES, as_bytes
from roll.transports.node_files import write_memory_file


def random_tensor(dtype, shape):
    generator = torch.Generator().manual_seed(len(shape))
    return torch.randint(0, 2, shape, generator=generator).to(dtype)


def read(tensors):
    descriptor = write_memory_file(tensors)
    try:
        path = f"/proc/{os.getpid()}/fd/{descriptor}"
        with safe_open(path, framework="pt") as file:
            return list(file.offset_keys()), load_file(path)
    finally:
        os.close(descriptor)


def test_safetensors_reads_every_type_and_shape_as_it_was():
    shapes = [(), (1,), (3, 5), (2, 0), (7, 1, 3)]
    tensors = {f"{dtype}-{shape}": random_tensor(dtype, shape) for dtype in CODES for shape in shapes}
    _, found = read(tensors)
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape
        assert torch.equal(as_bytes(found[name]), as_bytes(tensor))


def test_tensors_of_one_type_stay_in_their_order():
    names = ["z", "a", "m", "Größe"]
    order, found = read({name: torch.full((4, 3), float(i)).t() for i, name in enumerate(names)})
    assert order == names
    assert [found[name].tolist() for name in names] == [torch.full((3, 4), float(i)).tolist() for i in range(4)]


def test_a_type_that_the_format_does_not_have_is_refused_by_name():
    with pytest.raises(ValueError, match=r"weight 'w': safetensors files have no torch.complex64"):
        write_memory_file({"w": torch.zeros(2, dtype=torch.complex64)})
