"""What two ranks of a trainer take of the host's memory while they load a model and a checkpoint."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import numbered_tokenizer, tiny_qwen2
from train_specs import train_spec
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from roll.core.workers.train_backends import make_train_strategy
from roll.core.workers.train_interface import RankContext
from roll.platform.ports import free_port
from roll.strategies.train.checkpoint_files import TrainerState

PROGRAM = Path(__file__).with_name("host_memory_program.py")
SIZES = {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 6, "tie_word_embeddings": False}
MIXTURE = {
    "hidden_size": 512,
    "moe_intermediate_size": 512,
    "num_experts": 16,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
}


def parameters_of(model):
    return sum(p.numel() for p in model.parameters())


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A model in bf16, a checkpoint of it, two mixtures of experts in bf16; parameters of the model and of the larger mixture."""
    folder = tmp_path_factory.mktemp("memory")
    model = tiny_qwen2(12_000, num_attention_heads=12, num_key_value_heads=2, **SIZES)
    tokenizer = numbered_tokenizer(37)
    for target, dtype in ((folder / "checkpoint" / "model", torch.float32), (folder / "model", torch.bfloat16)):
        model.to(dtype).save_pretrained(target)
        tokenizer.save_pretrained(target)
    moments = {f"{n}.{moment}": torch.zeros(p.shape) for n, p in model.named_parameters() for moment in ("exp_avg", "exp_avg_sq")}
    save_file(moments, folder / "checkpoint" / "optimizer.safetensors")
    TrainerState(optimizer_step=3).write(folder / "checkpoint" / "trainer.json")
    for target, layers in ((folder / "tiny", 1), (folder / "mixture", 4)):
        mixture = Qwen3MoeForCausalLM(Qwen3MoeConfig(vocab_size=37, num_hidden_layers=layers, **MIXTURE)).bfloat16()
        mixture.save_pretrained(target)
        tokenizer.save_pretrained(target)
    return folder, parameters_of(model), parameters_of(mixture)


def test_a_rank_holds_its_share_and_reads_little_more(folders, programs, tmp_path):
    """Bytes a parameter of the whole model. A rank's share of two is 2 for masters and 4 for moments; of the files it reads half,
    1 of the model, and of a checkpoint or of experts one tensor at a time. A snapshot is 6, and what gathers a tensor 2 to 3."""
    folder, parameters, in_mixture = folders
    ports = [free_port() for _ in range(4)]
    programs.run(PROGRAM, *([folder, tmp_path, rank, *ports] for rank in range(2)))
    for rank in range(2):
        gained = json.loads((tmp_path / f"{rank}.json").read_text())
        assert gained["started"] < 4.5 * parameters
        assert gained["resumed"] < 6 * parameters
        assert gained["snapshot"] < 11 * parameters
        mixture = json.loads((tmp_path / f"mixture-{rank}.json").read_text())
        assert mixture["started"] < 3.2 * in_mixture
    written = [file for rank in range(2) for file in (tmp_path / "saved").rglob(f"*-0000{rank}*.safetensors")]
    sizes = [file.stat().st_size for file in written]
    assert len(sizes) == 4 and sum(sizes) >= 12 * parameters and max(sizes) < 5.5 * parameters
    stored = load_file(folder / "mixture" / "model.safetensors")
    masters = {name: t for file in (tmp_path / "mixture" / "model").glob("*.safetensors") for name, t in load_file(file).items()}
    assert masters.keys() == stored.keys() and all(torch.equal(masters[name], stored[name].float()) for name in stored)


def test_stage_3_divides_parameter_by_parameter(model_path, monkeypatch):
    """A model that DeepSpeed gets whole would be on each device whole first, in float32."""
    deepspeed = pytest.importorskip("deepspeed", reason="needs requirements/deepspeed.txt")
    divide, start = deepspeed.zero.Init._convert_to_zero_parameters, deepspeed.initialize
    divided, undivided = [], []

    def note(division, parameters):
        parameters = list(parameters)
        divided.extend(parameters)
        undivided.append(len(parameters))
        divide(division, parameters)

    def begin(model, **options):
        assert len(divided) == len(list(model.parameters())) and all(hasattr(p, "ds_id") for p in model.parameters())
        return start(model=model, **options)

    monkeypatch.setattr(deepspeed.zero.Init, "_convert_to_zero_parameters", note)
    monkeypatch.setattr(deepspeed, "initialize", begin)
    strategy = make_train_strategy(RankContext(), train_spec("deepspeed_train", model_path, zero={"stage": 3}))
    strategy.close()
    assert max(undivided) == 1
