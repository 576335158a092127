"""The critic on one rank of Megatron: its folders and checkpoints are those of the other critics."""

import runpy
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from saving import save
from train_specs import fsdp2_spec, train_spec

from roll.core.workers.train_backends import make_critic
from roll.core.workers.train_interface import RankContext
from roll.strategies.train.critic import FSDP2Critic
from roll.strategies.train.value_head import VALUE_HEAD

pytest.importorskip("megatron.core", reason="needs requirements/megatron.txt")
pytestmark = pytest.mark.xdist_group("megatron")

PROGRAM = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / "critic_program.py")))


@pytest.fixture
def make(megatron_models):
    made = []

    def build(path, **options):
        spec = train_spec("megatron_train", megatron_models / path, **{**PROGRAM.OPTIONS, **options})
        made.append(make_critic(RankContext(), spec))
        return made[-1]

    yield build
    for critic in made:
        critic.close()


def train(critic, steps):
    batches = [PROGRAM.make_batch(step) for step in steps]
    return [critic.train_values(batch, PROGRAM.LOSS, PROGRAM.totals(batch)) for batch in batches]


@pytest.mark.parametrize("model", ["qwen3-untied", "qwen2-tied", "qwen3_moe"])
def test_it_goes_on_from_another_critics_checkpoint_and_back(make, megatron_models, tmp_path, model):
    other, critic = FSDP2Critic(RankContext(), fsdp2_spec(megatron_models / model, **PROGRAM.OPTIONS)), make(model)
    assert critic.values(PROGRAM.make_batch(9)).eq(0).all(), "an untrained critic says 0"
    train(other, range(2))
    save(other, tmp_path / "fsdp2")
    critic.load(tmp_path / "fsdp2")
    save(critic, tmp_path / "megatron")
    for file in ("model/model.safetensors", f"model/{VALUE_HEAD}", "optimizer.safetensors"):
        got, expected = load_file(tmp_path / "megatron" / file), load_file(tmp_path / "fsdp2" / file)
        assert got.keys() == expected.keys() and all(torch.equal(got[name], tensor) for name, tensor in expected.items())
    back = FSDP2Critic(RankContext(), fsdp2_spec(tmp_path / "megatron/model", **PROGRAM.OPTIONS))
    back.load(tmp_path / "megatron")
    (mine,), (theirs,), (again,) = (train(each, [2]) for each in (critic, other, back))
    assert mine == pytest.approx(theirs, rel=1e-4, abs=1e-6) and again == pytest.approx(theirs, rel=1e-4, abs=1e-6)
    values = critic.values(PROGRAM.make_batch(9))
    torch.testing.assert_close(values, other.values(PROGRAM.make_batch(9)), rtol=1e-4, atol=1e-5)
    assert values.abs().max() > 1e-3


def test_a_value_model_of_trl_is_read(make, megatron_models, tmp_path):
    shutil.copytree(megatron_models / "qwen3-untied", tmp_path / "trl")
    head = {"v_head.summary.weight": torch.linspace(-1, 1, 16)[None], "v_head.summary.bias": torch.tensor([0.5])}
    file = tmp_path / "trl" / "model.safetensors"
    save_file({**load_file(file), **head}, file, metadata={"format": "pt"})
    other = FSDP2Critic(RankContext(), fsdp2_spec(tmp_path / "trl", **PROGRAM.OPTIONS))
    values, batch = make(tmp_path / "trl").values(PROGRAM.make_batch(9)), PROGRAM.make_batch(9)
    torch.testing.assert_close(values, other.values(batch), rtol=1e-4, atol=1e-5)
    assert values.abs().max() > 0.1


@pytest.mark.parametrize("distributed", [True, False])
def test_bf16_keeps_the_head_in_float32(make, tmp_path, distributed):
    critic = make("qwen2-tied", dtype="bf16", use_distributed_optimizer=distributed)
    train(critic, range(3))
    save(critic, tmp_path)
    head = load_file(tmp_path / "model" / VALUE_HEAD)
    assert any(not torch.equal(tensor, tensor.bfloat16().float()) for tensor in head.values())
    again = make("qwen2-tied", dtype="bf16", use_distributed_optimizer=distributed)
    again.load(tmp_path)
    assert train(again, [3]) == train(critic, [3])
    assert torch.equal(again.values(PROGRAM.make_batch(9)), critic.values(PROGRAM.make_batch(9)))
