"""A user's own callbacks, filters, estimators and losses: found, and tried before a worker starts."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from roll.core.algorithms.pg_variants import get_policy_loss
from roll.core.algorithms.policy_loss import LossInputs, PolicyLoss
from roll.core.algorithms.sequence_advantages import advantage_estimator
from roll.core.configs.dotted_path import import_object
from roll.core.configs.flow import FlowConfig
from roll.core.configs.losses import PolicyLossArgs
from roll.core.configs.problems import OWN_CODE, Collector
from roll.core.errors import boundary, contained
from roll.core.groups.filters import GroupFilter
from roll.core.record.callbacks import Callback


def own_callbacks(flow: FlowConfig, collect: Collector) -> tuple[Callback, ...]:
    """Returns the callbacks named in the configuration."""
    made = [collect("flow.callbacks", path, partial(_own_callback, path), OWN_CODE) for path in flow.callbacks]
    return tuple(callback for callback in made if callback is not None)


def _own_callback(path: str) -> Callback:
    cls = import_object(path)
    if not (isinstance(cls, type) and issubclass(cls, Callback)):
        raise ValueError(f"{cls!r} is no subclass of Callback")
    with boundary(ValueError, f"{cls.__qualname__} cannot be made"):
        callback = cls()
    return checked(callback)


def checked(callback: Callback) -> Callback:
    """Raises `ValueError` for methods that are never called, or never awaited."""
    events = [name for name in vars(Callback) if name.startswith("on_")]
    for name in (name for name in dir(callback) if name.startswith("on_")):
        method = getattr(callback, name)
        if name not in events:
            raise ValueError(f"{type(callback).__qualname__}.{name} is no event: {', '.join(events)}")
        if inspect.iscoroutinefunction(method):
            raise ValueError(f"{type(callback).__qualname__}.{name} is a coroutine: write def, it runs in a thread")
        told = [None] * len(inspect.signature(getattr(Callback, name)).parameters)
        try:
            inspect.signature(method).bind(*told[1:])
        except TypeError as error:
            wanted = inspect.signature(getattr(Callback, name))
            raise ValueError(f"{type(callback).__qualname__}.{name} must take {wanted}: {error}") from error
    return callback


def try_estimator(name: str) -> None:
    """Evaluates the estimator on a made-up batch: a user's function fails here, not in the first step. Raises `ValueError` with
    the reason."""
    rewards, group_ids = torch.tensor([1.0, 0.0, 0.5, 0.5, 1.0]), torch.tensor([0, 0, 1, 1, 2])
    function = advantage_estimator.get(name)
    with boundary(ValueError, f"adv_estimator {name!r} fails on a small batch"):
        result = function(rewards, group_ids, torch.ones_like(group_ids))
        is_right = result.shape == rewards.shape and bool(torch.isfinite(result).all())
    if not is_right:
        raise ValueError(
            f"adv_estimator {name!r} must return one finite advantage a sample: rewards {rewards.tolist()} gave {result}"
        )


def try_policy_loss(name: str, args: PolicyLossArgs) -> PolicyLoss:
    """Returns the loss after one evaluation on a made-up batch: a user's function fails here, not in the first training step.

    Raises `ValueError` with the reason."""
    function = get_policy_loss(name)
    logprobs = torch.tensor([[-1.0, -0.5, 0.0]], requires_grad=True)
    mask = torch.tensor([[True, True, False]])
    inputs = LossInputs(logprobs, logprobs.detach() - 0.1, mask.float(), mask, torch.ones(1))
    with boundary(ValueError, f"pg_variant {name!r} fails on a small batch"):
        loss, sums = function(inputs, args)
        is_loss = loss.shape == logprobs.shape and loss.requires_grad
        are_sums = all(value.dim() == 0 for value in sums.values())
    if not is_loss or not are_sums:
        raise ValueError(f"pg_variant {name!r} must return a per-token loss [B, T] with gradient, and a dict of scalar tensors")
    (gradient,) = torch.autograd.grad(loss[mask].sum(), logprobs)
    if not (loss[mask].isfinite().all() and gradient.isfinite().all()):
        raise ValueError(
            f"pg_variant {name!r} is not finite on a small batch: {loss[mask].tolist()}, gradient {gradient[mask].tolist()}"
        )
    return function


def own_filter(path: str) -> GroupFilter:
    """A function of a group's rewards, or a class whose instances are one."""
    found: Any = import_object(path)
    made: Any = found() if inspect.isclass(found) else found

    def checked(rewards: Sequence[float]) -> str | None:
        if isinstance(verdict := contained(made, rewards), str | None):
            return verdict
        raise ValueError(f"{path} must return the reason to drop a group (text) or None, not {verdict!r}")

    with boundary(ValueError, "it fails on the rewards [0.0, 1.0]"):
        checked([0.0, 1.0])
    return checked
