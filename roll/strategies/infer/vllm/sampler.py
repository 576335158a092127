"""The sampler of vLLM's worker: it defines the log-probs, and reports the set that a token was drawn from where its request asks.

A request asks by an extra argument (`KEPT`). The set is read from the very logits that are sampled, after top_k and top_p: ties
and rounding at the edge of a set are vLLM's own. It travels as vLLM's sampling mask, of which its scheduler and front end know;
its own recorder belongs to a model runner that needs Triton and reports no other log-probs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.v1.outputs import SamplingMaskLists
from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler
from vllm.v1.sample.sampler import Sampler

from roll.strategies.infer.vllm.requests import KEPT


class PolicySampler(Sampler):  # type: ignore[misc]
    """Reports `log_softmax(logits / T)` (T = 0, greedy, counts as 1): over the kept set where a request asks for it, else over
    the whole vocabulary, whatever top_p and top_k cut off.

    vLLM's own modes leave out the temperature (raw) or renormalise for all requests (processed)."""

    def __init__(self, runner: Any) -> None:
        usual = runner.sampler
        super().__init__(usual.logprobs_mode, usual.use_fp64_gumbel)
        self._runner = runner
        self._usual = TopKTopPSampler(usual.logprobs_mode, usual.use_fp64_gumbel)
        self._telling = TopKTopPSampler("processed_logits", usual.use_fp64_gumbel)
        self._metadata: Any = None
        self._asking: Tensor | None = None
        """The rows of the batch whose requests ask; None if none does."""
        self._kept: SamplingMaskLists | None = None

    def forward(self, logits: Tensor, sampling_metadata: Any, *args: object, **kwargs: object) -> object:
        if sampling_metadata is not self._metadata:  # vLLM makes another when the batch changes
            self._metadata, self._asking = sampling_metadata, self._asking_rows(logits.device)
        self._temperature: Tensor | None = sampling_metadata.temperature  # None if all rows are greedy
        self.topk_topp_sampler = self._usual if self._asking is None else self._telling
        return super().forward(logits, sampling_metadata, *args, **kwargs)

    def compute_logprobs(self, logits: Tensor) -> Tensor:
        """[n, vocabulary] float32, called by `forward` before the logits are changed in place, and by what verifies drafts, with
        equally many rows for each request."""
        logits = logits.float()
        if (temperature := self._temperature) is not None:
            greedy = temperature < 1e-5  # vLLM's own bound
            each = torch.where(greedy, 1.0, temperature).repeat_interleave(len(logits) // len(temperature))
            logits = logits / each[:, None]
        self._logprobs = logits.log_softmax(-1)
        return self._logprobs

    def sample(self, logits: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
        tokens, cut = super().sample(logits, *args, **kwargs)
        if self._asking is not None:
            cut = cut[self._asking]
            self._logprobs[self._asking] = cut.log_softmax(-1)  # before `forward` gathers from them
            self._kept = kept_sets(cut > -torch.inf, self._asking, len(logits))
        return tokens, None

    def taken(self) -> SamplingMaskLists | None:
        """The sets of the newest step, once."""
        kept, self._kept = self._kept, None
        return kept

    def _asking_rows(self, device: torch.device) -> Tensor | None:
        requests, batch = self._runner.requests, self._runner.input_batch
        params = [requests[name].sampling_params for name in batch.req_ids[: batch.num_reqs]]
        rows = [row for row, each in enumerate(params) if each is not None and (each.extra_args or {}).get(KEPT)]
        return torch.tensor(rows, device=device) if rows else None


class ReadingSampler(Sampler):  # type: ignore[misc]
    """Reports `log_softmax(logits / T)` of the tokens of prompts; vLLM's own reports it without the temperature."""

    def __init__(self, usual: Sampler, temperature: float) -> None:
        super().__init__(usual.logprobs_mode, usual.use_fp64_gumbel)
        self._temperature = temperature

    def compute_logprobs(self, logits: Tensor) -> Tensor:
        return (logits.float() / self._temperature).log_softmax(-1)


def kept_sets(kept: Tensor, rows: Tensor, batch: int) -> SamplingMaskLists:
    """`kept` [rows, vocabulary] of these ascending rows of a batch. The set of another row, and one that is the whole vocabulary,
    is empty."""
    kept = kept & ~kept.all(-1, keepdim=True)
    counts = torch.zeros(batch, dtype=torch.int64, device=kept.device).index_copy_(0, rows, kept.sum(-1))
    offsets = np.concatenate([[0], counts.cumsum(0).cpu().numpy()])
    return SamplingMaskLists(kept.nonzero()[:, 1].int().cpu().numpy(), offsets)


def attach_sets(runner: Any) -> None:
    """From now on the runner's outputs bring the sets that its sampler has recorded."""
    sample_tokens: Callable[[Any], Any] = runner.sample_tokens

    def sampled(grammar_output: Any) -> Any:
        output = sample_tokens(grammar_output)
        if (kept := runner.sampler.taken()) is not None:
            getattr(output, "_model_runner_output", output).sampling_masks = kept  # on GPUs it is inside a copy under way
        return output

    runner.sample_tokens = sampled
