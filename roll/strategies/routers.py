"""The routers of a mixture of experts: an engine reads what they choose, a trainer gives them what an engine's have chosen.

A router of transformers scores a layer's experts and takes the `top_k` best. Replay puts other indices in the place of these, and
the scores of these indices in the place of the best ones: what the router makes of the scores it chose (softmax, norm, bias,
scale) stays its own, and so does their gradient.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import AutoModelForCausalLM

from roll.core.algorithms.loss_metrics import MeanMetric, Metrics
from roll.core.data.routes import TYPES, type_for
from roll.strategies.model_folder import load_config


def is_router(module: nn.Module) -> bool:
    return type(module).__name__.lower().endswith("topkrouter")


class Routers:
    """Routers of a model, in the order of its layers. They stay as they are until `record` or `replay`."""

    def __init__(self, model: nn.Module) -> None:
        self._routers = [_Router(module) for module in model.modules() if is_router(module)]
        self._model = type(model).__name__

    def record(self) -> None:
        """Makes `taken` say each forward's choice from now on. `ValueError` for a model whose routers are not known."""
        self.check_known()
        for router in self._routers:
            router.records = True

    def taken(self) -> Tensor:
        """[tokens, layers, top_k] of the last forward. `ValueError` if a layer has chosen its experts without its router."""
        self._check_asked(self._routers)
        return torch.stack([router.forget() for router in self._routers], 1)

    def replay(self, routes: Tensor | None, again: bool = False) -> None:
        """The forward that comes, and what of it is computed again for its gradient, takes these experts [tokens, layers, top_k]
        where they are known; None: those that it chooses. `ValueError` if they are another model's.

        `again`: others may begin before it is computed again, each in its turn."""
        for router in self._routers:
            router.given, router.first = None, True
            if not again:
                router.once_more.clear()
        if routes is None:
            return
        self.check_known()
        needed = [len(self._routers), *{router.top_k for router in self._routers}]
        if list(routes.shape[1:]) != needed:
            raise ValueError(f"experts of {list(routes.shape[1:])} layers and experts a token, but {self._model} has {needed}")
        for router, given in zip(self._routers, routes.unbind(1), strict=True):
            router.given, router.chosen = given.long(), None
            if again:
                router.once_more.append(router.given)

    def changed(self) -> tuple[Tensor, Tensor] | None:
        """After a forward with replay, counts experts that the routers would not have chosen, and all. `ValueError` if a
        layer has chosen its experts all the same."""
        told = [router for router in self._routers if router.given is not None]
        if not told:
            return None
        self._check_asked(told)
        changed, known = (torch.stack([getattr(router, name) for router in told]).sum() for name in ("changed", "known"))
        return changed, known

    def forward_made(self) -> Metrics:
        """Returns `changed` as a metric. Where a router is asked from now on, its tokens are computed again."""
        changed = self.changed()
        for router in self._routers:
            router.first = False
        return {} if changed is None else {"actor/router_replay_changed": MeanMetric(*changed)}

    def _check_asked(self, routers: Sequence[_Router]) -> None:
        if any(router.chosen is None for router in routers):
            raise ValueError(f"a layer of {self._model} has not asked its router: its experts cannot be recorded or replayed")

    def check_known(self) -> None:
        """`ValueError` for a model without routers, or with others than are known."""
        if not self._routers:
            raise ValueError(f"{self._model} has no routers of experts that are known here")


def check_replayable(folder: Path) -> None:
    """Raises `ValueError` unless the folder's model is a mixture whose routing can be replayed."""
    with torch.device("meta"):
        Routers(AutoModelForCausalLM.from_config(load_config(folder))).check_known()


def routed_layers(folder: Path) -> tuple[list[int], str]:
    """The numbers of the layers that have experts, and the type of the experts' numbers, of the folder's model."""
    check_replayable(folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(load_config(folder))
    routers = {name: module for name, module in model.named_modules() if is_router(module)}
    dtype = type_for(max(int(module.num_experts) for module in routers.values()))
    layers = [int(part) for name in routers for part in name.split(".") if part.isdecimal()]
    return layers, next(name for name, each in TYPES.items() if each == dtype)


class _Router:
    """Stands in a router's forward."""

    def __init__(self, module: Any) -> None:
        self._forward: Callable[..., Any] = module.forward
        self._kind = type(module).__name__
        self.top_k, self.experts = int(module.top_k), int(module.num_experts)
        self.records = False
        self.given: Tensor | None = None
        self.once_more: deque[Tensor] = deque()
        """Choices of the forwards that may be computed again, in their order."""
        self.first = True
        """False once tokens are computed again."""
        self.chosen: Tensor | None = None
        """[tokens, top_k] by the last forward that recorded or replayed."""
        self.changed = self.known = torch.zeros(())
        module.forward = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.once_more and not self.first:
            self.given = self.once_more.popleft()
        if self.given is None and not self.records:
            return self._forward(*args, **kwargs)
        choice = _Choice(self)
        with choice:
            said = self._forward(*args, **kwargs)
        if choice.times != 1:
            raise ValueError(f"{self._kind} chooses its experts {choice.times} times: they cannot be recorded or replayed")
        return said

    def forget(self) -> Tensor:
        """Returns the choice, and forgets it."""
        chosen, self.chosen = self.chosen, None
        assert chosen is not None
        return chosen

    def choose(self, scores: Tensor, own: Tensor) -> Tensor:
        """[tokens, top_k] in place of `own`. `scores`: [tokens, experts]"""
        if self.given is None:
            self.chosen = own.to(type_for(self.experts))
            return own
        known = (self.given >= 0) & (self.given < self.experts)
        taken = torch.where(known, self.given, own)
        kept = (taken[:, :, None] == own[:, None]).any(2)
        self.chosen, self.changed, self.known = taken, (known & ~kept).sum(), known.sum()
        return taken


class _Choice(TorchFunctionMode):
    def __init__(self, router: _Router) -> None:
        super().__init__()
        self._router = router
        self.times = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        said = func(*args, **(kwargs or {}))
        if func not in (torch.topk, Tensor.topk):
            return said
        scores, router = args[0], self._router
        # Routers that choose groups of experts first do it by other sizes, or another number of dimensions.
        if scores.shape[1:] != (router.experts,) or said.indices.shape[1:] != (router.top_k,):
            return said
        self.times += 1
        taken = router.choose(scores, said.indices)
        if taken is said.indices:
            return said
        return torch.return_types.topk((scores.gather(1, taken), taken))
