"""DeepSpeed as a training back end: ZeRO stages 0 to 3, with host memory for the optimiser or the weights.

The optimiser is torch's AdamW, handed to DeepSpeed: its own CPU Adam would need a compiler on the machine.
"""

from __future__ import annotations

import logging
import math
import os
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from roll.core.configs.backend_arguments import DeepSpeedConfig
from roll.core.workers.train_interface import RankContext
from roll.core.workers.train_spec import TrainSpec
from roll.strategies.train.hf_train import HFTrainStrategy
from roll.strategies.train.optimizer import MOMENTS, scale_to_norm
from roll.strategies.train.process import ensure_group_of_one
from roll.strategies.train.scorer import Call
from roll.transports.experts import Fused


def prepare_deepspeed(device: torch.device) -> None:
    """Prepares the process before the first import of deepspeed, whether the process group is up or not."""
    os.environ["LOCAL_RANK"] = str(device.index or 0)  # DeepSpeed's way to learn its device
    if device.type == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"
    ensure_group_of_one(device)
    # Calls inside DeepSpeed that the user can do nothing about.
    warnings.filterwarnings("ignore", message=r"`torch\.distributed\.\w+` is deprecated", category=FutureWarning)
    import deepspeed

    deepspeed.utils.logger.setLevel(logging.ERROR)
    # Its shared-memory all-reduce would be compiled by the first worker that starts.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def engine_config(zero: dict[str, object], bf16: bool, max_grad_norm: float) -> dict[str, object]:
    """The JSON that DeepSpeed gets. Nothing in it scales the gradient: see `DeepSpeedStrategy._backward`."""
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": max_grad_norm if max_grad_norm < float("inf") else 0.0,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    if bf16:
        # Sums over micro-batches and ranks in bfloat16 would lose the small ones; without the check a NaN would be stepped on.
        config |= {
            "bf16": {"enabled": True, "check_grad_overflow": True},
            "data_types": {"grad_accum_dtype": "fp32"},
            "communication_data_type": "fp32",
        }
    return config


def place_whole(model: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
    """Moves a model to the device; its parameters, one after the other, in `dtype`."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(device, dtype)
    nn.Module.to(model, device)


def place_divided(model: nn.Module, device: torch.device, dtype: torch.dtype, config: dict[str, object]) -> None:
    """Divides a model over the ranks, parameter by parameter, as stage 3 wants it: no device, and no rank in `dtype`, ever holds
    more than one of them whole."""
    import deepspeed

    division = deepspeed.zero.Init(module=nn.Module(), config_dict_or_path=config, dtype=dtype)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(device, dtype)
        division._convert_to_zero_parameters([parameter])
    nn.Module.to(model, device)


class ZeroState:
    """The float32 masters and moments of an engine with ZeRO stage 1, 2 or 3."""

    def __init__(self, engine: Any, optimizer: torch.optim.AdamW) -> None:
        self._zero, self._optimizer = engine.optimizer, optimizer
        for name in ("fp32_partitioned_groups_flat", "single_partition_of_fp32_groups", "fp32_groups_flat_partition"):
            if hasattr(self._zero, name):
                self._flat: list[Tensor] = getattr(self._zero, name)
                break
        # Made here rather than by the first step, so that they can be saved and loaded before it; and DeepSpeed would link
        # those of its first parameter group only.
        self.set_step(0)
        for flat in self._flat:
            self._optimizer.state[flat] |= {moment: torch.zeros_like(flat) for moment in MOMENTS}
        self._link()

    def weight(self, parameter: nn.Parameter) -> Tensor:
        """The whole master weight, float32. A collective."""
        from deepspeed.utils import safe_get_full_fp32_param

        full: Tensor = safe_get_full_fp32_param(parameter)
        return full

    def moment(self, parameter: nn.Parameter, moment: str) -> Tensor:
        """A whole moment of AdamW, float32. A collective."""
        from deepspeed.utils import safe_get_full_optimizer_state

        full: Tensor = safe_get_full_optimizer_state(parameter, moment)
        return full

    def set_weight(self, parameter: nn.Parameter, full: Tensor) -> None:
        """Sets the master weight and the weight that layers compute with. A collective in stage 3."""
        from deepspeed.utils import safe_set_full_fp32_param, safe_set_local_fp32_param

        if is_divided(parameter):
            safe_set_local_fp32_param(parameter, _own_part(parameter, full))
        else:
            safe_set_full_fp32_param(parameter, full.float())
        set_computed(parameter, full)

    def set_moment(self, parameter: nn.Parameter, moment: str, full: Tensor) -> None:
        from deepspeed.utils import safe_set_full_optimizer_state, safe_set_local_optimizer_state

        if is_divided(parameter):
            safe_set_local_optimizer_state(parameter, _own_part(parameter, full), moment)
        else:
            safe_set_full_optimizer_state(parameter, full.float(), moment)

    def set_step(self, step: int) -> None:
        for flat in self._flat:
            self._optimizer.state.setdefault(flat, {})["step"] = torch.tensor(float(step), device=flat.device)

    def move_moments(self, device: torch.device | None) -> None:
        """Moves the moments to `device`, or back to the device of their masters (None)."""
        for flat in self._flat:
            state = self._optimizer.state[flat]
            state.update({moment: state[moment].to(device or flat.device) for moment in MOMENTS})
        self._link()

    def _link(self) -> None:
        """Stages 1 and 2 keep, with each parameter, views of its moments."""
        if hasattr(self._zero, "_lazy_init_hp_params_optimizer_state"):
            self._zero._hp_optimizer_states_linked = False
            self._zero._lazy_init_hp_params_optimizer_state()


def is_divided(parameter: Tensor) -> bool:
    """True if the parameter is divided over the ranks (stage 3): no rank holds it whole, except while it is gathered."""
    return hasattr(parameter, "ds_id")


def computed(tensors: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Whole copies of the weights that layers compute with, one at a time. A collective in stage 3."""
    for name, tensor in tensors:
        with _gathered(tensor):
            whole = tensor.detach().clone()
        yield name, whole


def set_computed(tensor: Tensor, full: Tensor) -> None:
    with _gathered(tensor, modified=True):
        tensor.detach().copy_(full)


def _gathered(tensor: Tensor, modified: bool = False) -> Any:
    if not is_divided(tensor):
        return nullcontext()
    import deepspeed

    return deepspeed.zero.GatheredParameters([tensor], modifier_rank=0 if modified else None)


def _own_part(parameter: nn.Parameter, full: Tensor) -> Tensor:
    """This rank's elements of a parameter that stage 3 divides, filled up with zeros as DeepSpeed does."""
    size = parameter.ds_tensor.numel()  # type: ignore[attr-defined]
    part = full.flatten().float()[dist.get_rank() * size : (dist.get_rank() + 1) * size]
    return nn.functional.pad(part, (0, size - part.numel()))


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

    @property
    def _layers_can_be_compiled(self) -> bool:
        """Stage 3 gathers and frees the weights of each matrix from within a layer."""
        return self._stage < 3

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
        client = self._make_optimizer(self._model.parameters())  # decays matrices; parameters that are divided are vectors
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

    def _full_weights(self, trained_only: bool = False, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        """DeepSpeed gathers masters as they are."""
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
