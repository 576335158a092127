"""Inference engines by `strategy_name`; an engine's packages are imported only when it is used. `EngineHost` is the far side of
an engine in another interpreter (`foreign`)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from safetensors import safe_open

from roll.strategies.infer.foreign import OtherInterpreterStrategy, request_of
from roll.strategies.infer.interface import InferStrategy, WeightUpdateMode
from roll.weights.adapter import AdapterSource
from roll.weights.bucket import Bucket, WeightManifest


def make_infer_strategy(name: str, options: dict[str, Any]) -> InferStrategy:
    if name == "hf_infer":
        from roll.strategies.infer.hf.strategy import HFInferStrategy

        return HFInferStrategy(**options)
    if name == "vllm":
        if python := (options.get("engine_args") or {}).get("python"):
            engine_args = {key: value for key, value in options["engine_args"].items() if key != "python"}
            return OtherInterpreterStrategy(python, name, options | {"engine_args": engine_args})
        from roll.strategies.infer.vllm.strategy import VLLMInferStrategy

        return VLLMInferStrategy(**options)
    if name == "sglang":
        from roll.strategies.infer.sglang.strategy import SGLangInferStrategy

        return SGLangInferStrategy(**options)
    raise ValueError(f"unknown inference strategy '{name}'; known: hf_infer, vllm, sglang")


class EngineHost:
    """The strategy's methods, with arguments and results that JSON knows."""

    def __init__(self, strategy_name: str, options: dict[str, Any]) -> None:
        if options.get("adapters") is not None:
            options["adapters"] = AdapterSource(**options["adapters"])
        self._strategy = make_infer_strategy(strategy_name, options)
        self.abort, self.close = self._strategy.abort, self._strategy.close
        self.sleep, self.wake = self._strategy.sleep, self._strategy.wake

    async def generate(self, request: dict[str, Any]) -> dict[str, Any]:
        return asdict(await self._strategy.generate(request_of(request)))

    async def receive_bucket(self, version: int, path: str, checksum: int) -> None:
        with safe_open(path, framework="pt") as file:
            bucket = Bucket({name: file.get_tensor(name) for name in file.offset_keys()}, checksum)
        await self._strategy.receive_bucket(version, bucket)

    async def activate_weights(self, manifest: dict[str, Any], mode: WeightUpdateMode) -> float:
        return await self._strategy.activate_weights(WeightManifest(**manifest), mode)

    async def stats(self) -> dict[str, Any]:
        return asdict(await self._strategy.stats())
