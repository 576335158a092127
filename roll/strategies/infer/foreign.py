"""An engine that runs in another interpreter (`strategy_config.python`), for packages that pin against those of the trainer.

The process there (`EngineHost`) makes the same class as would run here, with this project's code and that interpreter's
packages. It ends with its worker, however that ends; when it is gone, calls raise `EngineError`. Requests, results and errors
go through the child's messages. Weights do not: a bucket is a memory file, of which the call has the path.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from typing import Any

from safetensors import safe_open

from roll.core.data.extras import Extras
from roll.core.data.sample import VersionSpan
from roll.core.errors import CallFailed, ChildDied, EngineClosed, EngineError
from roll.core.weights.adapter import AdapterSource
from roll.core.weights.bucket import Bucket, WeightManifest
from roll.core.workers.infer_engines import make_infer_strategy
from roll.core.workers.infer_interface import (
    EngineStats,
    GenerateRequest,
    GenerateResult,
    MeasuringStrategy,
    OwnMetric,
    SamplingParams,
    WeightUpdateMode,
)
from roll.platform.child import Child
from roll.platform.interpreters import environment
from roll.platform.temp_folder import own_package
from roll.transports.node_files import node_file, path_of

ERRORS: dict[str, type[Exception]] = {error.__name__: error for error in (ValueError, EngineError, EngineClosed)}
"""The errors that keep their type on the way."""


def error_of(failure: CallFailed) -> Exception:
    known = next((ERRORS[name] for name in failure.types if name in ERRORS), RuntimeError)
    return known(failure.text if failure.types[0] in (*ERRORS, "RuntimeError") else str(failure))


def request_of(plain: dict[str, Any]) -> GenerateRequest:
    sampling = plain["sampling"]
    sampling |= {name: tuple(sampling[name]) for name in ("stop_token_ids", "stop_strings")}
    lists = {name: tuple(plain[name]) for name in ("prompt_ids", "partial_ids")}
    return GenerateRequest(**(plain | lists | {"sampling": SamplingParams(**sampling)}))


def result_of(plain: dict[str, Any]) -> GenerateResult:
    versions = [VersionSpan(*span) for span in plain["versions"]]
    return GenerateResult(**(plain | {"versions": versions, "extras": Extras.from_json(plain["extras"])}))


CLOSING_S = 30.0
"""Time for the process to end by itself when the engine is closed."""


class OtherInterpreterEngine:
    """All methods belong to one event loop."""

    host = "roll.strategies.infer.foreign:EngineHost"
    """The class there that is made from a strategy's name and options."""

    def __init__(self, python: str, strategy_name: str, options: Mapping[str, object]) -> None:
        """Starts the engine and waits until it is ready. `options` as those of the strategy's class, whose errors are raised
        here; `EngineError` if the process ends instead."""
        self._what = f"the {strategy_name} engine in {python}"
        self._closed = False
        self._path = own_package("engine")
        plain = {name: asdict(value) if is_dataclass(value) else value for name, value in options.items()}  # type: ignore[arg-type]
        self._child = Child(
            self.host,
            strategy_name,
            plain,
            environment=environment() | {"PYTHONPATH": str(self._path.path)},
            python=python,
            side_by_side=True,
        )
        try:
            self._child.ready_blocking()
        except (CallFailed, ChildDied) as failure:
            self._path.remove()
            raise self._error(failure) from None

    async def close(self) -> None:
        if self._closed:
            return
        with contextlib.suppress(EngineError, TimeoutError):  # the engine dies or hangs: its process is ended below
            await asyncio.wait_for(self._call("close"), CLOSING_S)  # closing ends the calls that wait
        self._closed = True
        await self._child.kill(CLOSING_S)
        self._path.remove()

    async def _call(self, method: str, *arguments: object) -> Any:
        """Cancelling it cancels the call there."""
        if self._closed:
            raise EngineClosed("the inference engine was closed")
        try:
            return await self._child.call(method, *arguments)
        except (CallFailed, ChildDied) as failure:
            raise self._error(failure) from None

    def _error(self, failure: CallFailed | ChildDied) -> Exception:
        if isinstance(failure, CallFailed):
            return error_of(failure)
        if self._closed:
            return EngineClosed("the inference engine was closed")
        return EngineError(f"{self._what} ended: {failure} (its own messages are above)")


class OtherInterpreterStrategy(OtherInterpreterEngine):
    """Implements `InferStrategy`."""

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        return result_of(await self._call("generate", asdict(request)))

    async def abort(self, request_ids: Sequence[str] | None = None) -> None:
        await self._call("abort", None if request_ids is None else list(request_ids))

    async def receive_bucket(self, version: int, bucket: Bucket) -> None:
        file = await asyncio.to_thread(node_file, bucket)
        try:
            await self._call("receive_bucket", version, path_of(file), bucket.checksum)
        finally:
            os.close(file)

    async def activate_weights(self, manifest: WeightManifest, mode: WeightUpdateMode) -> float:
        pause: float = await self._call("activate_weights", asdict(manifest), mode)
        return pause

    async def sleep(self) -> None:
        await self._call("sleep")

    async def wake(self) -> None:
        await self._call("wake")

    async def stats(self) -> EngineStats:
        return EngineStats(**await self._call("stats"))

    async def own_metrics(self) -> list[OwnMetric]:
        found: list[OwnMetric] = await self._call("own_metrics")
        return found


class EngineHost:
    """The strategy's methods, with arguments and results that JSON knows."""

    def __init__(self, strategy_name: str, options: dict[str, Any]) -> None:
        if options.get("adapters") is not None:
            options["adapters"] = AdapterSource(**options["adapters"])
        self._strategy = make_infer_strategy(strategy_name, options)
        self.abort, self.close = self._strategy.abort, self._strategy.close
        self.sleep, self.wake = self._strategy.sleep, self._strategy.wake

    async def generate(self, request: dict[str, Any]) -> dict[str, Any]:
        result = await self._strategy.generate(request_of(request))
        return {field.name: getattr(result, field.name) for field in fields(result)} | {"extras": result.extras.to_json()}

    async def receive_bucket(self, version: int, path: str, checksum: int) -> None:
        with safe_open(path, framework="pt") as file:
            bucket = Bucket({name: file.get_tensor(name) for name in file.offset_keys()}, checksum)
        await self._strategy.receive_bucket(version, bucket)

    async def activate_weights(self, manifest: dict[str, Any], mode: WeightUpdateMode) -> float:
        return await self._strategy.activate_weights(WeightManifest(**manifest), mode)

    async def stats(self) -> dict[str, Any]:
        return asdict(await self._strategy.stats())

    async def own_metrics(self) -> list[OwnMetric]:
        return await self._strategy.own_metrics() if isinstance(self._strategy, MeasuringStrategy) else []
