"""`head_dtype: fp32` in a run: both sides in bfloat16, and a model for which it is refused before a worker starts."""

import asyncio

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Gemma2Config, Gemma2ForCausalLM

from roll.core.configs.problems import ConfigError
from roll.platform.local_backend import LocalBackend
from roll.prepare.rlvr_run import RLVRRun, prepare

BF16 = {f"{role}.model_args.dtype": "bf16" for role in ("actor_train", "actor_infer")}
FP32 = {f"{role}.model_args.head_dtype": "fp32" for role in ("actor_train", "actor_infer")}


def test_a_run_trains_with_it_on_both_sides(lab, make_config):
    prepared = prepare(make_config(BF16 | FP32), lab.inventory)
    assert not [line for line in prepared.warnings if "head_dtype" in line]
    summary = asyncio.run(RLVRRun(prepared.config, prepared, lab.inventory, LocalBackend()).run())
    assert summary["status"] == "finished" and summary["steps"] == 2


def test_what_it_does_not_do_is_told_at_the_start(lab, make_config):
    config = make_config(BF16 | {"actor_train.model_args.head_dtype": "fp32"})
    (told,) = [line for line in prepare(config, lab.inventory).warnings if "head_dtype" in line]
    assert "actor_infer.model_args.head_dtype = None: actor_train's is fp32" in told


def test_a_model_that_changes_its_logits_is_refused_by_the_key(lab, make_config, tmp_path):
    config = make_config()
    vocabulary = AutoModelForCausalLM.from_pretrained(config.pretrain).config.vocab_size
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 8}
    torch.manual_seed(0)
    gemma = Gemma2ForCausalLM(Gemma2Config(vocab_size=vocabulary, num_key_value_heads=1, **sizes))
    gemma.save_pretrained(tmp_path / "gemma")
    AutoTokenizer.from_pretrained(config.pretrain).save_pretrained(tmp_path / "gemma")
    with pytest.raises(ConfigError) as refused:
        prepare(make_config(BF16 | FP32, pretrain=str(tmp_path / "gemma")), lab.inventory)
    said = {problem.key: str(problem) for problem in refused.value.problems}
    assert "final_logit_softcapping" in said["actor_train.model_args.head_dtype"]
    assert "actor_infer.model_args.head_dtype" not in said
