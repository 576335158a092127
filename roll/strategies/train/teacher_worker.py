"""A rank of a teacher, which says log-probs of the policy's tokens and, for divergences, its most probable tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from roll.core.data.token_batch import TokenBatch
from roll.core.workers.workers import TrainWorker
from roll.strategies.train.hf_train import HFTrainStrategy


class TeacherWorker(TrainWorker):
    def teach(self, batch: TokenBatch, top: int) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the log-probs [M] of the masked tokens of this rank's samples, in order, and [M, top] int32 ids and float32
        log-probs of the most probable tokens in their place; -inf where there are fewer."""
        if not top:
            logprobs = self.strategy.log_probs(batch)[batch.loss_mask]
            nothing = logprobs.new_zeros(len(logprobs), 0)
            return logprobs, nothing.int(), nothing
        assert isinstance(self.strategy, HFTrainStrategy), "the rules of teachers see to it"
        return top_log_probs(self.strategy, batch, top)


def top_log_probs(strategy: HFTrainStrategy, batch: TokenBatch, top: int) -> tuple[Tensor, Tensor, Tensor]:
    """As `TeacherWorker.teach`, with whole distributions."""
    found: dict[int, list[Tensor]] = {}
    with torch.no_grad(), strategy._cores.computing():
        for part, micro, layout in strategy._microbatches(batch, strategy._spec.max_tokens_per_microbatch_infer):
            counts = part.padded.loss_mask.sum(1).tolist()[: len(part.indices)]
            said = strategy._scorer.top(strategy._callable, micro, layout, top)
            of_samples = [each[: sum(counts)].cpu().split(counts) for each in said] if counts else [()] * len(said)
            found |= {i: list(each) for i, each in zip(part.indices, zip(*of_samples, strict=True), strict=True)}
    strategy._after_inference()
    empty = [torch.zeros(0), torch.zeros(0, top, dtype=torch.int64), torch.zeros(0, top)]
    logprobs, ids, most = (torch.cat([empty[n], *(found[i][n] for i in range(len(batch)))]) for n in range(3))
    return logprobs.float(), ids.int(), most.float()
