"""Megatron-core on a machine without a GPU: the few CUDA names that it cannot do without, answered for the CPU.

What is replaced, found by leaving each out in turn on megatron-core 0.16:

name, as modules of `megatron.*` see it                 answer              needed by
torch.cuda.current_device                               the CPU             buffers of every collective and of the optimiser
torch.cuda.synchronize                                  nothing             pipelines whose tensor shapes vary
torch.cuda.Stream, current_stream, stream              one that does nothing   experts, whose token counts are copied on one
torch.tensor, torch.zeros, with device="cuda"           on the CPU          token counts, gradient norms, the optimiser
CudaRNGStatesTracker.fork                               nothing             sequence parallelism (there is no dropout)
random._get_all_rng_states, random._set_all_rng_states  the CPU's state     recomputation
token_dispatcher.maybe_move_tensor_to_cpu               numbers, as of a GPU   experts on several ranks
get_pos_emb_on_this_cp_rank                             without pinned memory context parallelism
Parameter.type(), of the model's own parameters         "torch.cuda...."    the mixed-precision and distributed optimisers

The modules of Megatron get a stand-in under the name `torch`; the real one keeps its functions. That matters: transformers
distinguishes constructors by identity when it loads a model, and with `torch.tensor` itself replaced it loads wrong rotary
frequencies without an error. There is no way back: a process that has installed the shim stays a CPU process.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import sys
from collections.abc import Callable
from types import ModuleType

import torch
from torch import Tensor, nn

logger = logging.getLogger(__name__)

CPU = torch.device("cpu")
# A module that is imported after the installation would see the real torch.
MODULES = (
    "optimizer",
    "pipeline_parallel",
    "distributed",
    "models.gpt",
    "models.gpt.gpt_layer_specs",
    "tensor_parallel",
    "tensor_parallel.random",
    "transformer.transformer_block",
)


class _StandIn(ModuleType):
    """A module that answers some names itself and passes on all others."""

    def __init__(self, real: ModuleType, **own: object) -> None:
        super().__init__(real.__name__)
        self.__dict__.update(own, _real=real)

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)


class _Stream:
    """A stream whose work is done as soon as it is queued."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Stream)

    __hash__ = object.__hash__

    def record_event(self) -> _Stream:
        return self

    def synchronize(self) -> None:
        pass


def install() -> None:
    """Idempotent. Imports the modules of Megatron that are used, and gives each the stand-in."""
    for name in MODULES:
        importlib.import_module(f"megatron.core.{name}")
    cuda = _StandIn(
        torch.cuda,
        current_device=lambda: CPU,
        synchronize=lambda device=None: None,
        Stream=_Stream,
        current_stream=_Stream,
        stream=contextlib.nullcontext,
    )
    stand_in = _StandIn(torch, cuda=cuda, tensor=_on_cpu(torch.tensor), zeros=_on_cpu(torch.zeros))
    changed = [
        module
        for name, module in list(sys.modules.items())
        if name.split(".")[0] == "megatron" and getattr(module, "torch", None) is torch
    ]
    for module in changed:
        module.torch = stand_in  # type: ignore[attr-defined]

    from megatron.core.tensor_parallel import random

    random.CudaRNGStatesTracker.fork = lambda self, name=None: contextlib.nullcontext()
    random._get_all_rng_states = lambda: (torch.get_rng_state(),)
    random._set_all_rng_states = torch.set_rng_state

    from megatron.core.models.common.embeddings import rotary_pos_embedding
    from megatron.core.transformer.moe import token_dispatcher

    from roll.strategies.train.megatron.context import own_columns

    rotary_pos_embedding.get_pos_emb_on_this_cp_rank = lambda embedding, dim, group: embedding.index_select(
        dim, own_columns(embedding.shape[dim], group, CPU)
    )
    token_dispatcher.maybe_move_tensor_to_cpu = _as_moved
    if changed:
        logger.warning("no GPU: CUDA names in %d modules of megatron-core are answered for the CPU", len(changed))


def _as_moved(tensor: object, as_numpy: bool = False, record_stream: bool = False) -> object:
    return tensor.numpy() if as_numpy and isinstance(tensor, Tensor) else tensor


def mark_parameters(model: nn.Module) -> None:
    """Makes the model's parameters say that they lie on a GPU, which the optimisers insist on."""
    for parameter in model.parameters():
        kind = Tensor.type(parameter).replace("torch.", "torch.cuda.", 1)
        parameter.type = lambda kind=kind: kind  # type: ignore[method-assign, assignment]


def _on_cpu(constructor: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(constructor)
    def construct(*args: object, **kwargs: object) -> Tensor:
        if str(kwargs.get("device")).startswith("cuda"):
            kwargs["device"] = CPU
        return constructor(*args, **kwargs)

    return construct
