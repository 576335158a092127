"""Log of groups: `groups.jsonl` has the status of each, `samples.jsonl` some groups of every step, whole, with the versions
and log-probs that produced them.

There, a group is written with all its responses, so that they can be compared. Which groups is drawn by seed: uniform, without
replacement, and the same in whatever order groups come.
"""

from __future__ import annotations

import json
import math
from bisect import insort
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Literal, NamedTuple, TypeVar

from roll.core.configs.plain import JsonObject
from roll.core.data.sample import Sample, SampleGroup, Trajectory
from roll.core.record.journal import JournalFile, RotatedJournal

if TYPE_CHECKING:
    from roll.core.data.token_batch import TokenBatch  # with torch, which readers of journals do without

GROUPS = "groups.jsonl"
VALIDATION = "validation"

T = TypeVar("T")


class GroupLog:
    """`groups.jsonl`: the terminal status of every group, as they ended, and each further use of one that was trained."""

    def __init__(self, run_dir: Path) -> None:
        self.journal = JournalFile(run_dir / GROUPS)

    def write(
        self,
        *,
        group_id: int,
        prompt_uid: str,
        status: str,
        reason: str,
        step: int,
        start_version: int,
        lag: int | None,
        rewards: Sequence[float | None] = (),
        tokens: int = 0,
    ) -> None:
        """`status`: trained or dropped, or reused: trained once more; `reason`: why it was dropped, else empty; `step`: the one
        that trained it, or that was running when it was dropped; `lag`: version it trained minus the version of its oldest
        token, None if dropped; `rewards` and response `tokens` of its rollouts, where there are any.

        Raises `ValueError` for a second end of a group, a reuse of one that was not trained, an unknown status, or a drop without
        a reason."""
        who = f"group {group_id} (prompt {prompt_uid})"
        if status == "reused" and not self._ended.get(group_id):
            raise ValueError(f"{who} is reused, and was not trained before")
        if status != "reused" and group_id in self._ended:
            raise ValueError(f"{who} has ended before; now {status} again")
        if status not in ("trained", "reused", "dropped") or (status == "dropped") != bool(reason):
            raise ValueError(f"{who}: a status is trained, or dropped for a reason; not {status!r} with the reason {reason!r}")
        self.journal.append(
            {
                "group_id": group_id,
                "prompt_uid": prompt_uid,
                "status": status,
                "reason": reason,
                "step": step,
                "start_version": start_version,
                "lag": lag,
            }
            | ({"rewards": list(rewards), "tokens": tokens} if rewards else {})
        )
        self._ended[group_id] = status != "dropped"

    def rows(self) -> Iterator[JsonObject]:
        return self.journal.rows()

    def rewind(self, position: int, digest: str | None = None) -> int:
        """Returns to a checkpoint; the groups that ended after it may end again. Returns their number."""
        cut = self.journal.rewind(position, digest)
        self.__dict__.pop("_ended", None)
        return cut

    def close(self) -> None:
        self.journal.close()

    @cached_property
    def _ended(self) -> dict[int, bool]:
        """Group -> True if it was trained, False if it was dropped. Read on demand: rows after the checkpoint have been cut
        before."""
        trained: dict[int, bool] = {}
        for row in self.journal.rows():
            if not isinstance(group_id := row.get("group_id"), int):
                raise ValueError(f"{self.journal.path} has a row whose group_id is {group_id!r}: not a journal of this package")
            trained[group_id] = row.get("status") != "dropped"
        return trained


class SampleLog:
    def __init__(self, run_dir: Path, per_step: int | Literal["all"], seed: int = 0, most_bytes: int = 0) -> None:
        """`per_step`: rollouts of a step that are trained, and as many of those that are dropped before it, and of each
        validation set, rounded up to whole groups. 0 writes none. `most_bytes`: of all files, of which the oldest goes first; 0:
        any number."""
        self._rollouts = math.inf if per_step == "all" else per_step
        if self._rollouts < 0:
            raise ValueError(f"per_step must be 0 or more, or all, not {per_step}")
        self._seed = seed
        self._step = 0
        self._dropped: Draw[tuple[SampleGroup, str]] = Draw(self._rollouts)
        """Groups that were dropped while `_step` was in the making, with the reason. They are written when it is over."""
        self.journal = RotatedJournal(run_dir / "samples.jsonl", most_bytes)

    def record(self, step: int, groups: Sequence[SampleGroup], batch: TokenBatch | None = None) -> int:
        """Records groups that `step` has trained. `batch`: their tensors, in the same order, with advantages. Returns the number
        of samples written."""
        self._write_dropped()
        drawn: Draw[tuple[int, SampleGroup]] = Draw(self._rollouts)
        first = written = 0
        for group in groups:
            drawn.offer(f"{self._seed}/{step}/{group.group_id}", len(group.samples), (first, group))
            first += len(group.samples)
        for first, group in sorted(drawn.take(), key=lambda one: one[0]):
            rows = [as_row(step, "trained", group.group_id, sample) for sample in group.samples]
            if batch is not None:
                rows = [row | _trained(batch, first + i, group.samples[i]) for i, row in enumerate(rows)]
            self.journal.append(rows)
            written += len(rows)
        return written

    def record_dropped(self, step: int, group: SampleGroup, reason: str) -> None:
        """Records a group that was rolled out and then dropped while `step` was in the making."""
        if step != self._step:
            self._write_dropped()
            self._step = step
        self._dropped.offer(f"{self._seed}/{step}/{group.group_id}", len(group.samples), (group, reason))

    def record_validation(self, version: int, samples: Sequence[Sample]) -> None:
        """Records samples of a validation set. The same prompts are drawn for every version."""
        by_prompt: dict[str, list[Sample]] = {}
        for sample in samples:
            by_prompt.setdefault(sample.prompt.uid, []).append(sample)
        drawn: Draw[list[Sample]] = Draw(self._rollouts)
        for uid, group in by_prompt.items():
            drawn.offer(f"{self._seed}/{uid}", len(group), group)
        for group in drawn.take():
            self.journal.append([as_row(version, VALIDATION, None, sample) for sample in group])

    def rewind(self, position: int, step: int, digest: str | None = None) -> None:
        """Returns to the checkpoint of `step`. Validations of versions up to it stay: they end when it has begun."""
        later = [row for row in self.journal.after(position) if row.get("status") == VALIDATION]
        self.journal.rewind(position, digest)
        self.journal.append([row for row in later if row["step"] <= step])

    def close(self) -> None:
        """Writes the remaining rows and closes the file. Raises as `JournalFile.append` does, and is closed then, too."""
        try:
            self._write_dropped()
        finally:
            self.journal.close()

    def _write_dropped(self) -> None:
        for group, reason in self._dropped.take():
            self.journal.append([as_row(self._step, f"dropped: {reason}", group.group_id, each) for each in group.samples])


class _Offer(NamedTuple, Generic[T]):
    number: bytes
    size: int
    what: T


class Draw(Generic[T]):
    """Groups are offered one at a time; kept are those with the lowest numbers of a hash, as many as have so many rollouts
    together (bottom-k sampling, Cohen and Kaplan 2007). No others are held meanwhile."""

    def __init__(self, rollouts: float) -> None:
        self._rollouts = rollouts
        self._kept: list[_Offer[T]] = []
        self._count = 0

    def offer(self, name: str, size: int, what: T) -> None:
        number = blake2b(name.encode(), digest_size=16).digest()
        insort(self._kept, _Offer(number, size, what), key=lambda one: one.number)
        self._count += size
        while self._kept and self._count - self._kept[-1].size >= self._rollouts:
            self._count -= self._kept.pop().size

    def take(self) -> list[T]:
        """Returns the drawn items and begins the next draw."""
        kept, self._kept, self._count = self._kept, [], 0
        return [one.what for one in kept]


def _trained(batch: TokenBatch, row: int, sample: Sample) -> dict[str, object]:
    """The trainer's values of a sample, of its response tokens; where they are the same for all tokens, once."""
    stop = int(batch.offsets[row + 1])
    start = stop - len(sample.response_ids)
    mask, advantages = batch.loss_mask[start:stop], batch.advantages[start:stop]
    own = advantages[mask]
    figures: dict[str, object] = {"advantage": float(own.mean()) if len(own) else None}
    if len(own) and bool((own != own[0]).any()):
        figures["advantages"] = [round(value, 6) for value in advantages.tolist()]
    if not bool(mask.all()):
        figures["loss_mask"] = mask.tolist()
    if batch.proximal_logprobs is not None:
        figures["trainer_logprobs"] = [round(value, 6) for value in batch.proximal_logprobs[start:stop].tolist()]
    return figures


def as_row(step: int, status: str, group_id: int | None, sample: Sample) -> dict[str, object]:
    """Returns a row with the most readable fields first. `status`: trained, dropped with the reason, or validation."""
    prompt = sample.prompt
    row: JsonObject = {
        "step": step,
        "status": status,
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
        "response_ids": list(sample.response_ids),
        "behaviour_logprobs": [round(logprob, 6) for logprob in sample.behaviour_logprobs],
    }
    if sample.trajectory is not None:
        row |= {"loss_mask": sample.policy_mask, "trajectory": _trajectory(sample.trajectory)}
    return row


def _trajectory(trajectory: Trajectory) -> JsonObject:
    row = asdict(trajectory)
    for turn in row["turns"]:
        if exchange := turn.pop("exchange"):
            turn["exchange"] = json.loads(exchange)
    return row
