"""Our part of vLLM's worker process: adopts our sampler and takes new weights. Mixed into vLLM's worker class by its name
(`worker_extension_cls`), so no method may be called like one of vLLM's."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from vllm.config import set_current_vllm_config
from vllm.distributed import get_pp_group
from vllm.v1.sample.sampler import Sampler

from roll.strategies.infer.vllm import no_processor  # noqa: F401
from roll.strategies.infer.vllm.process import OWNER
from roll.strategies.infer.vllm.routes import record_when_ready, recorded
from roll.strategies.infer.vllm.sampler import PolicySampler, ReadingSampler, attach_sets
from roll.strategies.infer.vllm.verifier import verify_with
from roll.transports.lending import Lent, LentCopies


class PolicyWorker:
    model_runner: Any
    vllm_config: Any
    lent_copies: LentCopies | None = None

    def adopt_teacher(self, temperature: float) -> None:
        """Called once, after the start. The log-probs of prompts are then those of this temperature."""
        self._check_sampler()
        self.model_runner.sampler = ReadingSampler(self.model_runner.sampler, temperature)
        _ask_for_amx()

    def _check_sampler(self) -> None:
        sampler: Any = getattr(self.model_runner, "sampler", None)
        if type(sampler) is not Sampler:
            raise RuntimeError(f"the model runner's sampler is {type(sampler)}: its log-probs are not known")

    def adopt_policy(self) -> tuple[list[int], str] | None:
        """Called once, after the start. Returns the layers that have experts, and the type of their numbers, if recorded."""
        self._check_sampler()
        self.model_runner.sampler = PolicySampler(self.model_runner)
        verify_with(self.model_runner.sampler, self.model_runner)
        attach_sets(self.model_runner)
        _ask_for_amx()
        runner = self.model_runner
        if not get_pp_group().is_first_rank and runner.intermediate_tensors is None:
            # Usually made by the forward pass that measures the free memory; a cache of known size skips that pass.
            runner.intermediate_tensors = runner.get_model().make_empty_intermediate_tensors(
                runner.max_num_tokens, runner.model_config.dtype, runner.device
            )
        return recorded(runner)

    def keep_lent(self, version: int, lent: Sequence[Any]) -> str:
        """Copies tensors that are lent on this device aside for `load_policy`. Returns why it cannot."""
        if self.vllm_config.parallel_config.world_size > 1:
            return "an engine of several devices reads files"
        self.lent_copies = self.lent_copies or LentCopies()
        try:
            self.lent_copies.receive(version, Lent(*lent), self.model_runner.device)
        except (ValueError, RuntimeError) as error:  # with no memory for them, too
            return str(error)
        return ""

    def load_policy(self, paths: Sequence[str], lent: Sequence[str] = ()) -> None:
        """Replaces all weights by those of the safetensors files, and those in `lent` by what was kept of them; only between
        two token steps, with nothing in flight."""
        kept = self.lent_copies.take(lent) if self.lent_copies is not None else ()
        with set_current_vllm_config(self.vllm_config), torch.inference_mode():
            # Not model.load_weights(): the parameters of packed layers are empty by now.
            self.model_runner.reload_weights(weights_iterator=chain(kept, _read(paths)))
            _repack_tied_heads(self.model_runner.get_model())
            if self.model_runner.device.type == "cpu":
                _repack_experts(self.model_runner.get_model())


def _read(paths: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
    for path in paths:
        with safe_open(path, framework="pt") as file:
            for name in file.offset_keys():  # a layer's weights one after another
                yield name, file.get_tensor(name)


def _repack_tied_heads(model: torch.nn.Module) -> None:
    """On CPUs a linear layer computes with a packed copy of its weight. The copy of an output layer that is tied to the
    embedding is not made again by a reload, and would silently go on with the old weights."""
    module: Any
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if hasattr(module, "cpu_linear") and weight is not None and weight.numel():
            module.quant_method.process_weights_after_loading(module)


def _repack_experts(model: torch.nn.Module) -> None:
    """On CPUs the experts' weights are packed after the first load alone: a reload would silently leave the new ones as files
    have them, where packed ones are read."""
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts

    for module in model.modules():
        kernel: Any = getattr(getattr(module, "quant_method", None), "moe_kernel", None)
        if kernel is not None and isinstance(experts := kernel.impl.fused_experts, CPUUnquantizedExperts):
            experts.process_weights_after_loading(module)


def _ask_for_amx() -> None:
    """vLLM's bfloat16 attention uses AMX without having asked the kernel for it: an illegal instruction."""
    if torch.cpu._is_amx_tile_supported():
        torch.cpu._init_amx()


def _end_with(owner: int) -> None:
    """vLLM's processes do not notice that the one that started them was killed, and would keep the device's memory."""
    parent = os.getppid()
    watched = os.pidfd_open(owner)

    def watch() -> None:
        select.select([watched], [], [])
        if parent != owner and os.getppid() == parent:  # with tensor parallelism the scheduler is between
            os.kill(parent, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="owner", daemon=True).start()


record_when_ready()
if OWNER in os.environ:
    _end_with(int(os.environ[OWNER]))
