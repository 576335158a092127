"""The experts chosen by the routers of a mixture of experts, for each computed token.

Two engines, or two number types, route some tokens differently, and their log-probs of later tokens then differ by far more than
rounding. A trainer that gets the choices computes with the same experts; their weights come from its own router, and so does the
gradient (rollout routing replay, arXiv 2510.11370). An expert takes one byte; two if a layer has more than 254.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

Experts: TypeAlias = np.ndarray[Any, Any]

TYPES: dict[str, torch.dtype] = {"uint8": torch.uint8, "int16": torch.int16}
_UNROUTED = {torch.uint8: 255, torch.int16: -1}
"""The value of an unknown choice; the trainer's router then chooses itself."""


def type_for(experts: int) -> torch.dtype:
    """Returns the type of expert numbers in layers of `experts` experts."""
    return torch.uint8 if experts < 255 else torch.int16


@dataclass(frozen=True, slots=True, eq=False)
class Routes:
    """The expert routes of a sequence's first tokens."""

    experts: Experts
    """[tokens, layers with experts, experts per token], uint8 or int16."""

    def __len__(self) -> int:
        return len(self.experts)

    def __add__(self, following: Routes) -> Routes:
        return Routes(np.concatenate([self.experts, following.experts]))

    def since(self, token: int) -> Routes:
        return Routes(self.experts[token:])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Routes) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]  # arrays can change

    def to_json(self) -> list[Any]:
        return [self.experts.dtype.name, list(self.experts.shape), base64.b64encode(self.experts.tobytes()).decode()]

    @classmethod
    def from_json(cls, row: Sequence[Any]) -> Routes:
        dtype, shape, content = row
        if dtype not in TYPES:
            raise ValueError(f"experts are numbered by {' or '.join(TYPES)}, not {dtype!r}")
        return cls(np.frombuffer(base64.b64decode(content), dtype).reshape(shape))


def batch_routes(parts: Sequence[tuple[int, Routes | None]]) -> Tensor | None:
    """[N, layers, k] routes of concatenated sequences, given with their lengths; None if no sequence has routes."""
    known = next((routes.experts for _, routes in parts if routes is not None), None)
    if known is None:
        return None
    whole = unrouted(sum(length for length, _ in parts), torch.from_numpy(known[:0].copy()))
    start = 0
    for length, routes in parts:
        if routes is not None:
            whole.numpy()[start : start + len(routes)] = routes.experts
        start += length
    return whole


def unrouted(tokens: int, like: Tensor) -> Tensor:
    """Returns routes of `tokens` tokens with unknown experts, shaped and typed as `like`."""
    return like.new_full((tokens, *like.shape[1:]), _UNROUTED[like.dtype])


def joined_routes(parts: Sequence[tuple[int, Tensor | None]]) -> Tensor | None:
    """Concatenates the routes of batches, given with their numbers of tokens; None if no batch has routes."""
    known = next((routes for _, routes in parts if routes is not None), None)
    return None if known is None else torch.cat([unrouted(n, known) if routes is None else routes for n, routes in parts])


def told_apart(tokens: np.ndarray, routes: Tensor) -> np.ndarray:
    """[N] uint64 digests of tokens and their experts: equal where both are equal, and practically never otherwise."""
    raw = np.ascontiguousarray(routes.flatten(1).numpy()).view(np.uint8)
    words = np.pad(raw, ((0, 0), (0, -raw.shape[1] % 8))).view(np.uint64)
    digests: np.ndarray = tokens.astype(np.uint64)
    for column in words.T:
        digests = (digests ^ digests >> np.uint64(29)) * np.uint64(0x9E3779B97F4A7C15) + column
    return digests
