"""Each engine against the trainer: log-probs of what it says, stop strings, conversations of several turns, weight updates.

float32 differs by the order of additions: up to 1e-3 a token over 30 layers, where tiny models stay below 1e-4.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from roll.core.algorithms.loss import LossSpec
from roll.core.weights.bucket import manifest_of
from roll.core.workers.train_interface import BatchTotals

FP32 = 1e-3


def largest_difference(trainer: Any, batch: Any) -> float:
    found = float((trainer.log_probs(batch) - batch.behaviour_logprobs)[batch.loss_mask].abs().max())
    print(f"largest difference of {int(batch.loss_mask.sum())} tokens: {found:.1e}")  # pytest -rP shows it
    return found


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_log_probs_are_the_trainers(served, trainer, tokenizer, conversations, lab, temperature):
    """More conversations than slots, of very different lengths, together."""
    prompts = {name: lab.prompt(tokenizer, messages) for name, messages in conversations.items()}
    requests = [
        lab.request(f"{name}/{i}/{temperature}", prompt, temperature=temperature, max_new_tokens=24)
        for name, prompt in prompts.items()
        for i in range(2)
    ]
    results = served.generate(requests)
    assert max(map(len, prompts.values())) > 900 and min(map(len, prompts.values())) < 60
    for result in results:
        ended = result.token_ids[-1] == 2
        assert result.finish_reason == ("stop" if ended else "length") and (ended or len(result.token_ids) == 24)
        assert 2 not in result.token_ids[:-1]
    assert largest_difference(trainer, lab.batch(requests, results)) <= FP32


def test_a_stop_string_ends_a_response_where_its_tokens_first_spell_it(served, trainer, tokenizer, lab):
    """Each stop string is taken from what the model says unasked: over the border of two tokens, and within one."""
    prompt = lab.prompt(tokenizer, [{"role": "user", "content": "Count from one to twenty, in words, separated by commas."}])
    (free,) = served.generate([lab.request("free", prompt, temperature=0.0, max_new_tokens=40)])
    said = tokenizer.decode(free.token_ids)
    first, second = (tokenizer.decode(free.token_ids[i : i + 2]) for i in (6, 12))
    stops = [first.strip() or first, second[-3:]]
    for included in (True, False):
        requests = [
            lab.request(
                f"{i}/{included}",
                prompt,
                temperature=0.0,
                max_new_tokens=40,
                stop_strings=(stop,),
                include_stop_str_in_output=included,
            )
            for i, stop in enumerate(stops)
        ]
        results = served.generate(requests)
        for stop, result in zip(stops, results, strict=True):
            assert result.finish_reason == "stop" and result.token_ids == free.token_ids[: len(result.token_ids)]
            assert stop in tokenizer.decode(result.token_ids) and stop not in tokenizer.decode(result.token_ids[:-1])
            assert result.text == said[: said.index(stop)] + (stop if included else "")
        assert largest_difference(trainer, lab.batch(requests, results)) <= FP32


def test_a_conversation_goes_on_from_its_own_tokens(served, trainer, tokenizer, lab):
    """Three turns; what was said stays as it was sampled, and the log-probs of a later turn do not depend on what the engine has
    kept of the earlier ones."""
    history = lab.prompt(tokenizer, [{"role": "user", "content": "Name a fruit."}])
    requests, results = [], []
    for turn, question in enumerate(["Another one.", "Which of them is sweeter?", None]):
        requests.append(lab.request(f"turn {turn}", history, temperature=1.0, max_new_tokens=12))
        results += served.generate(requests[-1:])
        if question is not None:
            end = [] if results[-1].token_ids[-1] == 2 else [2]
            text = f"\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
            history = (*history, *results[-1].token_ids, *end, *tokenizer(text)["input_ids"])
    assert len(requests[-1].prompt_ids) > len(requests[0].prompt_ids) + 40
    assert largest_difference(trainer, lab.batch(requests, results)) <= FP32


def test_the_engine_takes_the_trainers_weights(served, trainer, tokenizer, conversations, lab):
    """The last test of an engine and of the trainer: both have other weights from here on, and agree upon them."""
    requests = [
        lab.request(f"{name}/old", lab.prompt(tokenizer, messages), temperature=1.0, max_new_tokens=16)
        for name, messages in conversations.items()
        if name != "a long prompt"
    ]
    batch = lab.batch(requests, served.generate(requests))
    batch = batch.with_(advantages=batch.loss_mask.float())
    before = trainer.log_probs(batch)
    trainer.train_step(batch, LossSpec(pg_variant="vanilla"), BatchTotals(int(batch.loss_mask.sum()), len(batch)))
    assert float((trainer.log_probs(batch) - before)[batch.loss_mask].mean()) > 0.05
    version = served.run(served.engine.stats()).version + 1

    async def update() -> None:
        buckets = []
        for bucket in trainer.export_weights(64 << 20):
            buckets.append(bucket)
            await served.engine.receive_bucket(version, bucket)
        await served.engine.activate_weights(manifest_of(version, buckets), "interrupt")

    served.run(update())
    requests = [lab.request(f"{one.request_id}, new", one.prompt_ids, temperature=1.0, max_new_tokens=16) for one in requests]
    results = served.generate(requests)
    assert {span.version for result in results for span in result.versions} == {version}
    assert largest_difference(trainer, lab.batch(requests, results)) <= FP32
    assert torch.isfinite(batch.behaviour_logprobs).all()
