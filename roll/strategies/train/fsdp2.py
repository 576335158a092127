"""The embedded training back end: FSDP2 over several ranks; one rank is a plain module, beside float32 masters if it computes in
bf16."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain

import torch
from torch import Tensor, nn

from roll.core.algorithms.aggregation import divisor
from roll.core.algorithms.loss import LossSpec, Metrics
from roll.core.algorithms.loss_metrics import scaled
from roll.core.configs.arguments import FSDP2Config
from roll.core.data.token_batch import TokenBatch
from roll.core.workers.train_interface import BatchTotals
from roll.strategies.train.hf_train import HFTrainStrategy
from roll.strategies.train.masters import Masters
from roll.strategies.train.optimizer import MOMENTS, scale_to_norm
from roll.strategies.train.scorer import Call
from roll.strategies.train.sharding import local, reduce_gradients, reshard, reshard_after_backward
from roll.strategies.train.storage_offload import StorageOffload
from roll.transports.experts import Fused


class FSDP2Strategy(HFTrainStrategy):
    """Layers compute in the specification's type: of several ranks by FSDP2's mixed precision, of one in rounded masters."""

    frozen_name = "fsdp2_infer"

    def _place(self) -> None:
        layer_names = set(self._model._no_split_modules or ())
        dtype = self._compute_dtype if self._mixed else None
        self._options = self._spec.options(FSDP2Config)
        self._masters = Masters()
        self._ranks.shard(self._model, layer_names, dtype, self._options)
        if dtype is not None and self._ranks.size == 1:
            self._masters.narrow(self._model, dtype)
        elif self._kept_dtype == torch.float32:  # its own part alone becomes wider than what is stored
            nn.Module.to(self._model, torch.float32)
        self._optimizer = self._make_optimizer(map(self._masters.of, self._model.parameters()))
        self._offloaded = StorageOffload()
        self._parts: list[Metrics] = []
        """Metrics of the gradients added since the last step."""

    def add_gradients(self, batch: TokenBatch, loss: LossSpec) -> None:
        """Adds gradients of the sum of all losses: their divisor is not known yet."""
        self._parts += self._gradients(batch, self._policy_loss(loss, BatchTotals(tokens=1, sequences=1, rollouts=1)))

    def step_on_gradients(self, loss: LossSpec, totals: BatchTotals) -> dict[str, float]:
        factor = 1 / divisor(loss.aggregation, totals.tokens, totals.sequences, totals.rollouts)
        for gradient in self._added_gradients():
            gradient.mul_(factor)
        parts, self._parts = [scaled(part, factor) for part in self._parts], []
        return self._take_step(parts, loss.rate_scale)

    def _added_gradients(self) -> list[Tensor]:
        masters = map(self._masters.of, self._model.parameters())
        return [local(p.grad) for p in masters if p.grad is not None]

    @property
    def _callable(self) -> Call:
        call: Call = self._model
        return call

    def _backward(self, loss: Tensor, last: bool) -> None:
        if not self._options.reduce_scatter_during_grad_accumulation:
            reduce_gradients(self._model, now=last)
        if not self._options.reshard_after_forward:
            reshard_after_backward(self._model, now=last)
        loss.backward()

    def _step(self) -> float:
        assert self._optimizer is not None and self._spec.optimisation is not None
        gradients = self._added_gradients()
        square = self._ranks.sum_of_parts(torch.nn.utils.get_total_norm(gradients).square())
        norm = float(square.sqrt())
        if math.isfinite(norm):
            scale_to_norm(gradients, norm, self._spec.optimisation.max_grad_norm)
            self._optimizer.step()
            self._masters.round()
        self._optimizer.zero_grad(set_to_none=True)
        return norm

    def _full_weights(self, trained_only: bool = False, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self._named_tensors(trained_only):
            part = (tensor if dtype == tensor.dtype else self._masters.of(tensor)).detach()
            yield name, self._ranks.full(part.to(dtype) if part.is_floating_point() else part)

    def _full_moments(self) -> Iterator[tuple[str, Tensor]]:
        assert self._optimizer is not None
        for name, parameter in self._model.named_parameters():
            state = self._optimizer.state[self._masters.of(parameter)]
            for moment in MOMENTS:
                if moment in state:
                    yield f"{name}.{moment}", self._ranks.full(state[moment])

    def _set_weights(self, full: Fused) -> None:
        for name, tensor in self._named_tensors():
            if name in full:
                local(self._masters.of(tensor).detach()).copy_(self._ranks.part(full, name, tensor))
        self._masters.round()

    def _set_moments(self, full: Fused, step: int) -> None:
        assert self._optimizer is not None
        self._optimizer.state.clear()
        for name, parameter in self._model.named_parameters():
            if step and parameter.requires_grad:
                master = self._masters.of(parameter)
                self._optimizer.state[master] = {
                    "step": torch.tensor(float(step), device=self._device),
                    **{moment: self._ranks.like(full, f"{name}.{moment}", master) for moment in MOMENTS},
                }

    def _free_device(self) -> None:
        states = self._optimizer.state.values() if self._optimizer is not None else ()
        moments = (state[moment] for state in states for moment in MOMENTS if moment in state)
        weights = list(self._model.parameters())
        held = chain(weights, map(self._masters.of, weights), self._model.buffers(), moments)
        self._offloaded.offload(local(tensor.detach()) for tensor in held)

    def _fill_device(self) -> None:
        self._offloaded.reload()

    def close(self) -> None:
        self._ranks.close()

    def _after_inference(self) -> None:
        reshard(self._model)
