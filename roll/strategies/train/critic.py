"""The critic: a value model trained by the same back ends as the policy, which differ in nothing but the head and the loss."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from roll.core.algorithms.loss_metrics import Metrics
from roll.core.algorithms.value_loss import ValueLossSpec, value_loss
from roll.core.data.token_batch import Padded, TokenBatch
from roll.core.workers.train_interface import BatchTotals
from roll.strategies.train.fsdp2 import FSDP2Strategy
from roll.strategies.train.hf_train import HFTrainStrategy
from roll.strategies.train.layout import Layout
from roll.strategies.train.tensor_files import FilesOf
from roll.strategies.train.value_head import load_value_model, write_value_model
from roll.strategies.vision.family import copy_processor


class ValueModel(HFTrainStrategy):
    """Checkpoints hold the value model in `model/` (see `value_head`) instead of a causal LM. All weights are trained."""

    metrics_of = "critic"

    def values(self, batch: TokenBatch) -> Tensor:
        return self._per_token(batch, self._values)

    def train_values(self, batch: TokenBatch, loss: ValueLossSpec, totals: BatchTotals) -> dict[str, float]:
        def loss_of(micro: Padded, layout: Layout) -> tuple[Tensor, Metrics]:
            assert micro.values is not None and micro.returns is not None, "a critic learns from values and returns"
            return value_loss(self._values(micro, layout), micro.values, micro.returns, micro.loss_mask, loss, totals.tokens)

        return self._optimise(batch, loss_of)

    def _values(self, micro: Padded, layout: Layout) -> Tensor:
        """[B, T] values."""
        said = self._scorer.said(self._callable, layout).float().flatten()
        values = said.index_select(0, layout.places)
        return layout.spread(values if layout.scored is None else layout.scored.whole(values), micro)

    def _load_model(self, path: Path, dtype: torch.dtype, state: dict[str, Tensor] | None = None) -> PreTrainedModel:
        return load_value_model(path, dtype, self._spec.model.attn_implementation, state)

    def _write_model(self, path: Path, weights: dict[str, Tensor], files_of: FilesOf) -> None:
        write_value_model(path, self._hollow, self._tokenizer, weights, files_of)
        copy_processor(Path(self._spec.model_path), path)


class FSDP2Critic(ValueModel, FSDP2Strategy):
    pass
