"""Child process of RollRewardWorker: runs the worker itself, asked for one response at a time."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from enum import Enum, auto
from statistics import fmean
from typing import Any, TypeVar

import numpy as np
import torch

from roll.compat.code.workers import PipelineConfig, WorkerConfig, default_tokenizer_provider
from roll.core.configs.dotted_path import import_object

F = TypeVar("F", bound=Callable[..., Any])


class Dispatch(Enum):
    """ROLL's ways to hand a call to several workers. Here every call is one worker's."""

    ONE_TO_ALL = auto()
    ONE_TO_ALL_ONE = auto()
    ALL_TO_ALL = auto()
    DP_MP_COMPUTE = auto()
    DP_MP_DISPATCH_FIRST = auto()
    DP_MP_DISPATCH_FIRST_COLLECT_ALL = auto()


class Execute(Enum):
    ALL = 0
    RANK_ZERO = 1


def register(*args: object, **kwargs: object) -> Callable[[F], F]:
    """Leaves the method as it is: there is nothing to dispatch."""
    return lambda method: method


class Columns(dict[str, Any]):
    """Values by key. A missing key is refused with a list of the others."""

    def __missing__(self, key: str) -> Any:
        raise KeyError(f"{key} is not in the batch, which has {', '.join(sorted(self)) or 'nothing'}")

    @property
    def batch_size(self) -> torch.Size:
        return torch.Size([len(next(iter(self.values()), ()))])


class DataProto:
    """The part of ROLL's class that code touches that grades samples: columns, their slices, and `meta_info`."""

    def __init__(
        self,
        batch: Mapping[str, torch.Tensor] | None = None,
        non_tensor_batch: Mapping[str, Any] | None = None,
        meta_info: dict[str, Any] | None = None,
    ) -> None:
        self.batch, self.non_tensor_batch = Columns(batch or {}), Columns(non_tensor_batch or {})
        self.meta_info = {} if meta_info is None else meta_info
        lengths = {key: len(value) for key, value in (self.batch | self.non_tensor_batch).items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"columns of one batch have different lengths: {lengths}")

    @classmethod
    def from_dict(
        cls,
        tensors: Mapping[str, torch.Tensor],
        non_tensors: Mapping[str, Any] | None = None,
        meta_info: dict[str, Any] | None = None,
    ) -> DataProto:
        return cls(tensors, {key: _objects(value) for key, value in (non_tensors or {}).items()}, meta_info)

    @classmethod
    def from_single_dict(cls, data: Mapping[str, Any], meta_info: dict[str, Any] | None = None) -> DataProto:
        tensors = {key: value for key, value in data.items() if isinstance(value, torch.Tensor)}
        return cls.from_dict(tensors, {key: value for key, value in data.items() if key not in tensors}, meta_info)

    def __len__(self) -> int:
        return len(next(iter((self.batch | self.non_tensor_batch).values()), ()))

    def __getitem__(self, item: Any) -> Any:
        """Returns a column by its key; else a DataProto of these rows."""
        if isinstance(item, str):
            return self.batch[item] if item in self.batch else self.non_tensor_batch[item]
        rows = slice(item, item + 1 or None) if isinstance(item, int | np.integer) else item
        tensors, others = ({key: value[rows] for key, value in each.items()} for each in (self.batch, self.non_tensor_batch))
        return DataProto(tensors, others, self.meta_info)

    def to(self, device: Any) -> DataProto:
        self.batch = Columns({key: value.to(device) for key, value in self.batch.items()})
        return self

    def __getattr__(self, name: str) -> Any:
        has = "columns, slices, from_dict, from_single_dict, to, meta_info"
        raise AttributeError(f"ROLL's DataProto.{name} is not here; of it there are {has}")


def _objects(values: Any) -> Any:
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


REWARD = "response_level_rewards"


class RewardChild:
    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = WorkerConfig(config)
        self._worker = import_object(config["worker_cls"])(worker_config=self._config)
        self._worker.initialize(PipelineConfig(self._config))

    def grade(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        answer = self._worker.compute_rewards(self._batch(asked))
        return graded(asyncio.run(answer) if inspect.iscoroutine(answer) else answer)

    def _batch(self, asked: Mapping[str, Any]) -> DataProto:
        """Returns one row, so without padding."""
        response, text = asked["response_ids"], asked["response_text"]
        if text and not response:  # a text that no engine has sampled
            response = default_tokenizer_provider(self._config.model_args).encode(text, add_special_tokens=False)
        prompt = asked["prompt_ids"]
        ids = torch.tensor([[*prompt, *response]], dtype=torch.long)
        of_response = torch.arange(ids.shape[1])[None] >= len(prompt)
        tensors = {
            "prompts": ids[:, : len(prompt)],
            "responses": ids[:, len(prompt) :],
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "position_ids": torch.arange(ids.shape[1])[None],
            "prompt_mask": (~of_response).long(),
            "response_mask": of_response.long(),
        }
        columns = {name: [value] for name, value in asked["columns"].items()}
        return DataProto.from_dict(tensors, columns, {"global_step": 0})


def graded(output: Any) -> dict[str, Any]:
    """Returns the reward, and as its parts every other single number: of the batch, and of meta_info["metrics"]."""
    if not isinstance(output, DataProto):
        raise TypeError(f"compute_rewards must return a DataProto, not {type(output).__name__}")
    if len(output) != 1:
        raise ValueError(f"compute_rewards was given one response, and returned {len(output)} rows")
    values = {name: value.item() for name, value in output.batch.items() if name != REWARD and value.dim() == 1}
    for name, metric in (output.meta_info.get("metrics") or {}).items():
        numbers = [each for each in (metric if isinstance(metric, list) else [metric]) if isinstance(each, int | float)]
        values |= {name: fmean(numbers)} if numbers else {}
    return {"reward": output.batch[REWARD].item(), "parts": values}
