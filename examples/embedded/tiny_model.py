"""The tiny models of the embedded tasks: Qwen2's architecture from nothing, taught on one thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

PAD, EOS = 0, 1
SPECIAL = ["<pad>", "<eos>", "<unk>"]
"""How every vocabulary begins."""


class Shape(Protocol):
    """What a maker's settings say about the model."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def layers(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...


def tiny_qwen2(shape: Shape, vocabulary: int, *, context: int, **more: Any) -> Qwen2ForCausalLM:
    """`vocabulary`: tokens. `context`: most tokens of a sequence. `more`: other keys of Qwen2Config."""
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=context,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=EOS,
        pad_token_id=PAD,
        **more,
    )
    return Qwen2ForCausalLM(config)


def teach(model: Qwen2ForCausalLM, steps: int, learning_rate: float, loss: Callable[[int], Tensor]) -> None:
    """`steps` steps of AdamW on `loss(step)`, warmed up over 50 of them and then falling in a line."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min((s + 1) / 50, 1.0) * max(1 - s / steps, 0.05))
    model.train()
    for step in range(steps):
        value = loss(step)
        optimizer.zero_grad()
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.eval()


@contextmanager
def reproducible(seed: int) -> Iterator[None]:
    """One thread, and torch's random state from `seed`: then the same settings give the same bytes. The caller's random state and
    thread count are left as they were."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(threads)
