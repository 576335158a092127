"""A causal LM whose head says log-probs: what it costs, and the models whose head is left as it is."""

import dataclasses

import pytest
import torch
from alive import Alive
from tiny_models import numbered_tokenizer, tiny_qwen2
from torch import Tensor
from train_specs import fsdp2_spec, train_spec
from transformers import AutoModelForCausalLM, Gemma2Config, Gemma2ForCausalLM

from roll.core.data.token_batch import Padded
from roll.core.workers.train_backends import make_train_strategy
from roll.core.workers.train_interface import RankContext
from roll.plan.memory import HEAD_LOGITS
from roll.strategies.train.logprobs import EntropyMode, row_logprobs

WIDE = 30_000


def padded_logprobs(logits: Tensor, padded: Padded, entropy: EntropyMode = "none") -> tuple[Tensor, Tensor | None]:
    """From whole logits, as plainly as can be: [B, T] each, of the trained tokens, from logits [B, T, V]; 0 elsewhere."""
    rows, predictors = padded.loss_mask[:, 1:].nonzero(as_tuple=True)
    targets = padded.tokens[rows, predictors + 1]
    values = row_logprobs(logits[rows, predictors], targets, padded.temperatures[rows], entropy)
    placed = [None if v is None else v.new_zeros(padded.tokens.shape).index_put((rows, predictors + 1), v) for v in values]
    return placed[0], placed[1]


@pytest.fixture(scope="module")
def wide_model(tmp_path_factory):
    """Tiny but for its vocabulary."""
    folder = tmp_path_factory.mktemp("wide")
    tiny_qwen2(WIDE).save_pretrained(folder)
    numbered_tokenizer(37).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("strategy", ["fsdp2_train", "deepspeed_train"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_no_tensor_is_as_large_as_the_logits(wide_model, rank_program, strategy, dtype, monkeypatch):
    """Neither in a step with an entropy bonus nor in log-probs without gradients."""
    monkeypatch.setitem(HEAD_LOGITS, False, 1)
    if strategy == "deepspeed_train":
        pytest.importorskip("deepspeed", reason="needs requirements/deepspeed.txt")
    trainer = make_train_strategy(RankContext(), train_spec(strategy, wide_model, **{**rank_program.OPTIONS, "dtype": dtype}))
    batch = rank_program.make_batch(0)
    with Alive() as alive:
        trainer.train_step(batch, rank_program.LOSS, rank_program.totals(batch))
        trainer.log_probs(batch)
    trainer.close()
    hidden = 16
    assert {shape for shape in alive.shapes if shape[-1:] == (WIDE,)} <= {(hidden, WIDE), (WIDE,)}, "the weights, transposed"


def whole_logprobs(model, batch):
    padded = batch.padded()
    with torch.no_grad():
        logits = model(input_ids=padded.tokens, use_cache=False).logits
    return padded.flatten(padded_logprobs(logits, padded)[0])


def test_a_model_that_changes_its_logits_keeps_its_head(tmp_path, rank_program):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 8}
    config = Gemma2Config(vocab_size=37, num_key_value_heads=1, final_logit_softcapping=0.5, initializer_range=0.5, **sizes)
    Gemma2ForCausalLM(config).save_pretrained(tmp_path)
    numbered_tokenizer(37).save_pretrained(tmp_path)
    strategy = make_train_strategy(RankContext(), fsdp2_spec(tmp_path, **rank_program.OPTIONS))
    batch = rank_program.make_batch(0)
    expected = whole_logprobs(AutoModelForCausalLM.from_pretrained(tmp_path).eval(), batch)
    torch.testing.assert_close(strategy.log_probs(batch), expected, rtol=1e-5, atol=1e-5)


def test_an_adapted_head_computes_its_logits_whole(family_models, rank_program):
    lora = {"lora_target": "lm_head,q_proj", "lora_rank": 2}
    strategy = make_train_strategy(RankContext(), fsdp2_spec(family_models / "qwen2-untied", **rank_program.OPTIONS, **lora))
    batch = rank_program.make_batch(0)
    strategy.train_step(batch, rank_program.LOSS, rank_program.totals(batch))
    expected = whole_logprobs(strategy._model, batch)
    torch.testing.assert_close(strategy.log_probs(batch), expected, rtol=1e-5, atol=1e-5)


def test_logits_changed_behind_the_configurations_back_are_refused(model_path, rank_program, monkeypatch):
    strategy = make_train_strategy(RankContext(), fsdp2_spec(model_path, **rank_program.OPTIONS))
    plain = type(strategy._model).forward

    def doubled(model, **inputs):
        said = plain(model, **inputs)
        return dataclasses.replace(said, logits=2 * said.logits)

    monkeypatch.setattr(type(strategy._model), "forward", doubled)
    with pytest.raises(ValueError, match="qwen2 change the logits of their head"):
        strategy.log_probs(rank_program.make_batch(0))
