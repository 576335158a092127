"""Checks of the back ends on one GPU, in this process, without Ray: `make test-gpu`.

Where torch sees no GPU the folder is skipped before any of its modules is imported. Computation is in bf16, the truth is a plain
forward of transformers in float32 on the CPU.
"""

from __future__ import annotations

import os
import runpy
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_models import tiny_qwen2

from roll.strategies.infer.vllm.arguments import check_installed

DEVICE = "cuda:0"
VLLM_PYTHON = os.environ.get("VLLM_PYTHON") or str(Path(__file__).parents[2] / ".venv-vllm/bin/python")
"""The interpreter that has vLLM for GPUs; by default where docs_roll/engines.md puts it."""
HERE = Path(__file__).parent
STRATEGIES = HERE.parent / "strategies"


class WithoutGPU(pytest.Module):
    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        pytest.skip("needs a GPU: torch.cuda.is_available() is False")


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    if torch.device(DEVICE).type != "cuda" or torch.cuda.is_available():
        return None
    return WithoutGPU.from_parent(parent, path=module_path)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One process of pytest-xdist has the GPU."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            item.add_marker(pytest.mark.timeout(600))
            item.add_marker(pytest.mark.xdist_group("gpu"))


def make_model(seed: int = 0, width: int = 256) -> Any:
    """4 million random parameters (of twice the width 16), with heads of a size that every attention kernel knows, and next-token
    distributions that are far from uniform: log-probs of other weights differ by about 1 in the mean."""
    sizes = {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": 4, "num_attention_heads": width // 64}
    return tiny_qwen2(256, seed=seed, num_key_value_heads=2, max_position_embeddings=512, initializer_range=0.04, **sizes)


@pytest.fixture(scope="session")
def device() -> str:
    return DEVICE


@pytest.fixture(scope="session")
def vllm_python(device: str) -> str | None:
    """None: the present interpreter, which on CPUs has vLLM. Skips where there is none."""
    python = VLLM_PYTHON if device != "cpu" else None
    try:
        check_installed(python)
    except ValueError as error:
        pytest.skip(f"{error} (see docs_roll/engines.md; VLLM_PYTHON names its interpreter)")
    return python


@pytest.fixture(scope="session")
def infer_lab() -> SimpleNamespace:
    """The helpers of the engines' tests, and this folder's model."""
    return SimpleNamespace(**runpy.run_path(str(STRATEGIES / "infer" / "conftest.py")) | {"make_model": make_model})


@pytest.fixture(scope="session")
def train_lab() -> SimpleNamespace:
    """The batches, losses and options of the training back ends' tests."""
    return SimpleNamespace(**runpy.run_path(str(STRATEGIES / "train" / "rank_program.py")))


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory, infer_lab: SimpleNamespace) -> str:
    """The model of version 0 and a byte-level tokenizer."""
    folder = str(tmp_path_factory.mktemp("model"))
    make_model().save_pretrained(folder)
    infer_lab.make_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def large_model_path(tmp_path_factory: pytest.TempPathFactory, infer_lab: SimpleNamespace) -> str:
    """Of 16 million parameters."""
    folder = str(tmp_path_factory.mktemp("large-model"))
    make_model(width=512).save_pretrained(folder)
    infer_lab.make_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def _settings_of_torch() -> Iterator[None]:
    """Back ends set them for their process."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
