"""Lets vLLM's models that see be imported where torchvision, whose wheels come with a CUDA torch, is not installed.

vLLM imports it for its own processors of images, which never see one here. transformers is told the truth, that there is none.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

NAME = "torchvision"


def _refuse(self: Any, *args: Any, **kwargs: Any) -> None:
    raise ModuleNotFoundError(f"{type(self).__name__} is of torchvision, which is not installed: pip install torchvision")


class HollowModule(ModuleType):
    """Every name is a class, which may be named in annotations and defaults, and cannot be called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": _refuse})


class AbsentTorchvision(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        ours = name == NAME or name.startswith(f"{NAME}.")
        return ModuleSpec(name, self, is_package=True) if ours and _transformers_knows() else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return HollowModule(spec.name)

    def exec_module(self, module: ModuleType) -> None: ...


def _transformers_knows() -> bool:
    """True if transformers has looked for torchvision, which it does once."""
    module: Any = sys.modules.get("transformers.utils.import_utils")
    looks = getattr(module, "is_torchvision_available", None)
    return looks is not None and looks.cache_info().currsize > 0


def stand_in() -> None:
    """Installs the stand-in in this process, unless torchvision is installed."""
    if importlib.util.find_spec(NAME) is None and not any(isinstance(each, AbsentTorchvision) for each in sys.meta_path):
        sys.meta_path.append(AbsentTorchvision())
