"""Experts that files have one by one, as one tensor of the model's state."""

import torch

from roll.transports.experts import Fused, published, whole_shapes

E, INNER, HIDDEN = 5, 3, 4
PREFIX = "model.layers.0.mlp.experts"
WHOLE = {
    f"{PREFIX}.gate_up_proj": torch.arange(E * 2 * INNER * HIDDEN, dtype=torch.bfloat16).reshape(E, 2 * INNER, HIDDEN),
    f"{PREFIX}.down_proj": torch.arange(E * HIDDEN * INNER, dtype=torch.float32).reshape(E, HIDDEN, INNER),
    "model.norm.weight": torch.ones(HIDDEN),
}
SHAPES = {name: tensor.shape for name, tensor in WHOLE.items()}


class Files(dict):
    """Notes what is read."""

    def __init__(self, tensors):
        super().__init__(tensors)
        self.read = []

    def __getitem__(self, name):
        self.read.append(name)
        return super().__getitem__(name)


def files(suffix=""):
    return Files({part + suffix: view for whole in WHOLE.items() for part, view in published("qwen3_moe", *whole)})


def test_wholes_have_their_bits_types_and_shapes():
    fused = Fused(files(), "qwen3_moe", SHAPES)
    for name, tensor in WHOLE.items():
        assert fused.shape(name) == tensor.shape and torch.equal(fused[name], tensor) and fused[name].dtype == tensor.dtype
    assert fused.shape("other") is None


def test_what_is_not_asked_for_is_not_put_together():
    named = files(".exp_avg")
    fused = Fused(named, "qwen3_moe", SHAPES, ["exp_avg", "exp_avg_sq"])
    named.read.clear()
    assert torch.equal(fused[f"{PREFIX}.down_proj.exp_avg"], WHOLE[f"{PREFIX}.down_proj"])
    assert named.read == [f"{PREFIX}.{i}.down_proj.weight.exp_avg" for i in range(E)]
    assert f"{PREFIX}.down_proj.exp_avg_sq" not in fused


def test_a_part_that_is_missing_or_of_another_shape_makes_no_whole():
    lacking, other = files(), files()
    del lacking[f"{PREFIX}.4.up_proj.weight"]
    other[f"{PREFIX}.0.up_proj.weight"] = torch.zeros(1, HIDDEN)
    for named in (lacking, other):
        assert Fused(named, "qwen3_moe", SHAPES).shape(f"{PREFIX}.gate_up_proj") is None


def test_some_experts_are_read_without_the_others():
    named = files()
    fused = Fused(named, "qwen3_moe", SHAPES)
    for name, tensor in WHOLE.items():
        for begin, end in ((0, 2), (2, 4), (4, 4)):
            assert torch.equal(fused.rows(name, begin, end), tensor[begin:end])
    named.read.clear()
    fused.rows(f"{PREFIX}.gate_up_proj", 3, 4)
    assert set(named.read) == {f"{PREFIX}.3.gate_proj.weight", f"{PREFIX}.3.up_proj.weight"}


def test_files_tell_the_shapes_of_the_wholes():
    shapes = {name: tensor.shape for name, tensor in files().items()}
    experts = {name: shape for name, shape in SHAPES.items() if ".experts." in name}
    assert whole_shapes("qwen3_moe", shapes) == experts and whole_shapes("qwen2", shapes) == {}
    fused = Fused(files(), "qwen3_moe", experts)
    assert fused.experts == experts and fused.parts == shapes.keys() - {"model.norm.weight"}
    far = shapes | {f"{PREFIX}.{10**9}.up_proj.weight": torch.Size((INNER, HIDDEN))}
    assert whole_shapes("qwen3_moe", far)[f"{PREFIX}.gate_up_proj"][0] == E + 1
