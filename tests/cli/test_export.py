"""`roll export`: what it writes is the checkpoint's model, whole or not at all."""

import json
import shutil

import pytest
import torch
from saving import save
from tiny_models import numbered_tokenizer, tiny_qwen2
from train_specs import fsdp2_spec
from transformers import AutoModelForCausalLM, AutoTokenizer

from roll.cli.export import main
from roll.core.record.checkpoint import TRAINER, CheckpointStore
from roll.core.workers.train_backends import make_train_strategy
from roll.core.workers.train_interface import RankContext


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Of a LoRA trainer whose adapters are not zero."""
    folder = tmp_path_factory.mktemp("run")
    tiny_qwen2(11, num_hidden_layers=1).save_pretrained(folder / "model")
    numbered_tokenizer(11).save_pretrained(folder / "model")
    trainer = make_train_strategy(RankContext(), fsdp2_spec(folder / "model", lora_target="q_proj,v_proj"))
    with torch.no_grad():
        for name, parameter in trainer._model.named_parameters():
            if ".lora_B." in name:
                parameter.normal_()
    store = CheckpointStore(folder / "checkpoints")
    save(trainer, store.begin(3) / TRAINER)
    return store.commit(3, {}, [])


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_folder_is_the_merged_model(checkpoint, tmp_path, capsys, dtype):
    output = tmp_path / "a" / "model"
    given = ["--checkpoint", str(checkpoint), "--output", str(output)] + ([] if dtype == "fp32" else ["--dtype", dtype])
    assert main([*given, "--json"] if dtype == "bf16" else given) == 0
    expected = AutoModelForCausalLM.from_pretrained(checkpoint / "trainer" / "model").state_dict()
    found = AutoModelForCausalLM.from_pretrained(output)
    wanted = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    assert found.dtype == wanted
    assert all(found.state_dict()[name].equal(tensor.to(wanted)) for name, tensor in expected.items())
    start = AutoModelForCausalLM.from_pretrained(checkpoint.parents[1] / "model").state_dict()
    adapted = {name for name, tensor in expected.items() if not tensor.equal(start[name])}
    assert adapted == {f"model.layers.0.self_attn.{layer}_proj.weight" for layer in "qv"}
    assert AutoTokenizer.from_pretrained(output).eos_token == "t1"
    told, parameters = capsys.readouterr().out, sum(p.numel() for p in found.parameters())
    if dtype == "bf16":
        assert json.loads(told) == {"output": str(output), "parameters": parameters, "dtype": dtype}
    else:
        assert f"{parameters:,} parameters in {dtype}" in told


def test_of_a_run_the_newest_complete_checkpoint_is_taken(checkpoint, tmp_path):
    """By the folder that each run prints, or that of its checkpoints."""
    run = tmp_path / "run"
    shutil.copytree(checkpoint, run / "checkpoints/step-3")
    (run / "checkpoints/step-4").mkdir()
    (run / "checkpoints/step-4/manifest.json").write_text("{}")
    for name, named in {"a": run, "b": run / "checkpoints", "c": run / "checkpoints/step-3"}.items():
        assert main(["--checkpoint", str(named), "--output", str(tmp_path / name)]) == 0
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in "abc"]
    assert weights[0] == weights[1] == weights[2]


def test_a_run_without_a_complete_checkpoint_has_nothing_to_export(tmp_path, capsys):
    (tmp_path / "run/checkpoints/step-1").mkdir(parents=True)
    assert main(["--checkpoint", str(tmp_path / "run"), "--output", str(tmp_path / "a")]) == 2
    assert "step-1" in capsys.readouterr().err and not (tmp_path / "a").exists()


def test_bad_input_is_one_line_and_writes_nothing(checkpoint, tmp_path, capsys):
    def refused(told, *given):
        assert main(list(given)) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ") and told in line

    good = ("--checkpoint", str(checkpoint))
    refused("--output", *good)
    refused("there is no such folder", "--checkpoint", str(tmp_path / "step-9"), "--output", str(tmp_path / "out"))
    broken = tmp_path / "step-3"
    shutil.copytree(checkpoint, broken)
    weights = broken / "trainer" / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    refused("not what was saved", "--checkpoint", str(broken), "--output", str(tmp_path / "out"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    refused("not empty", *good, "--output", str(tmp_path / "full"))
    (tmp_path / "file").write_text("mine")
    refused("cannot be written", *good, "--output", str(tmp_path / "file" / "out"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "full", "step-3"]
    assert json.loads((checkpoint / "manifest.json").read_text())["step"] == 3
