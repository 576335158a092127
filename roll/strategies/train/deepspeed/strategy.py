"""DeepSpeed as a training back end: ZeRO stages 0 to 3, with host memory for the optimiser or the weights.

The optimiser is torch's AdamW, handed to DeepSpeed: its own CPU Adam would need a compiler on the machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from roll.configs.backend_arguments import DeepSpeedConfig
from roll.strategies.train.deepspeed.engine import (
    ZeroState,
    computed,
    engine_config,
    place_divided,
    place_whole,
    prepare_deepspeed,
    set_computed,
)
from roll.strategies.train.hf_train import HFTrainStrategy
from roll.strategies.train.interface import RankContext
from roll.strategies.train.optimizer import MOMENTS, scale_to_norm
from roll.strategies.train.scorer import Call
from roll.strategies.train.spec import TrainSpec
from roll.weights.experts import Fused


class DeepSpeedStrategy(HFTrainStrategy):
    """bf16 trains bfloat16 weights with float32 masters, moments and gradient sums: masters start from the rounded weights.
    A frozen model is divided in stage 3 only; the other stages divide what it does not have.

    Clipping by DeepSpeed scales by max_grad_norm / (norm + 1e-6), not by max_grad_norm / norm.
    """

    frozen_name = "deepspeed_infer"

    def __init__(self, context: RankContext, spec: TrainSpec) -> None:
        self._stage = spec.options(DeepSpeedConfig).zero_optimization.stage
        self._engine: Any = None
        self._zero: ZeroState | None = None
        super().__init__(context, spec)

    def _place(self) -> None:
        prepare_deepspeed(self._device)
        import deepspeed

        frozen = self._spec.optimisation is None
        if frozen and self._stage < 3:
            place_whole(self._model, self._device, self._compute_dtype)
            return
        bf16 = self._compute_dtype == torch.bfloat16
        if not frozen and bf16 and self._stage == 0:  # dtype auto, on accelerators: known here first
            raise ValueError(
                "ZeRO stage 0 keeps no float32 masters and would train in pure bf16: stage 1, or bf16.enabled: false"
            )
        training = self._spec.optimisation
        clip = math.inf if training is None else training.max_grad_norm
        config = engine_config(self._spec.options(DeepSpeedConfig).zero_json(), bf16, clip)
        client = self._make_optimizer()  # decays matrices; parameters that are divided are vectors
        if self._stage == 3:
            place_divided(self._model, self._device, self._compute_dtype, config)
        else:
            place_whole(self._model, self._device, self._compute_dtype)
        self._engine, *_ = deepspeed.initialize(model=self._model, optimizer=client, config=config, dist_init_required=False)
        self._optimizer = client
        if client is not None and self._stage > 0:
            self._zero = ZeroState(self._engine, client)

    @property
    def _callable(self) -> Call:
        call: Call = self._model if self._engine is None else self._engine
        return call

    def _backward(self, loss: Tensor, last: bool) -> None:
        self._engine.set_gradient_accumulation_boundary(last)
        # DeepSpeed averages over the ranks; the loss is already normalised by the whole batch, so the sum is wanted. (Exact where
        # the number of ranks is a power of two.) Nothing else scales: loss scaling is off, and so is scale_wrt_gas.
        self._engine.backward(loss * self._ranks.size, scale_wrt_gas=False)

    def _step(self) -> float:
        if self._stage == 0:
            return self._step_undivided()
        self._engine.step()  # leaves weights and moments alone if the norm is not finite
        return float(self._engine.get_global_grad_norm())

    def _step_undivided(self) -> float:
        """Stage 0: every rank has the whole reduced gradient, and DeepSpeed would step on any."""
        gradients = [p.grad for p in self._model.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if norm.isfinite():
            assert self._optimizer is not None and self._spec.optimisation is not None
            scale_to_norm(gradients, float(norm), self._spec.optimisation.max_grad_norm)
            self._optimizer.step()
        self._engine.zero_grad()
        return float(norm)

    def _full_weights(self, trained_only: bool = False) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self._named_tensors(trained_only):
            if self._zero is not None and tensor.requires_grad:
                yield name, self._zero.weight(tensor)  # type: ignore[arg-type]
            else:
                yield from computed(iter([(name, tensor)]))

    def _full_moments(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self._trained_parameters():
            for moment in MOMENTS:
                if self._zero is not None:
                    yield f"{name}.{moment}", self._zero.moment(parameter, moment)
                elif self._optimizer is not None and moment in self._optimizer.state[parameter]:
                    yield f"{name}.{moment}", self._optimizer.state[parameter][moment]

    def _set_weights(self, full: Fused) -> None:
        for name, tensor in self._named_tensors():
            if name in full:
                value = full[name].to(self._device)
                if self._zero is not None and tensor.requires_grad:
                    self._zero.set_weight(tensor, value)  # type: ignore[arg-type]
                else:
                    set_computed(tensor, value)

    def _set_moments(self, full: Fused, step: int) -> None:
        if self._zero is not None:
            self._zero.set_step(step)
        for name, parameter in self._trained_parameters():
            moments = {m: full[f"{name}.{m}"] if step else torch.zeros(self._shapes[name]) for m in MOMENTS}
            moments = {moment: value.to(self._device) for moment, value in moments.items()}
            if self._zero is not None:
                for moment, value in moments.items():
                    self._zero.set_moment(parameter, moment, value)
            elif self._optimizer is not None:
                self._optimizer.state[parameter] = {"step": torch.tensor(float(step), device=self._device), **moments}

    def _trained_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return ((name, parameter) for name, parameter in self._model.named_parameters() if parameter.requires_grad)

    def _free_device(self) -> None:
        """The moments, half or more of the memory. DeepSpeed's flat buffers stay: parameters are views into them; to free
        more, let `offload_optimizer` keep masters and moments in host memory for good."""
        if self._zero is not None:
            self._zero.move_moments(torch.device("cpu"))
        elif self._engine is None:
            nn.Module.to(self._model, "cpu")

    def _fill_device(self) -> None:
        if self._zero is not None:
            self._zero.move_moments(None)
        elif self._engine is None:
            nn.Module.to(self._model, self._device)

    def close(self) -> None:
        if self._engine is not None:
            self._engine.destroy()
        self._ranks.close()
