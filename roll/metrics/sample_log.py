"""`samples.jsonl`: some groups of every step, whole, with the versions and log-probs that produced them, and what became of them.

A group is written with all its responses, so that they can be compared: groups are added until `per_step` rollouts are reached.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from roll.data.sample import Sample, SampleGroup
from roll.data.token_batch import TokenBatch
from roll.metrics.run_log import JournalFile

VALIDATION = "validation"


class SampleLog:
    def __init__(self, run_dir: Path, per_step: int) -> None:
        """`per_step`: rollouts of a step that are trained, and as many of those that are dropped before it, and of each
        validation set, rounded up to whole groups. 0 writes none."""
        if per_step < 0:
            raise ValueError(f"per_step must be 0 or more, not {per_step}")
        self.per_step = per_step
        self._dropped = 0
        """Rollouts of dropped groups that were written since the last step."""
        self._journal = JournalFile(run_dir / "samples.jsonl")

    def record(self, step: int, groups: Sequence[SampleGroup], batch: TokenBatch | None = None) -> int:
        """Groups that `step` has trained, spread evenly over its groups. `batch`: their tensors, in the same order, with
        advantages. Returns the number of samples written."""
        self._dropped = 0
        chosen = set(_spread(groups, self.per_step))
        row, written = 0, 0
        for position, group in enumerate(groups):
            for sample in group.samples:
                if position in chosen:
                    trained = {} if batch is None else _trained(batch, row, sample)
                    self._journal.append(as_row(step, "trained", group.group_id, sample) | trained)
                    written += 1
                row += 1
        return written

    def record_dropped(self, step: int, group: SampleGroup, reason: str) -> None:
        """A group that was rolled out and then dropped while `step` was in the making."""
        if self._dropped < self.per_step:
            self._dropped += len(group.samples)
            for sample in group.samples:
                self._journal.append(as_row(step, f"dropped: {reason}", group.group_id, sample))

    def record_validation(self, version: int, samples: Sequence[Sample]) -> None:
        """Records samples of a validation set, in the order of their prompts."""
        written: set[str] = set()
        count = 0
        for sample in samples:
            if count < self.per_step or sample.prompt.uid in written:
                written.add(sample.prompt.uid)
                count += 1
                self._journal.append(as_row(version, VALIDATION, None, sample))

    def position(self) -> int:
        return self._journal.position()

    def digest(self) -> str:
        return self._journal.digest()

    def rewind(self, position: int, digest: str | None = None) -> int:
        return self._journal.rewind(position, digest)

    def close(self) -> None:
        self._journal.close()


def _spread(groups: Sequence[SampleGroup], rollouts: int) -> list[int]:
    """Positions of groups that together have at least so many rollouts, evenly over all of them."""
    if not groups or not rollouts:
        return []
    each = max(1, sum(len(group.samples) for group in groups) // len(groups))
    count = min(len(groups), -(-rollouts // each))
    return [i * len(groups) // count for i in range(count)]


def _trained(batch: TokenBatch, row: int, sample: Sample) -> dict[str, Any]:
    """The trainer's values of a sample, of its response tokens."""
    stop = int(batch.offsets[row + 1])
    start = stop - len(sample.response_ids)
    mask, advantages = batch.loss_mask[start:stop], batch.advantages[start:stop]
    figures: dict[str, Any] = {"advantage": float(advantages[mask].mean()) if bool(mask.any()) else None}
    if batch.proximal_logprobs is not None:
        figures["trainer_logprobs"] = [round(value, 6) for value in batch.proximal_logprobs[start:stop].tolist()]
    return figures


def as_row(step: int, fate: str, group_id: int | None, sample: Sample) -> dict[str, Any]:
    """What a person reads first comes first. `fate`: trained, dropped with the reason, or validation."""
    prompt = sample.prompt
    row: dict[str, Any] = {
        "step": step,
        "fate": fate,
        "prompt": prompt.text,
        "response": sample.response_text,
        "ground_truth": prompt.ground_truth,
        "reward": sample.reward,
        **({"reward_parts": sample.reward_parts} if sample.reward_parts else {}),
        "finish_reason": sample.finish_reason,
        "group_id": group_id,
        "index": sample.index,
        "prompt_uid": prompt.uid,
        "domain": prompt.domain,
        "tag": prompt.tag,
        "versions": [list(span) for span in sample.versions],
        "response_ids": sample.response_ids,
        "behaviour_logprobs": [round(logprob, 6) for logprob in sample.behaviour_logprobs],
    }
    if sample.trajectory is not None:
        row |= {"loss_mask": sample.policy_mask, "trajectory": asdict(sample.trajectory)}
    return row
