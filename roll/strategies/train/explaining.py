"""A rank of actor_train that takes the gradient of a step apart: by sample, by token, and to the first value that is not finite.

The gradient is that of one optimiser step on the whole batch, at the weights that the step begins with. A sample's share is the
part of it along the whole gradient, (g_i · G) / (G · G): shares add up to 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from roll.core.algorithms.loss import LossSpec, compute_loss
from roll.core.configs.plain import JsonObject
from roll.core.data.token_batch import Padded, TokenBatch
from roll.core.workers.train_interface import BatchTotals
from roll.core.workers.workers import TrainWorker
from roll.strategies.train.fsdp2 import FSDP2Strategy
from roll.strategies.train.sharding import local

MOST_TOKENS = 4096
"""Tokens of a sample of which the pushes are returned: those that push most."""


class ExplainingWorker(TrainWorker):
    def explain(self, batch: TokenBatch, loss: LossSpec, totals: BatchTotals) -> JsonObject:
        """Returns norm and finiteness of the gradient, and an entry for each sample. Changes neither weights nor gradients."""
        strategy = self.strategy
        assert isinstance(strategy, FSDP2Strategy), "roll explain sees to it"
        return _Explanation(strategy, loss, totals).of(batch)


class _Explanation:
    def __init__(self, strategy: FSDP2Strategy, loss: LossSpec, totals: BatchTotals) -> None:
        self._strategy, self._loss, self._totals = strategy, loss, totals
        self._model: nn.Module = strategy._model
        self._faults: list[JsonObject] = []
        """The model's outputs that were not finite, in the order of computation."""

    def of(self, batch: TokenBatch) -> JsonObject:
        parameter = _first_unsound(self._model.named_parameters())
        whole = self._gradient(batch)
        norm = float(whole.norm())
        samples = [self._of_sample(batch.select([i]), whole) for i in range(len(batch))]
        return {"grad_norm": norm, "parameter": parameter, "samples": samples}

    def _of_sample(self, sample: TokenBatch, whole: Tensor) -> JsonObject:
        if not bool(sample.loss_mask.any()):
            return {"grad_norm": 0.0, "share": 0.0, "fault": None, "tokens": []}
        self._faults, tokens = [], list[JsonObject]()
        with self._watched():
            gradient = self._gradient(sample, lambda micro, logprobs: tokens.extend(self._pushes(micro, logprobs)))
        fault = self._faults[0] if self._faults else None
        if fault is None and not bool(gradient.isfinite().all()):
            fault = _gradient_of(self._model)
        self._clear()
        share = float(gradient @ whole / (whole @ whole)) if float(whole @ whole) else 0.0
        return {"grad_norm": float(gradient.norm()), "share": share, "fault": fault, "tokens": tokens}

    def _gradient(self, batch: TokenBatch, seen: Callable[[Padded, Tensor], None] | None = None) -> Tensor:
        """Returns the gradient of the batch's share of the loss, flat, in float64. `seen`: gets log-probs of micro-batches."""
        self._clear()
        of_loss = self._strategy._policy_loss(self._loss, self._totals)
        scorer = self._strategy._scorer

        def loss_of(micro: Padded, layout: Any) -> tuple[Tensor, Any]:
            if seen is not None:
                with torch.no_grad():
                    seen(micro, scorer.logprobs(self._strategy._callable, micro, layout, "detached")[0])
            return of_loss(micro, layout)

        for _ in self._strategy._gradients(batch, loss_of):
            pass
        found = [local(p.grad).double().flatten() for p in self._model.parameters() if p.grad is not None]
        return torch.cat(found) if found else torch.zeros(1, dtype=torch.float64)

    def _pushes(self, micro: Padded, logprobs: Tensor) -> Iterator[JsonObject]:
        """Yields the tokens with the derivative of the loss by their log-prob, those with the largest first."""
        leaf = logprobs.detach().clone().requires_grad_(True)
        with torch.enable_grad():
            totals, spec = self._totals, self._loss
            entropy = torch.zeros_like(leaf) if spec.entropy_coef else None
            value, _ = compute_loss(leaf, entropy, micro, spec, totals.tokens, totals.sequences, totals.rollouts)
            value.backward()
        push = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        order = (-push.abs()[0].nan_to_num(nan=torch.inf)).argsort().tolist()
        for place in [each for each in order if bool(micro.loss_mask[0, each])][:MOST_TOKENS]:
            now, then = float(logprobs[0, place]), float(micro.behaviour_logprobs[0, place])
            yield {
                "place": place,
                "id": int(micro.tokens[0, place]),
                "push": float(push[0, place]),
                "advantage": float(micro.advantages[0, place]),
                "logprob": now,
                "behaviour_logprob": then,
                "ratio": float(torch.tensor(now - then).exp()),
            }

    def _clear(self) -> None:
        for parameter in self._model.parameters():
            parameter.grad = None

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Notes modules whose output is not finite though their input is."""
        hooks = [module.register_forward_hook(self._watch(name, module)) for name, module in self._model.named_modules()]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _watch(self, name: str, module: nn.Module) -> Callable[[nn.Module, object, object], None]:
        def after(_: nn.Module, given: object, output: object) -> None:
            bad = next((tensor for tensor in _tensors(output) if not bool(tensor.isfinite().all())), None)
            if bad is not None and all(bool(tensor.isfinite().all()) for tensor in _tensors(given)):
                largest = _largest(module.named_parameters(recurse=False))
                self._faults.append({"module": name, "tensor": "output", "place": _place(bad), "largest_weight": largest})

        return after


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _tensors(each)
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _tensors(each)


def _place(tensor: Tensor) -> list[int]:
    """Returns the index of the first value that is not finite."""
    return [int(each) for each in (~tensor.isfinite()).nonzero()[0]]


def _first_unsound(named: Iterator[tuple[str, Tensor]]) -> JsonObject | None:
    for name, tensor in named:
        if not bool(tensor.isfinite().all()):
            return {"name": name, "place": (place := _place(tensor)), "value": str(float(tensor.detach()[tuple(place)]))}
    return None


def _largest(named: Iterator[tuple[str, Tensor]]) -> JsonObject | None:
    found = [(float(tensor.detach().abs().max()), name, tensor) for name, tensor in named if tensor.numel()]
    if not found:
        return None
    value, name, tensor = max(found, key=lambda each: each[0])
    index = torch.unravel_index(tensor.abs().argmax(), tensor.shape)
    return {"name": name, "place": [int(each) for each in index], "value": value}


def _gradient_of(model: nn.Module) -> JsonObject | None:
    """Returns the parameter whose gradient is the first that is not finite: backward begins with the last."""
    for name, parameter in reversed(list(model.named_parameters())):
        if parameter.grad is not None and not bool(parameter.grad.isfinite().all()):
            return {"module": name, "tensor": "gradient", "place": _place(parameter.grad), "largest_weight": None}
    return None
