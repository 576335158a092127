"""`TokenBatch`: the samples of a training step as flat per-token tensors, and `Padded`: a micro-batch cut from it.

Nothing is padded to `sequence_length`. Sample `i` occupies the tokens `[offsets[i], offsets[i + 1])` of every flat field.
Per-token values stand at the index of their token: `logprobs[t] = log p(tokens[t] | tokens[<t])`; the first token
of a sample has none, so its `loss_mask` is always False.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from roll.core.data.kept_tokens import KeptSets
from roll.core.data.routes import joined_routes, told_apart, unrouted
from roll.core.data.taught import TopTokens
from roll.core.data.transfer import Move

PER_SAMPLE = ("lengths", "scores", "temperatures", "rollout_tokens", "teacher_weights")
OF_TRAINED = ("kept", "teacher_top")


@dataclass(slots=True)
class _Tensors:
    """Fields of S samples with N tokens in total."""

    lengths: Tensor
    """[S] int64, tokens of each sample (prompt + response)."""
    scores: Tensor
    """[S] float32, raw reward of each sample."""
    temperatures: Tensor
    """[S] float32, sampling temperature: log-probs are of `log_softmax(logits / temperature)`."""
    tokens: Tensor
    """[N] int64."""
    loss_mask: Tensor
    """[N] bool, True on the trained tokens, which the policy sampled itself."""
    behaviour_logprobs: Tensor
    """[N] float32, 0 where the mask is False."""
    advantages: Tensor
    """[N] float32, 0 where the mask is False."""
    proximal_logprobs: Tensor | None = None
    """[N] float32, log-probs recomputed at the start of the step (decoupled losses); None means bypass."""
    reference_logprobs: Tensor | None = None
    """[N] float32, log-probs of the frozen reference policy."""
    teacher_logprobs: Tensor | None = None
    """[N] float32, log-probs of each sample's teacher; NaN where it has none."""
    teacher_weights: Tensor | None = None
    """[S] float32, weight of the teacher in the sample's advantages or loss."""
    teacher_top: TopTokens | None = None
    """The most probable tokens of each sample's teacher; None: the loss has no divergence from it."""
    values: Tensor | None = None
    """[N] float32, the critic's value of the state that each token was taken in, 0 where the mask is False."""
    returns: Tensor | None = None
    """[N] float32, targets of the critic, 0 where the mask is False."""
    fresh_from: Tensor | None = None
    """[N] int64, 1 + the engine for a token sampled with the very weights that the step starts from; 0 for all others."""
    rollout_tokens: Tensor | None = None
    """[S] float32, trained tokens of the whole rollout that each sample belongs to, over all its samples in the step."""
    kept: KeptSets | None = None
    """The set that each trained token was sampled from, and that all its log-probs are taken over; None: the vocabulary."""
    routes: Tensor | None = None
    """[N, layers, k] the experts that the policy computes each token with (see `routes`); None: its routers choose."""


@dataclass(slots=True)
class TokenBatch(_Tensors):
    def __len__(self) -> int:
        return int(self.lengths.numel())

    @property
    def num_tokens(self) -> int:
        return int(self.tokens.numel())

    @property
    def offsets(self) -> Tensor:
        """[S + 1] int64, the first token of each sample, and N."""
        return torch.cat([self.lengths.new_zeros(1), self.lengths.cumsum(0)])

    @property
    def sample_ids(self) -> Tensor:
        """[N] int64, the sample of each token."""
        return torch.repeat_interleave(torch.arange(len(self)), self.lengths)

    @property
    def rows(self) -> list[np.ndarray]:
        """The tokens of each sample, as numbers that are equal where both tokens and experts are equal."""
        tokens = self.tokens.numpy() if self.routes is None else told_apart(self.tokens.numpy(), self.routes)
        return np.split(tokens, self.offsets[1:-1].numpy()) if len(self) else []

    def with_(self, **changes: Any) -> TokenBatch:
        return replace(self, **changes)

    def select(self, indices: list[int]) -> TokenBatch:
        """Returns the samples `indices`, in that order."""
        picked, offsets = torch.tensor(indices, dtype=torch.int64), self.offsets.tolist()
        values: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in PER_SAMPLE:
                value = None if value is None else value[picked]
            elif isinstance(value, Tensor):
                value = torch.cat([value[:0], *(value[offsets[i] : offsets[i + 1]] for i in indices)])
            elif value is not None:
                value = value[self._tokens_of(indices)]
            values[field.name] = value
        return TokenBatch(**values)

    def _tokens_of(self, indices: list[int]) -> Tensor:
        offsets = self.offsets.tolist()
        return torch.cat([torch.arange(0), *(torch.arange(offsets[i], offsets[i + 1]) for i in indices)])

    @classmethod
    def joined(cls, batches: Sequence[TokenBatch]) -> TokenBatch:
        """Concatenates batches. All have the same fields, except that only some may have kept sets or routes."""
        values: dict[str, Any] = {}
        for field in fields(cls):
            parts = [getattr(batch, field.name) for batch in batches]
            if field.name == "kept":
                values[field.name] = _joined_sets(batches)
            elif isinstance(parts[0], TopTokens):
                values[field.name] = TopTokens.joined(parts)
            elif field.name == "routes":
                values[field.name] = joined_routes([(batch.num_tokens, batch.routes) for batch in batches])
            else:
                values[field.name] = None if parts[0] is None else torch.cat(parts)
        return cls(**values)

    def padded(self) -> Padded:
        """Returns all samples, right-padded to the longest one."""
        width = int(self.lengths.max()) if len(self) else 0
        mask = torch.arange(width)[None, :] < self.lengths[:, None]

        def pad(flat: Tensor | None) -> Tensor | None:
            if flat is None:
                return None
            out = flat.new_zeros(len(self), width) if flat.ndim == 1 else unrouted(mask.numel(), flat).unflatten(0, mask.shape)
            out[mask] = flat
            return out

        values: dict[str, Any] = {
            f.name: getattr(self, f.name) if f.name in PER_SAMPLE else pad(getattr(self, f.name))
            for f in fields(self)
            if f.name not in OF_TRAINED
        }
        values |= {name: None if (held := getattr(self, name)) is None else held[self.loss_mask] for name in OF_TRAINED}
        return Padded(attention_mask=mask, **values)

    def sums_per_sample(self, flat: Tensor) -> Tensor:
        """[S] sums of a flat [N] tensor over each sample's tokens."""
        return torch.zeros(len(self), dtype=flat.dtype).index_add_(0, self.sample_ids, flat)


def _joined_sets(batches: Sequence[TokenBatch]) -> KeptSets | None:
    if all(batch.kept is None for batch in batches):
        return None
    return KeptSets.joined([batch.kept or KeptSets.whole(batch.num_tokens) for batch in batches])


@dataclass(slots=True, kw_only=True)
class Padded(_Tensors):
    """A micro-batch of `B` samples, right-padded to `T` tokens. Per-token fields are [B, T], except for `routes`, [B, T, layers,
    k], and `OF_TRAINED`, which have the trained tokens in the order of the loss mask."""

    attention_mask: Tensor

    def each(self, move: Move) -> Padded:
        held = {f.name: v for f in fields(self) if (v := getattr(self, f.name)) is not None}
        there: dict[str, Any] = {n: v.each(move) if isinstance(v, KeptSets | TopTokens) else move(v) for n, v in held.items()}
        return Padded(**there)

    def flatten(self, values: Tensor) -> Tensor:
        """[N] non-padding entries of a [B, T] tensor, in the order of the `TokenBatch` it was cut from."""
        return values[self.attention_mask]
