"""The critic on Megatron-core: the same stages with one number as the last one's head, and the value loss.

Checkpoints and folders are those of the other critics (`value_head`): the model without its own head, the value head beside it.
"""

from __future__ import annotations

from pathlib import Path

import torch
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from safetensors.torch import save_file
from torch import Tensor

from roll.core.algorithms.loss_metrics import Metrics
from roll.core.algorithms.value_loss import ValueLossSpec, value_loss
from roll.core.data.token_batch import Padded, TokenBatch
from roll.core.weights.folder_files import VALUE_HEAD
from roll.core.workers.train_interface import BatchTotals
from roll.strategies.train.megatron.context import Predictors
from roll.strategies.train.megatron.model import ModelStage
from roll.strategies.train.megatron.stage_weights import Read
from roll.strategies.train.megatron.strategy import MegatronStrategy
from roll.strategies.train.tensor_files import FilesOf, TensorFiles, write_tensors
from roll.strategies.train.value_head import ValueHead, saved_head

_HEAD = "lm_head."
"""Place of the head in transformers' models, and hence in its moments' names in every back end."""


class ValueModel(ModelStage):
    """The last stage returns values [R], float32. Every tensor-parallel rank has the whole head."""

    def __init__(self, config: TransformerConfig, hf_config: object, layers: TransformerBlockSubmodules) -> None:
        super().__init__(config, hf_config, layers, tied=False)
        if self.post_process:
            del self.output_layer
            self.value_head = ValueHead(config.hidden_size)

    def head(self, hidden: Tensor, at: Predictors) -> Tensor:
        said: Tensor = self.value_head(hidden)
        return said.flatten()


class MegatronCritic(MegatronStrategy):
    """A `CriticStrategy`; see `MegatronStrategy` for the options."""

    metrics_of = "critic"
    stage_of = ValueModel

    def values(self, batch: TokenBatch) -> Tensor:
        return self._per_token(batch, self._place)

    def train_values(self, batch: TokenBatch, loss: ValueLossSpec, totals: BatchTotals) -> dict[str, float]:
        def loss_of(micro: Padded, at: Predictors, said: Tensor) -> tuple[Tensor, Metrics]:
            assert micro.values is not None and micro.returns is not None, "a critic learns from values and returns"
            values = self._place(micro, at, said)
            return value_loss(values, micro.values, micro.returns, micro.loss_mask, loss, totals.tokens)

        return self._optimise(batch, loss_of)

    def _open_weights(self, folder: Path) -> Read:
        body, hidden = TensorFiles.of_model(folder), self._hf_config.hidden_size
        saved = saved_head(folder, hidden) or ValueHead(hidden).state_dict()
        head = {_HEAD + name: tensor for name, tensor in saved.items()}
        self._check(folder, lambda name: torch.empty_like(head[name]) if name in head else body.meta(name))
        return lambda name: head[name] if name in head else body.read(name)

    def _write_weights(self, folder: Path, weights: dict[str, Tensor], files_of: FilesOf) -> None:
        write_tensors(folder, ((name, tensor) for name, tensor in weights.items() if not name.startswith(_HEAD)), files_of)
        if head := {name.removeprefix(_HEAD): tensor for name, tensor in weights.items() if name.startswith(_HEAD)}:
            save_file(head, folder / VALUE_HEAD)
