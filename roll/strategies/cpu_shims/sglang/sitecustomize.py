"""Lets SGLang be imported on a machine without CUDA. Python runs this file in every process of the server, because the strategy
puts its folder on their PYTHONPATH; nothing installed is changed.

- torchvision's wheel is a CUDA build: beside a CPU torch its operators do not load, and their declarations are missed at import.
- what the server keeps of experts in host memory is pinned for a device, and without one there is nothing to pin it for.
- triton (a gigabyte) is imported for GPU kernels that never run here: hollow modules take its place where it is not installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

NO_ACTIVE_DRIVER = "driver"
"""SGLang asks `triton.runtime.driver` for the device, and takes the CPU if there is no such thing."""


class Hollow:
    """Stands for whatever a kernel's source needs while it is only defined: decorator, data type, constant, base class."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        decorates = len(args) == 1 and callable(args[0]) and not kwargs
        return args[0] if decorates else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == NO_ACTIVE_DRIVER:
            raise AttributeError(name)
        return Hollow()

    def __getitem__(self, key: Any) -> Hollow:
        return self

    def __mul__(self, other: Any) -> Hollow:
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return (object,)


class HollowModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == NO_ACTIVE_DRIVER:
            raise AttributeError(name)
        if name[:1].isupper():
            return type(name, (), {"__init__": lambda self, *args, **kwargs: None})
        return sys.modules.get(f"{self.__name__}.{name}") or Hollow()


class HollowTriton(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name == "triton" or name.startswith("triton."):
            return ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = HollowModule(spec.name)
        if spec.name == "triton":
            for key, value in {
                "__version__": "0.0.0",
                "cdiv": lambda a, b: -(a // -b),
                "next_power_of_2": lambda n: 1 << (n - 1).bit_length() if n > 0 else 1,
            }.items():
                setattr(module, key, value)
        return module

    def exec_module(self, module: ModuleType) -> None: ...


class TorchvisionOperators(MetaPathFinder):
    """Finds nothing itself; declares torchvision's operators just before it is imported for the first time."""

    def __init__(self) -> None:
        self._library: Any = None

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        if name != "torchvision" or self._library is not None:
            return
        import torch

        self._library = torch.library.Library("torchvision", "FRAGMENT")
        for operator in ("nms", "qnms"):
            self._library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


class UnpinnedMemory(MetaPathFinder):
    """Finds nothing itself; gives a CPU's host memory its allocator before the recorder of experts asks for one."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        if name != "sglang.srt.state_capturer.base":
            return
        importlib.import_module("sglang.srt.mem_cache.memory_pool")
        common = importlib.import_module("sglang.srt.mem_cache.pool_host.common")
        common.ALLOC_MEMORY_FUNCS["cpu"] = lambda dims, dtype, allocator, **_: allocator.allocate(dims, dtype=dtype, device="cpu")


if importlib.util.find_spec("triton") is None:
    sys.meta_path.insert(0, HollowTriton())
sys.meta_path[:0] = [TorchvisionOperators(), UnpinnedMemory()]
