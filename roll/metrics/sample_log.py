"""`samples.jsonl`: some of the rollouts of every step, whole, with the versions and log-probs that produced them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from roll.data.sample import Sample, SampleGroup
from roll.metrics.run_log import JournalFile


class SampleLog:
    """Writes at most `per_step` samples a step, spread evenly over the step's samples. 0 writes none."""

    def __init__(self, run_dir: Path, per_step: int) -> None:
        if per_step < 0:
            raise ValueError(f"per_step must be 0 or more, not {per_step}")
        self.per_step = per_step
        self._journal = JournalFile(run_dir / "samples.jsonl")

    def record(self, step: int, groups: Sequence[SampleGroup]) -> int:
        """Returns the number of samples written."""
        samples = [(group.group_id, sample) for group in groups for sample in group.samples]
        count = min(self.per_step, len(samples))
        for i in range(count):
            group_id, sample = samples[i * len(samples) // count]
            self._journal.append(as_row(step, group_id, sample))
        return count

    def position(self) -> int:
        return self._journal.position()

    def rewind(self, position: int) -> int:
        return self._journal.rewind(position)

    def close(self) -> None:
        self._journal.close()


def as_row(step: int, group_id: int, sample: Sample) -> dict[str, Any]:
    """What a person reads first comes first."""
    prompt = sample.prompt
    row = {
        "step": step,
        "prompt": prompt.text,
        "response": sample.response_text,
        "ground_truth": prompt.ground_truth,
        "reward": sample.reward,
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
