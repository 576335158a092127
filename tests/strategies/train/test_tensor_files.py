"""Models with experts, which ranks take from the files when they have divided the model, beside transformers' own reading."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from saving import save
from train_specs import fsdp2_spec, train_spec
from transformers import AutoModelForCausalLM

from roll.core.distributed.machine import process_memory
from roll.core.workers.train_backends import make_train_strategy
from roll.core.workers.train_interface import RankContext
from roll.strategies.model_folder import load_model
from roll.strategies.train.fsdp2 import FSDP2Strategy
from roll.strategies.train.tensor_files import MappedTensors, untouched

EXPERT = "model.layers.0.mlp.experts.3.up_proj.weight"


def rewritten(source, target, change):
    """A copy of the folder in which the tensors are `change` of what they were."""
    shutil.copytree(source, target)
    save_file(change(load_file(source / "model.safetensors")), target / "model.safetensors", metadata={"format": "pt"})
    return target


def in_bf16_but_one_expert(tensors):
    return {name: tensor if name == EXPERT else tensor.bfloat16() for name, tensor in tensors.items()}


def of_transformers(folder, dtype):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).state_dict()


@pytest.mark.parametrize("family", ["qwen3_moe", "qwen2_moe"])
@pytest.mark.parametrize("name", ["fsdp2_train", "fsdp2_infer", "deepspeed_train", "deepspeed_infer"])
def test_weights_have_their_bits(megatron_models, tmp_path, family, name):
    if name.startswith("deepspeed"):
        pytest.importorskip("deepspeed", reason="needs requirements/deepspeed.txt")
    folder = rewritten(megatron_models / family, tmp_path / "mixed", in_bf16_but_one_expert)
    strategy = make_train_strategy(RankContext(), train_spec(name, folder))
    expected = of_transformers(folder, torch.float32)
    for weight, tensor in strategy.snapshot().weights.items():
        assert torch.equal(tensor, expected[weight]), weight
    strategy.close()


def test_nothing_of_the_experts_is_read_before_the_model_is_divided(megatron_models):
    made = MappedTensors(megatron_models / "qwen3_moe")
    state, later = made.state(torch.bfloat16), made.later()
    assert not state.keys() & later.parts and later.experts.keys() < state.keys()
    for name, shape in later.experts.items():
        state[name].fill_(7)
        assert state[name].shape == shape and state[name].dtype == torch.bfloat16
    model = load_model(megatron_models / "qwen3_moe", torch.bfloat16, "sdpa", state=state)
    for name in later.experts:
        assert model.state_dict()[name].data_ptr() == state[name].data_ptr()
    assert MappedTensors(megatron_models / "qwen2-tied").state(torch.float32) is None


def test_memory_that_nobody_touches_is_not_there_in_deterministic_mode_either():
    """256 MiB."""
    torch.use_deterministic_algorithms(True)
    try:
        before = process_memory(with_children=False).rss_mb
        tensor = untouched(torch.Size((8, 4096, 4096)), torch.bfloat16)
        gained = process_memory(with_children=False).rss_mb - before
        whole = torch.empty(tensor.shape, dtype=tensor.dtype)
        assert gained < 64 < process_memory(with_children=False).rss_mb - before and whole.shape == tensor.shape
    finally:
        torch.use_deterministic_algorithms(False)


def test_what_it_saves_has_the_files_of_transformers(megatron_models, tmp_path):
    folder = megatron_models / "qwen3_moe"
    save(FSDP2Strategy(RankContext(), fsdp2_spec(folder)), tmp_path / "saved")
    saved, given = load_file(tmp_path / "saved" / "model" / "model.safetensors"), load_file(folder / "model.safetensors")
    assert saved.keys() == given.keys() and all(torch.equal(saved[name], given[name]) for name in given)
    for file in ("config.json", "generation_config.json"):
        written, read = (json.loads((path / file).read_text()) for path in (tmp_path / "saved" / "model", folder))
        assert written == read


@pytest.mark.parametrize("change", ["missing", "narrow", "many"])
def test_a_folder_whose_experts_do_not_fit_is_refused(megatron_models, tmp_path, change):
    def damage(tensors):
        if change == "missing":
            del tensors[EXPERT]
        elif change == "narrow":
            tensors[EXPERT] = tensors[EXPERT][:5].clone()
        else:
            tensors |= {
                name.replace(".experts.3.", ".experts.4."): t.clone() for name, t in tensors.items() if ".experts.3." in name
            }
        return tensors

    folder = rewritten(megatron_models / "qwen3_moe", tmp_path / "damaged", damage)
    reason = r"config\.json makes it \[4, 16, 16\]" if change == "many" else "gate_up_proj .* not all there, or differ in shape"
    with pytest.raises(ValueError, match=reason):
        FSDP2Strategy(RankContext(), fsdp2_spec(folder))
