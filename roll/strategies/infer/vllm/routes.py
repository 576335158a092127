"""The experts that vLLM's worker chose, by vLLM's own recorder, in the model runner that this project uses.

The recorder keeps them for each block of the KV cache, so that a request whose prompt was cached learns them, too. vLLM drives it
from another model runner, which needs Triton and reports other log-probs; its scheduler and front end take part with either.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from vllm.distributed.aux_output_connector.worker import get_aux_output_connector
from vllm.model_executor.layers.fused_moe.layer import MoERunner
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from roll.core.data.routes import TYPES, type_for
from roll.strategies.infer.vllm.arguments import ROUTES


def record_when_ready() -> None:
    """Wires the recorder into every runner of this process as soon as it has its KV cache: graphs that are captured afterwards
    have it in them."""
    initialize = GPUModelRunner.initialize_kv_cache

    def initialize_and_wire(runner: Any, kv_cache_config: Any, is_profiling: bool = False, *args: Any, **kwargs: Any) -> None:
        initialize(runner, kv_cache_config, is_profiling, *args, **kwargs)
        if runner.vllm_config.additional_config.get(ROUTES) and not is_profiling:
            _wire(runner, kv_cache_config)

    GPUModelRunner.initialize_kv_cache = initialize_and_wire


def recorded(runner: Any) -> tuple[list[int], str] | None:
    """The layers that have experts, and the type of the experts' numbers; None if nothing is recorded."""
    if not runner.vllm_config.additional_config.get(ROUTES):
        return None
    layers = {module.layer_id for module in runner.get_model().modules() if isinstance(module, MoERunner)}
    dtype = type_for(runner.model_config.get_num_experts())
    return sorted(layers), next(name for name, each in TYPES.items() if each == dtype)


def _wire(runner: Any, kv_cache_config: Any) -> None:
    recorder = get_aux_output_connector(runner.get_model(), runner.vllm_config, kv_cache_config)
    execute_model, sample_tokens = runner.execute_model, runner.sample_tokens

    def execute(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        recorder.begin_step(scheduler_output.aux_output_connector_metadata)
        return execute_model(scheduler_output, *args, **kwargs)

    def sample(grammar_output: Any) -> Any:
        step = _step(runner) if runner.execute_model_state is not None else None
        output = sample_tokens(grammar_output)
        if step is not None and (pending := recorder.prepare_output(step)) is not None:
            pending.enqueue_cpu_copy(step.sampled, np.zeros_like(step.sampled))
            if runner.device.type != "cpu":
                torch.accelerator.current_stream().synchronize()
            getattr(output, "_model_runner_output", output).aux_output_connector_output = pending.process_output()
        return output

    runner.execute_model, runner.sample_tokens = execute, sample


def _step(runner: Any) -> Any:
    """Returns the recorder's view of a batch. A request whose prompt is not read whole yet has sampled nothing."""
    batch = runner.input_batch
    return SimpleNamespace(
        req_ids=batch.req_ids[: batch.num_reqs],
        query_start_loc_np=runner.query_start_loc.np[: batch.num_reqs + 1].copy(),
        num_computed_tokens_np=batch.num_computed_tokens_cpu[: batch.num_reqs].copy(),
        sampled=1 - runner.discard_request_mask.np[: batch.num_reqs].astype(np.int32),
    )
