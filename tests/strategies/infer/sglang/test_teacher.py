"""A teacher that SGLang serves, against a plain float32 forward pass of transformers, within 1e-5: another order of additions."""

import asyncio
import base64
import os

import numpy as np
import pytest
import torch
from tiny_models import FOR_VLLM, numbered_tokenizer, tiny_qwen2

from roll.strategies.infer.sglang.arguments import teaching_arguments
from roll.strategies.infer.sglang.teacher import SGLangTeacher, chosen

PYTHON = os.environ.get("SGLANG_PYTHON")
VOCABULARY, TOP, LONGEST, EXACT = 70, 75, 40, 1e-5


def meta_of(rows, values):
    ids, logprobs = np.array(rows, np.int32), np.array(values, np.float32)
    packed = {
        f"input_top_logprobs_{name}_flat_b64": base64.b64encode(each.tobytes()).decode()
        for name, each in (("idx", ids), ("val", logprobs))
    }
    return packed | {"input_top_logprobs_shape": list(ids.shape), "input_top_logprobs_null_prefix": 1}


def test_the_most_probable_tokens_of_a_place_are_those_that_were_said_of_it():
    """About the tokens from 4 on: nothing of token 4 itself, two of 5, 6 and 7. A third of each is asked for."""
    meta = meta_of([[10, 11], [20, 21], [30, 31]], [[-0.1, -1.0], [-0.2, -2.0], [-0.3, -3.0]])
    ids, logprobs = chosen(meta, 4, [5, 7], 2, 3)
    assert ids.tolist() == [[10, 11, 0], [30, 31, 0]]
    np.testing.assert_allclose(logprobs, [[-0.1, -1.0, -np.inf], [-0.3, -3.0, -np.inf]], rtol=1e-6)
    assert [each.shape for each in chosen({}, 0, [5, 7], 0, 0)] == [(2, 0), (2, 0)]


def test_a_server_on_cpus_leaves_no_memory_for_what_a_gpu_would_need():
    options = {"max_tokens": 16384, "dtype": "float32", "seed": 0, "max_length": 40, "max_running_requests": 4}
    arguments = teaching_arguments("folder", {"mem_fraction_static": 0.5}, devices=["cpu"], **options)
    assert (arguments["chunked_prefill_size"], arguments["mem_fraction_static"]) == (16384, 0.5), "the user's goes first"
    assert teaching_arguments("folder", {}, devices=["cpu"], **options)["mem_fraction_static"] == 0.8
    assert "mem_fraction_static" not in teaching_arguments("folder", {}, devices=["cuda:0"], **options)


def test_another_temperature_is_refused():
    with pytest.raises(ValueError, match=r"temperature 1 alone, not of 0\.8"):
        SGLangTeacher("nowhere", temperature=0.8, top=0)


@pytest.mark.sglang
@pytest.mark.timeout(600)
@pytest.mark.skipif(PYTHON is None, reason="needs SGLANG_PYTHON, an interpreter with SGLang (make test-sglang)")
def test_log_probs_are_those_of_the_model(tmp_path):
    """All samples at once, some of which are read in parts, or have a beginning that is cached; texts are as long as the model
    takes. What is asked beyond the vocabulary is impossible."""
    model = tiny_qwen2(VOCABULARY, seed=3, **FOR_VLLM | {"max_position_embeddings": LONGEST})
    model.save_pretrained(tmp_path)
    numbered_tokenizer(VOCABULARY).save_pretrained(tmp_path)
    generator = torch.Generator().manual_seed(0)
    texts = [torch.randint(VOCABULARY, (n,), generator=generator).tolist() for n in (2, 40, 7, 33, 40, 3, 28, 9)]
    texts += [texts[1][:20] + texts[3][:20], texts[1][:20] + texts[4][:19]]
    places = [[p for p in range(max(1, len(text) // 2), len(text)) if p % 5] for text in texts]
    places[0] = []
    options = {"max_running_requests": 4, "max_length": LONGEST, "max_tokens": 24, "dtype": "float32", "seed": 0}

    async def ask(top):
        teacher = SGLangTeacher(str(tmp_path), temperature=1.0, top=top, engine_args={"python": PYTHON}, **options)
        try:
            return await asyncio.gather(*map(teacher.answer, texts, places))
        finally:
            await teacher.close()

    for text, asked, answer in zip(texts, places, asyncio.run(ask(TOP)), strict=True):
        with torch.no_grad():
            true = model(torch.tensor([text])).logits[0].log_softmax(-1)[[p - 1 for p in asked]]
        own = true.gather(1, torch.tensor([[text[p]] for p in asked], dtype=torch.long).reshape(-1, 1))[:, 0]
        torch.testing.assert_close(torch.tensor(answer.logprobs), own, atol=EXACT, rtol=0)
        assert answer.ids.shape == answer.top.shape == (len(asked), TOP) and bool((answer.top[:, VOCABULARY:] == -np.inf).all())
        said = torch.full(true.shape, torch.nan).scatter(
            1, torch.tensor(answer.ids[:, :VOCABULARY]).long(), torch.tensor(answer.top[:, :VOCABULARY])
        )
        torch.testing.assert_close(said, true, atol=EXACT, rtol=0)
