"""Answers of teachers: log-probs of the tokens that the policy sampled, and of those that a teacher holds for most probable."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from roll.core.configs.plain import JsonMapping, JsonObject
from roll.core.data.transfer import Move

ARRAYS = {"logprobs": "float32", "ids": "int32", "top": "float32"}


@dataclass(frozen=True, slots=True, eq=False)
class TeacherAnswer:
    """A teacher's answer about the m tokens of a sample that the policy sampled."""

    teacher: str
    logprobs: NDArray[np.float32]
    """[m] of these tokens."""
    ids: NDArray[np.int32]
    """[m, k] the tokens that are most probable in their place."""
    top: NDArray[np.float32]
    """[m, k] log-probs of these; -inf where a kept set has fewer than k."""

    def to_json(self) -> JsonObject:
        packed = {name: base64.b64encode(getattr(self, name).astype(kind).tobytes()).decode() for name, kind in ARRAYS.items()}
        return {"teacher": self.teacher, "shape": list(self.ids.shape), **packed}

    @classmethod
    def from_json(cls, row: JsonMapping) -> TeacherAnswer:
        logprobs, ids, top = (np.frombuffer(base64.b64decode(row[name]), kind) for name, kind in ARRAYS.items())
        return cls(row["teacher"], logprobs, ids.reshape(row["shape"]), top.reshape(row["shape"]))


@dataclass(frozen=True, slots=True)
class TopTokens:
    """The most probable tokens of teachers in the place of each token of a batch."""

    known: Tensor
    """[N] bool, True where there is an answer."""
    ids: Tensor
    """[M, k] int64, in the places that are known."""
    logprobs: Tensor
    """[M, k] float32."""

    def __getitem__(self, index: Tensor) -> TopTokens:
        """`index`: token indices, or a mask [N]."""
        known = self.known[index]
        rows = (self.known.cumsum(0) - 1)[index][known]
        return TopTokens(known, self.ids[rows], self.logprobs[rows])

    def each(self, move: Move) -> TopTokens:
        return TopTokens(move(self.known), move(self.ids), move(self.logprobs))

    @classmethod
    def joined(cls, parts: Sequence[TopTokens]) -> TopTokens:
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in cls.__slots__))

    def dense(self) -> tuple[Tensor, Tensor]:
        """[N, k] each: ids and log-probs; -inf without an answer."""
        ids = self.ids.new_zeros(len(self.known), self.ids.shape[1])
        logprobs = torch.full_like(ids, -torch.inf, dtype=self.logprobs.dtype)
        ids[self.known], logprobs[self.known] = self.ids, self.logprobs
        return ids, logprobs
