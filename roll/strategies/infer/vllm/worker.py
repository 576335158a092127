"""What vLLM's worker process does for us: defines the log-probs and takes new weights. Mixed into vLLM's worker class by its
name (`worker_extension_cls`), so no method may be called like one of vLLM's."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from vllm.config import set_current_vllm_config
from vllm.distributed import get_pp_group
from vllm.v1.sample.sampler import Sampler

from roll.strategies.infer.vllm.process import OWNER


class PolicySampler(Sampler):  # type: ignore[misc]
    """Reports `log_softmax(logits / T)` of the whole vocabulary whatever top_p and top_k cut off (T = 0, greedy, counts as 1).

    vLLM's own modes leave out the temperature (raw) or renormalise over what top_p and top_k keep (processed)."""

    def forward(self, logits: Tensor, sampling_metadata: Any, *args: object, **kwargs: object) -> object:
        self._temperature: Tensor | None = sampling_metadata.temperature  # None if all rows are greedy
        return super().forward(logits, sampling_metadata, *args, **kwargs)

    def compute_logprobs(self, logits: Tensor) -> Tensor:
        """[n, vocabulary] float32, called by `forward` before the logits are changed in place."""
        logits = logits.float()
        if self._temperature is not None:
            greedy = self._temperature < 1e-5  # vLLM's own bound
            logits = logits / torch.where(greedy, 1.0, self._temperature)[:, None]
        return logits.log_softmax(-1)


class PolicyWorker:
    model_runner: Any
    vllm_config: Any

    def adopt_policy(self) -> None:
        """Called once, after the start."""
        sampler: Any = getattr(self.model_runner, "sampler", None)
        if type(sampler) is not Sampler:
            raise RuntimeError(f"the model runner's sampler is {type(sampler)}: its log-probs are not known")
        self.model_runner.sampler = PolicySampler(sampler.logprobs_mode, sampler.use_fp64_gumbel)
        if torch.cpu._is_amx_tile_supported():
            # vLLM's bfloat16 attention uses AMX without having asked the kernel for it: an illegal instruction.
            torch.cpu._init_amx()
        runner = self.model_runner
        if not get_pp_group().is_first_rank and runner.intermediate_tensors is None:
            # Usually made by the forward pass that measures the free memory; a cache of known size skips that pass.
            runner.intermediate_tensors = runner.get_model().make_empty_intermediate_tensors(
                runner.max_num_tokens, runner.model_config.dtype, runner.device
            )

    def load_policy(self, paths: Sequence[str]) -> None:
        """Replaces all weights by those of the safetensors files; only between two token steps, with nothing in flight."""
        with set_current_vllm_config(self.vllm_config), torch.inference_mode():
            # Not model.load_weights(): the parameters of packed layers are empty by now.
            self.model_runner.reload_weights(weights_iterator=_read(paths))
            _repack_tied_heads(self.model_runner.get_model())


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


if OWNER in os.environ:
    _end_with(int(os.environ[OWNER]))
