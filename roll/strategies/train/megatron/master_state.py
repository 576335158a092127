"""The float32 master weights and AdamW moments of this rank's parameters, whichever of Megatron's optimisers holds them.

fp32 without the distributed optimiser: the parameter is its own master. bf16: `parameter.main_param` is. Distributed optimiser:
each data-parallel rank owns a range of each (flattened) parameter, which may be empty.
"""

from __future__ import annotations

from typing import Literal

import torch
from megatron.core.optimizer import ChainedOptimizer, MegatronOptimizer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from torch import Tensor, nn

from roll.strategies.train.megatron.parallel import ModelParallel

Moment = Literal["exp_avg", "exp_avg_sq"]
MOMENTS: tuple[Moment, ...] = ("exp_avg", "exp_avg_sq")


class MasterState:
    def __init__(self, optimizer: MegatronOptimizer, parallel: ModelParallel) -> None:
        parts = optimizer.chained_optimizers if isinstance(optimizer, ChainedOptimizer) else [optimizer]
        (self._optimizer,) = parts  # one for each kind of parameter, and there are no experts
        self._adam: torch.optim.AdamW = self._optimizer.optimizer
        self._parallel = parallel

    def tensors(self) -> list[Tensor]:
        """All that the optimiser holds of its own: to be moved off the accelerator with the model."""
        masters = [p for group in self._adam.param_groups for p in group["params"]]
        return masters + [self._adam.state[p][moment] for p in masters if p in self._adam.state for moment in MOMENTS]

    def weight(self, parameter: nn.Parameter) -> Tensor:
        """float32, in the shape of this rank's parameter. A collective of the data-parallel ranks."""
        return self._whole(parameter, self._master(parameter))

    def moment(self, moment: Moment, parameter: nn.Parameter) -> Tensor:
        """As `weight`."""
        master = self._master(parameter)
        return self._whole(parameter, None if master is None else self._adam.state[master][moment])

    @torch.no_grad()
    def set_weight(self, parameter: nn.Parameter, value: Tensor) -> None:
        """`value`: float32, in the shape of this rank's parameter."""
        parameter.copy_(value)
        master = self._master(parameter)
        if master is not None:
            master.copy_(self._part(parameter, value))

    def clear_moments(self) -> None:
        self._adam.state.clear()

    def set_moment(self, moment: Moment, parameter: nn.Parameter, value: Tensor, step: int) -> None:
        """`value`: float32, in the shape of this rank's parameter. `step`: updates that the moments have seen."""
        master = self._master(parameter)
        if master is not None:
            state = self._adam.state[master]
            state["step"] = torch.tensor(float(step))
            state[moment] = self._part(parameter, value).detach().clone(memory_format=torch.contiguous_format)

    @torch.no_grad()
    def _whole(self, parameter: nn.Parameter, owned: Tensor | None) -> Tensor:
        if not isinstance(self._optimizer, DistributedOptimizer):
            assert owned is not None
            return owned.detach()
        flat = torch.zeros(parameter.numel(), dtype=torch.float32, device=parameter.device)
        if owned is not None:
            start, stop = self._range(parameter)
            flat[start:stop] = owned
        self._parallel.reduce_over_data(flat, "sum")
        return flat.view(parameter.shape)

    def _master(self, parameter: nn.Parameter) -> Tensor | None:
        """What AdamW updates; None if another data-parallel rank does."""
        optimizer = self._optimizer
        if not isinstance(optimizer, DistributedOptimizer):
            return getattr(parameter, "main_param", parameter)
        if parameter not in optimizer.model_param_group_index_map:
            return None
        group, order = optimizer.model_param_group_index_map[parameter]
        return self._adam.param_groups[group]["params"][order]  # type: ignore[no-any-return]

    def _range(self, parameter: nn.Parameter) -> tuple[int, int]:
        owned = self._optimizer._get_model_param_range_map(parameter)["param"]
        return owned.start, owned.end

    def _part(self, parameter: nn.Parameter, value: Tensor) -> Tensor:
        """What this rank owns of a parameter's value."""
        if not isinstance(self._optimizer, DistributedOptimizer):
            return value
        start, stop = self._range(parameter)
        return value.reshape(-1)[start:stop]
