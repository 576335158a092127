"""Adapters in transit: what they are of, and what makes a set of them whole."""

import pytest
import torch
from safetensors.torch import save_file

from roll.core.weights.adapter import BASE, A, B, BaseWeights, adapted_weights, is_adapter, merge

Q = "model.layers.0.q_proj"


def base_of(folder, **changes):
    weights = {f"{Q}.weight": torch.arange(12.0).reshape(4, 3), "model.norm.weight": torch.ones(3), **changes}
    folder.mkdir()
    save_file({name: tensor for name, tensor in weights.items() if "norm" in name}, folder / "a.safetensors")
    save_file({name: tensor for name, tensor in weights.items() if "norm" not in name}, folder / "b.safetensors")
    return BaseWeights(folder)


def test_the_weights_of_all_files_are_read(tmp_path):
    base = base_of(tmp_path / "base")
    assert base.shapes == {f"{Q}.weight": [4, 3], "model.norm.weight": [3]}
    assert torch.equal(base.read(f"{Q}.weight"), torch.arange(12.0).reshape(4, 3))


def test_a_fingerprint_tells_models_apart(tmp_path):
    base = base_of(tmp_path / "base")
    assert base.fingerprint == base_of(tmp_path / "copy").fingerprint
    others = [
        {"model.norm.weight": torch.full((3,), 1.001)},
        {f"{Q}.weight": torch.arange(12.0).reshape(4, 3) + 1e-3},
        {f"{Q}.weight": torch.arange(12.0).reshape(3, 4)},
        {"model.layers.1.q_proj.weight": torch.zeros(4, 3)},
    ]
    prints = {base_of(tmp_path / str(i), **changes).fingerprint for i, changes in enumerate(others)}
    assert len(prints | {base.fingerprint}) == 5


def test_merging_is_the_formula():
    weight, a, b = torch.randn(4, 3), torch.randn(2, 3), torch.randn(4, 2)
    expected = weight.double() + b.double() @ a.double()
    torch.testing.assert_close(merge(weight, a, b).double(), expected, rtol=1e-6, atol=1e-6)
    assert merge(weight.bfloat16(), a, b).dtype == torch.float32


def test_complete_adapters_name_the_weights_they_change():
    assert adapted_weights([BASE, Q + A, Q + B]) == {f"{Q}.weight"}


@pytest.mark.parametrize(
    ("names", "missing"),
    [
        ([Q + A, Q + B], BASE),
        ([BASE, Q + A], "lora_B"),
        ([BASE, Q + B], "lora_A"),
        ([BASE, Q + A, Q + B, "x.weight"], "x.weight"),
    ],
)
def test_incomplete_adapters_are_refused(names, missing):
    with pytest.raises(ValueError, match=f"incomplete.*{missing}"):
        adapted_weights(names)


@pytest.mark.parametrize(
    ("names", "kind"), [([f"{Q}.weight"], False), ([], False), ([Q + A], True), ([Q + B, f"{Q}.weight"], True), ([BASE], True)]
)
def test_a_bucket_with_any_part_of_an_adapter_is_of_that_kind(names, kind):
    """So that a mixture is met by the stricter check."""
    assert is_adapter(names) is kind


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        (Q + A, (3, 3), r"shape \[3, 3\].*need \[2, 3\]"),
        (Q + B, (2, 4), r"shape \[2, 4\].*need \[4, 2\]"),
        ("model.norm" + A, (2, 3), "is not an adapter of a linear layer"),
        ("model.layers.9.q_proj" + A, (2, 3), "is not an adapter of a linear layer"),
        (f"{Q}.weight", (4, 3), "is not an adapter of a linear layer"),
    ],
)
def test_what_does_not_fit_the_base_is_refused(tmp_path, name, shape, message):
    base = base_of(tmp_path / "base")
    base.check({Q + A: torch.zeros(2, 3), Q + B: torch.zeros(4, 2), BASE: torch.tensor([base.fingerprint])}, 2)
    with pytest.raises(ValueError, match=message):
        base.check({name: torch.zeros(shape)}, 2)
    with pytest.raises(ValueError, match="of another base"):
        base.check({BASE: torch.tensor([base.fingerprint + 1])}, 2)


def test_a_folder_without_weights_is_no_base(tmp_path):
    with pytest.raises(ValueError, match=r"no \*\.safetensors"):
        BaseWeights(tmp_path)
