"""The gradient of LoRA's factors, by autograd through W + (alpha / r)·B·A with plain tensors: none of peft's layers."""

import math

import pytest
import torch
from train_specs import fsdp2_spec
from transformers import AutoModelForCausalLM

from roll.core.algorithms.loss import compute_loss
from roll.core.workers.train_interface import RankContext
from roll.strategies.train.fsdp2 import FSDP2Strategy


@pytest.fixture
def strategy(model_path, rank_program):
    options = {**rank_program.OPTIONS, **rank_program.LORA, "max_grad_norm": math.inf}
    made = FSDP2Strategy(RankContext(), fsdp2_spec(model_path, **options))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in made._model.named_parameters():
            if ".lora_B." in name:  # at 0, where it starts, the gradient of A would be 0
                parameter.normal_(0, 0.05, generator=generator)
    return made


def test_gradient_is_that_of_the_low_rank_product(strategy, model_path, rank_program, monkeypatch):
    factors = {n: p.detach().clone().requires_grad_() for n, p in strategy._model.named_parameters() if ".lora_" in n}
    scale = rank_program.LORA["lora_alpha"] / rank_program.LORA["lora_rank"]
    model = AutoModelForCausalLM.from_pretrained(model_path)
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    for name, a in factors.items():
        if ".lora_A." in name:
            path = name.removesuffix(".lora_A.default.weight")
            weights[f"{path}.weight"] = weights[f"{path}.weight"] + scale * factors[f"{path}.lora_B.default.weight"] @ a
    batch, loss = rank_program.make_batch(0), rank_program.LOSS
    padded, totals = batch.padded(), rank_program.totals(batch)
    logits = torch.func.functional_call(model, weights, (padded.tokens, padded.attention_mask.long())).logits
    log_p = torch.log_softmax(logits[:, :-1] / batch.temperatures[0], -1)
    zero = torch.zeros(len(batch), 1)
    logprobs = torch.cat([zero, log_p.gather(2, padded.tokens[:, 1:, None]).squeeze(2)], 1)
    entropy = torch.cat([zero, -(log_p.exp() * log_p).sum(-1)], 1)
    compute_loss(logprobs, entropy, padded, loss, totals.tokens, totals.sequences)[0].backward()

    got, names = {}, {id(p): name for name, p in strategy._model.named_parameters()}

    def capture(optimizer, *_):
        got.update({names[id(p)]: p.grad.clone() for group in optimizer.param_groups for p in group["params"]})

    monkeypatch.setattr(torch.optim.AdamW, "step", capture)
    metrics = strategy.train_step(batch, loss, totals)
    assert got.keys() == factors.keys()
    norm = float(torch.stack([factor.grad.norm() for factor in factors.values()]).norm())
    assert metrics["actor_train/grad_norm"] == pytest.approx(norm, rel=1e-5)
    for name, factor in factors.items():
        torch.testing.assert_close(got[name], factor.grad, rtol=1e-5, atol=1e-6 * norm, msg=name)
