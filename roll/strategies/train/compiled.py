"""Functions and layers that torch compiles where a role asks for it, and runs as they are where it cannot.

Inductor's caches lie where `TORCHINDUCTOR_CACHE_DIR` says, or else in the user's temporary folder (`torchinductor_<user>`): a
process that is started again, or another run of the same sizes, finds there what was compiled.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Generic, ParamSpec, TypeVar

import torch
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from roll.strategies.routers import is_router
from roll.strategies.train.forest_attention import keep_out_of_graphs

P = ParamSpec("P")
R = TypeVar("R")
RECOMPILATIONS = 64
"""Limit of one function: with and without gradients, for training and for scoring, of several roles in a process."""


_PREPARED: ContextVar[bool] = ContextVar("prepared", default=False)
"""torch keeps its settings for each thread, as this is: an accelerator's backward passes, which compile, too, run in another."""


def prepare() -> type[Exception]:
    """Loads the compiler, and says once in a thread how to compile. Returns the class of a failing compilation's errors."""
    import torch._dynamo
    import torch._functorch.config
    import torch._inductor.config

    if not _PREPARED.get():
        torch._dynamo.config.recompile_limit = max(RECOMPILATIONS, torch._dynamo.config.recompile_limit)
        # Where another thread compiles at this moment a function runs as it is.
        torch._dynamo.config.error_on_nested_fx_trace = False
        # A backward pass is compiled with its forward pass: there a failure can still be answered.
        torch._functorch.config.force_non_lazy_backward_lowering = True
        torch._inductor.config.cpp.dynamic_threads = True  # on CPUs the cores follow the work
        _PREPARED.set(True)
    return torch._dynamo.exc.TorchDynamoException


@functools.cache
def tell_failure(reason: str) -> None:
    logging.getLogger(__name__).warning("compilation failed, and what was to be compiled runs eagerly: %s", reason)


class Compiled(Generic[P, R]):
    """A function of tensors of any sizes, compiled at its first call. If that fails it is called as it is, then and later."""

    def __init__(self, function: Callable[P, R]) -> None:
        self._failure = prepare()
        self._eager = function
        self._function: Callable[P, R] = torch.compile(function, dynamic=True)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            prepare()
            return self._function(*args, **kwargs)
        except self._failure as error:
            tell_failure(" ".join(str(error).split()[:60]))
            self._function = self._eager
            return self._eager(*args, **kwargs)


@functools.cache
def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """The same for all that ask: it is compiled once in a process."""
    return Compiled(function)


def compile_layers(model: nn.Module) -> None:
    """Compiles what stands between one attention and the next; layers of a kind share it. Attention and the choice of experts,
    which is recorded and replayed, stay outside. What is hooked to a layer, or recomputes it, is around it."""
    keep_out_of_graphs()
    for module in model.modules():
        own: Any = module
        if is_router(module):
            own.forward = torch.compiler.disable(own.forward)
        elif isinstance(module, GradientCheckpointingLayer):
            own.forward = Compiled(own.forward)
