"""A device `stand:0` that computes on the CPU and is as particular as an accelerator: for processes that have none.

It refuses operations on tensors of both devices, and NumPy, and it counts what an accelerator's host has to wait for: values that
come to the host, shapes that depend on values, and copies between the devices. It shows neither streams nor memory nor kernels.
Whoever imports this has the device, for good."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "stand"
_setup_privateuseone_for_python_backend(NAME)
DEVICE = torch.device(NAME, 0)
waits: Counter[str] = Counter()
"""By kind: item, shape, to host, from host."""
_OF_BOTH = {"copy_", "_to_copy", "index", "index_put", "index_put_", "_index_put_impl_", "_fused_adamw_"}
_SHAPED_BY_VALUES = {"nonzero", "masked_select", "unique", "_unique2", "is_nonzero", "equal"}


class OnDevice(Tensor):
    @staticmethod
    def __new__(cls, held: Tensor) -> OnDevice:
        made: OnDevice = torch.Tensor._make_wrapper_subclass(
            cls, held.size(), strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype, device=DEVICE
        )
        made.held = held
        return made

    held: Tensor

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"OnDevice({self.held!r})"

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, other: OnDevice) -> None:
        self.held = other.held

    def tolist(self) -> Any:
        waits["item"] += 1
        return self.held.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError(f"can't convert {NAME}:0 device type tensor to numpy")

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _call(func, args, kwargs or {})


class Everywhere(TorchDispatchMode):
    """Tensors that are made with `device=` or from host tensors are seen, too."""

    def __enter__(self) -> Everywhere:
        torch._C._set_only_lift_cpu_tensors(True)  # of this thread: `torch.tensor(..., device=)` copies as other calls do
        super().__enter__()
        return self

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _call(func, args, kwargs or {})


@contextlib.contextmanager
def everywhere() -> Iterator[None]:
    """In this thread, and in those that begin meanwhile."""
    run = threading.Thread.run

    def inside(thread: threading.Thread) -> None:
        with Everywhere():
            run(thread)

    setattr(threading.Thread, "run", inside)  # noqa: B010
    try:
        with Everywhere():
            yield
    finally:
        setattr(threading.Thread, "run", run)  # noqa: B010


def _call(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if torch.is_inference_mode_enabled() and torch._C._dispatch_has_kernel_for_dispatch_key(
        func.name(), "CompositeImplicitAutograd"
    ):
        with Everywhere():
            made = func.decompose(*args, **kwargs)
        if made is not NotImplemented:
            return made
    name = func.overloadpacket.__name__
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    here = [tensor for tensor in tensors if isinstance(tensor, OnDevice)]
    hosts = [tensor for tensor in tensors if not isinstance(tensor, OnDevice)]
    _refuse_mixed(name, args, here, hosts)
    asked = kwargs.get("device")
    target = None if asked is None else torch.device(asked).type
    _count(name, args, target, here, hosts)
    given = {**kwargs, **({} if target is None else {"device": "cpu" if target == NAME else asked})}
    if "pin_memory" in given:
        given["pin_memory"] = False
    with _disable_current_modes():
        out = func(*tree_map(_held, args), **tree_map(_held, given))
    if name == "_local_scalar_dense":
        return out
    stays = target == NAME if target is not None else bool(here)
    if name in ("copy_", "index_put_"):
        stays = isinstance(args[0], OnDevice)
    if not stays:
        return out
    wrapped = tree_map(lambda each: OnDevice(each) if type(each) is Tensor else each, out)
    return return_and_correct_aliasing(func, args, kwargs, wrapped) if here else wrapped


def _refuse_mixed(name: str, args: Any, here: list[Tensor], hosts: list[Tensor]) -> None:
    if here and name not in _OF_BOTH and any(tensor.dim() for tensor in hosts):
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {NAME}:0 and cpu ({name})"
        )
    if here and name == "index" and not isinstance(args[0], OnDevice):
        raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")


def _count(name: str, args: Any, target: str | None, here: list[Tensor], hosts: list[Tensor]) -> None:
    if not here and target != NAME:
        return
    if name == "_local_scalar_dense":
        waits["item"] += 1
    elif name in _SHAPED_BY_VALUES or (name == "index" and any(i is not None and i.dtype == torch.bool for i in args[1])):
        waits["shape"] += 1
    elif name == "_to_copy" and target == "cpu":
        waits["to host"] += 1
    elif name == "_to_copy" and target == NAME and hosts:
        waits["from host"] += 1
    elif name == "copy_" and isinstance(args[0], OnDevice) != isinstance(args[1], OnDevice):
        waits["from host" if isinstance(args[0], OnDevice) else "to host"] += 1


def _held(each: object) -> object:
    return each.held if isinstance(each, OnDevice) else each


torch.__future__.set_swap_module_params_on_conversion(True)
