"""Attention over the ranks that divide a sequence, rank by rank in one process."""

import pytest
import torch
from torch import nn
from torch.nn.attention.bias import CausalBias
from torch.overrides import TorchFunctionMode

pytest.importorskip("megatron.core", reason="needs requirements/megatron.txt")

from roll.strategies.train.megatron import context

RANKS, LENGTH = 2, 24


class Rank:
    def __init__(self, rank):
        self._rank = rank

    def rank(self):
        return self._rank

    def size(self):
        return RANKS


class Calls(TorchFunctionMode):
    """Of attention: the kind of mask, whether there are as many key heads as query heads, and the options."""

    def __init__(self):
        super().__init__()
        self.made = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is nn.functional.scaled_dot_product_attention:
            query, key, value, mask = args
            self.made.append((type(mask), query.shape[1] == key.shape[1] == value.shape[1], kwargs or {}))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("heads", [2, 6])
def test_each_rank_computes_its_part_of_causal_attention_by_a_fused_kernel(monkeypatch, heads):
    """A mask of booleans, or grouped queries beside a mask, would leave the kernel that writes all scores down."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(3, count, LENGTH, 8, generator=generator, dtype=torch.float64) for count in (heads, 2, 2))
    whole = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=heads != 2)
    columns = [context.own_columns(LENGTH, Rank(rank), torch.device("cpu")) for rank in range(RANKS)]
    calls = Calls()
    for rank, own in enumerate(columns):
        said = iter([torch.cat([x.permute(2, 0, 1, 3)[of] for of in columns]) for x in (key, value)])
        monkeypatch.setattr(context, "gather_from_sequence_parallel_region", lambda _, group, said=said: next(said))
        with calls:
            out = context.attention_over_ranks(query[:, :, own], key[:, :, own], value[:, :, own], Rank(rank))
        torch.testing.assert_close(out, whole[:, :, own], rtol=1e-12, atol=1e-12)
    assert calls.made == [(CausalBias, True, {})] * 2 * RANKS
