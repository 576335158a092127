"""Tiny random models, a byte-level tokenizer, and the ground truth they are compared with: a plain full forward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from roll.core.weights.bucket import Bucket, WeightManifest, manifest_of
from roll.core.workers.infer_interface import GenerateRequest, GenerateResult, SamplingParams
from roll.strategies.infer.hf.slot_engine import SlotEngine
from roll.transports.buckets import make_buckets

ARCHITECTURES: dict[str, tuple[Any, Any]] = {
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "llama": (LlamaConfig, LlamaForCausalLM),
}


def make_model(architecture: str = "qwen2", seed: int = 0, tied: bool = True, head_dim: int = 8) -> Any:
    torch.manual_seed(seed)
    config_class, model_class = ARCHITECTURES[architecture]
    config = config_class(
        vocab_size=256,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=head_dim,
        max_position_embeddings=512,
        initializer_range=0.3,
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation="sdpa",
    )
    return model_class(config).eval()


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Token i is one byte, so characters beyond ASCII take several tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=core)


def make_engine(model: Any, *, slots: int = 4, max_length: int = 256, **options: Any) -> SlotEngine:
    return SlotEngine(model, options.pop("tokenizer", None), max_running_requests=slots, max_length=max_length, seed=7, **options)


def make_request(
    name: str, prompt: Sequence[int], partial: Sequence[int] = (), priority: int = 1, **params: Any
) -> GenerateRequest:
    return GenerateRequest(name, tuple(prompt), SamplingParams(**params), tuple(partial), priority)


def run_all(
    engine: SlotEngine, requests: Sequence[GenerateRequest], at_border: Callable[[int], None] | None = None
) -> dict[str, GenerateResult]:
    """Steps the engine until idle; `at_border(i)` is called before step i."""
    for request in requests:
        engine.submit(request)
    results: dict[str, GenerateResult] = {}
    step = 0
    while not engine.idle:
        if at_border is not None:
            at_border(step)
        results |= {result.request_id: result for result in engine.step()}
        step += 1
    return results


def true_logprobs(model: Any, prompt: Sequence[int], response: Sequence[int], temperature: float = 1.0) -> torch.Tensor:
    """[len(response)], from one forward over the whole sequence, without any cache."""
    ids = torch.tensor([[*prompt, *response]])
    with torch.no_grad():
        logits = model(ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float() / temperature
    return logits.log_softmax(-1).gather(1, torch.tensor(response)[:, None])[:, 0]


def weights_of(model: Any, version: int, bucket_bytes: int = 6000) -> tuple[list[Bucket], WeightManifest]:
    """As a trainer exports them: each parameter once."""
    buckets = list(make_buckets(model.named_parameters(), bucket_bytes))
    return buckets, manifest_of(version, buckets)


def gathering(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float | None,
    enable_gqa: bool,
    seqused_k: torch.Tensor,
    block_table: torch.Tensor,
    num_splits: int,
) -> torch.Tensor:
    """`torch.nn.attention.varlen.varlen_attn` for one query a row, on a CPU: gathers each row's blocks."""
    (rows, heads, _), (pages, size, kv_heads, _) = query.shape, key.shape
    assert value.shape[:3] == (pages, size, kv_heads) and heads % kv_heads == 0 and enable_gqa and num_splits == 1
    assert {each.dtype for each in (cu_seq_q, cu_seq_k, seqused_k, block_table)} == {torch.int32}
    assert cu_seq_q.shape == cu_seq_k.shape == (rows + 1,) and seqused_k.shape == (rows,) and max_q == 1
    assert len(block_table) == rows and block_table.is_contiguous() and max_k == block_table.shape[1] * size
    keys, values = (states[block_table.long()].flatten(1, 2).transpose(1, 2) for states in (key, value))
    counts = (torch.arange(max_k) < seqused_k[:, None])[:, None, None]
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(query[:, :, None], keys, values, attn_mask=counts, scale=scale, enable_gqa=True)[:, :, 0]


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def lab() -> Any:
    """The functions above, for test modules (which cannot import one another)."""

    class Lab:
        model = staticmethod(make_model)
        tokenizer = staticmethod(make_tokenizer)
        engine = staticmethod(make_engine)
        request = staticmethod(make_request)
        run_all = staticmethod(run_all)
        true_logprobs = staticmethod(true_logprobs)
        weights = staticmethod(weights_of)
        gathering = staticmethod(gathering)

    return Lab
