"""`head_dtype: fp32` of hf_infer: exact logits of bfloat16 weights, of every version, and log-probs as the trainer says them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import numbered_tokenizer, tiny_qwen2
from train_specs import fsdp2_spec

from roll.core.data.sample import Prompt, Sample, SampleGroup
from roll.core.trainer.batch import token_batch
from roll.core.workers.train_interface import RankContext
from roll.strategies.model_folder import load_model
from roll.strategies.train.fsdp2 import FSDP2Strategy

EXACT = 1e-5
"""Nats; rounded to bfloat16, the logits of these models are off by up to 0.03."""


def watched(engine: Any) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """The hidden states, the weights of that moment and the logits of each forward from now on."""
    seen, slot_model = [], engine._model
    logits_of, layer = slot_model._logits, slot_model.model.get_output_embeddings()

    def recorded(hidden: torch.Tensor) -> torch.Tensor:
        logits = logits_of(hidden)
        seen.append((hidden.clone(), layer.weight.detach().clone(), logits.clone()))
        return logits

    slot_model._logits = recorded
    return seen


def scaled(lab: Any, seed: int, tied: bool) -> Any:
    model = lab.model(seed=seed, tied=tied)
    model.get_output_embeddings().weight.data *= 3.0
    return model.bfloat16()


@pytest.mark.parametrize("tied", [True, False])
def test_logits_are_exact_of_each_version_and_after_a_sleep(lab: Any, tied: bool) -> None:
    """An engine on a CPU keeps a float32 copy of the layer: one that stayed behind would be off by whole nats."""
    engine = lab.engine(scaled(lab, 0, tied), fp32_head=True)
    seen = watched(engine)
    requests = [lab.request(str(i), [i, 7, 3], max_new_tokens=30, seed=i) for i in range(3)]

    def at_border(step: int) -> None:
        if step == 10:
            buckets, manifest = lab.weights(scaled(lab, 1, tied), 1)
            for bucket in buckets:
                engine.shadow.receive(1, bucket)
            engine.activate(manifest, "in_flight")

    results = lab.run_all(engine, requests, at_border)
    assert {span.version for span in results["0"].versions} == {0, 1}
    engine.sleep()
    engine.wake()
    lab.run_all(engine, [lab.request("late", [1, 2], max_new_tokens=3)])
    assert len(seen) > 30
    for hidden, weight, logits in seen:
        assert logits.dtype == torch.float32
        assert float((logits.double() - hidden.double() @ weight.double().t()).abs().max()) < EXACT


def test_a_bias_counts(lab: Any) -> None:
    model = scaled(lab, 0, tied=False)
    layer = model.get_output_embeddings()
    layer.bias = torch.nn.Parameter(torch.linspace(-3, 3, 256).bfloat16())
    engine = lab.engine(model, fp32_head=True)
    seen = watched(engine)
    lab.run_all(engine, [lab.request("a", [1, 2], max_new_tokens=3)])
    for hidden, weight, logits in seen:
        expected = hidden.double() @ weight.double().t() + layer.bias.double()
        assert float((logits.double() - expected).abs().max()) < EXACT


def test_without_narrow_weights_nothing_is_copied(lab: Any) -> None:
    engine = lab.engine(lab.model(), fp32_head=True)
    assert engine._model._wide_head is None


def one_token_at_a_time(folder: Path) -> None:
    """A model whose attention says nothing, so that the hidden states of engine and trainer are equal but for the order of
    additions in a layer: what differs is the head."""
    model = tiny_qwen2(256, hidden_size=64, intermediate_size=32, initializer_range=0.2)
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.data.zero_()
        layer.mlp.down_proj.weight.data.zero_()
    model.model.norm.weight.data[::2] *= -1  # a token is not the most probable one after itself
    model.model.embed_tokens.weight.data *= 2.0
    model.save_pretrained(folder)
    numbered_tokenizer(256).save_pretrained(folder)


def test_log_probs_are_the_trainers_with_the_same_head_and_not_with_another(lab: Any, tmp_path: Path) -> None:
    one_token_at_a_time(tmp_path)
    found = {}
    for engine_head in (False, True):
        engine = lab.engine(load_model(tmp_path, torch.bfloat16, "sdpa"), fp32_head=engine_head)
        requests = [lab.request(str(i), [i, 5], max_new_tokens=40, temperature=0.8, seed=i) for i in range(8)]
        results = lab.run_all(engine, requests)
        groups = [SampleGroup(i, 0, Prompt(str(i), [i, 5], "", "", "", "")) for i in range(8)]
        for group in groups:
            one = results[str(group.group_id)]
            group.samples.append(Sample(group.prompt, 0, one.token_ids, one.logprobs, one.versions, "length", reward=0.0))
        batch = token_batch(groups, temperature=0.8)
        for head_dtype in (None, "fp32"):
            options = {"dtype": "bf16", "head_dtype": head_dtype, "trainable": False}
            trainer = FSDP2Strategy(RankContext(), fsdp2_spec(tmp_path, **options))
            distance = (trainer.log_probs(batch) - batch.behaviour_logprobs)[batch.loss_mask].abs()
            found[engine_head, head_dtype is not None] = float(distance.max())
            trainer.close()
    assert found[True, True] < EXACT
    assert found[True, False] > 1e-2 and found[False, True] > 1e-2
