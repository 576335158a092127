"""Checks with the model of `make demo-real`, a real one with a real tokenizer: `make test-real`, some minutes, float32.

Where the model was not made the folder is skipped. SGLang takes part where its interpreter is found.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from train_specs import fsdp2_spec
from transformers import AutoTokenizer

from roll.core.data.token_batch import TokenBatch
from roll.core.workers.infer_engines import make_infer_strategy
from roll.core.workers.infer_interface import GenerateRequest, GenerateResult, InferStrategy, SamplingParams
from roll.core.workers.train_backends import make_train_strategy
from roll.core.workers.train_interface import RankContext
from roll.strategies.infer.sglang.arguments import interpreter

HERE = Path(__file__).parent
MODEL = Path(os.environ.get("REAL_MODEL") or HERE.parents[1] / "examples/smollm2/cache/model")
SLOTS, LONGEST = 8, 1536


class WithoutModel(pytest.Module):
    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        pytest.skip(f"there is no model in {MODEL}: make test-real makes it; REAL_MODEL names another folder")


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    return None if (MODEL / "config.json").exists() else WithoutModel.from_parent(parent, path=module_path)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The model is in memory once for each engine: one process of pytest-xdist has it."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.real)
            item.add_marker(pytest.mark.timeout(900))
            item.add_marker(pytest.mark.xdist_group("real"))


class Served:
    """An engine with its event loop."""

    def __init__(self, name: str) -> None:
        options: dict[str, Any] = {"model_path": str(MODEL), "max_running_requests": SLOTS, "max_length": LONGEST}
        own = {"engine_args": {"python": interpreter(None)}} if name == "sglang" else {}
        self._runner = asyncio.Runner()
        self.engine: InferStrategy = make_infer_strategy(name, options | {"dtype": "float32"} | own)

    def run(self, body: Any) -> Any:
        return self._runner.run(asyncio.wait_for(body, 600))

    def generate(self, requests: Sequence[GenerateRequest]) -> list[GenerateResult]:
        async def body() -> list[GenerateResult]:
            return await asyncio.gather(*map(self.engine.generate, requests))

        results: list[GenerateResult] = self.run(body())
        return results

    def close(self) -> None:
        self.run(self.engine.close())
        self._runner.close()


@pytest.fixture(scope="session", params=["hf_infer", "vllm", "sglang"])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    if request.param == "vllm":
        pytest.importorskip("vllm")
    if request.param == "sglang" and interpreter(None) is None:
        pytest.skip("SGLang is not installed here (make env-sglang)")
    served = Served(str(request.param))
    yield served
    served.close()


@pytest.fixture(scope="session")
def model_path() -> Path:
    return MODEL


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(MODEL)


@pytest.fixture(scope="session")
def conversations() -> dict[str, list[dict[str, str]]]:
    """Real text, by what is particular about it."""
    content: dict[str, list[dict[str, str]]] = json.loads((HERE / "conversations.json").read_text(encoding="utf-8"))
    page = (HERE.parents[1] / "docs_roll" / "design.md").read_text(encoding="utf-8")
    return content | {"a long prompt": [{"role": "user", "content": f"{page[:4000]}\n\nWhat is this text about?"}]}


@pytest.fixture(scope="session")
def trainer(served: Served) -> Iterator[Any]:
    """Each engine's tests end with a step of it: the next engine has another one."""
    strategy = make_train_strategy(RankContext(), fsdp2_spec(MODEL, dtype="fp32", learning_rate=1e-4, warmup_steps=0))
    yield strategy
    strategy.close()


class Lab:
    """What test modules share (they cannot import one another)."""

    @staticmethod
    def prompt(tokenizer: Any, messages: Sequence[dict[str, str]]) -> tuple[int, ...]:
        ids = tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, return_dict=False)
        return tuple(ids)

    @staticmethod
    def request(name: str, prompt: Sequence[int], **sampling: Any) -> GenerateRequest:
        return GenerateRequest(name, tuple(prompt), SamplingParams(**{"stop_token_ids": (2,), **sampling}))

    @staticmethod
    def batch(requests: Sequence[GenerateRequest], results: Sequence[GenerateResult]) -> TokenBatch:
        """What a trainer would be given of these responses."""
        pairs = list(zip(requests, results, strict=True))
        chain = itertools.chain.from_iterable
        flat = torch.tensor(list(chain([0.0] * len(request.prompt_ids) + list(result.logprobs) for request, result in pairs)))
        mask = chain([False] * len(request.prompt_ids) + [True] * len(result.token_ids) for request, result in pairs)
        return TokenBatch(
            lengths=torch.tensor([len(request.prompt_ids) + len(result.token_ids) for request, result in pairs]),
            scores=torch.zeros(len(pairs)),
            temperatures=torch.tensor([request.sampling.temperature or 1.0 for request in requests]),
            tokens=torch.tensor(list(chain([*request.prompt_ids, *result.token_ids] for request, result in pairs))),
            loss_mask=torch.tensor(list(mask)),
            behaviour_logprobs=flat,
            advantages=torch.zeros_like(flat),
        )


@pytest.fixture(scope="session")
def lab() -> type[Lab]:
    return Lab
