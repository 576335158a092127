"""`batches.jsonl`: the groups of every step, exact and in order, and a checksum of the weights that each step led to: all that the
trainer needs to take the steps again. Written with `rollout_log_per_step: all`.

    {"step": 57, "parts": [["<a group, packed, in base64>", ...], ...]}      a part is a lease: one, unless groups arrive one by one
    {"version": 57, "weights": "<checksum>"}                                 of a version that is published whole
"""

from __future__ import annotations

import asyncio
import hashlib
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path

from roll.core.data.packing import packed
from roll.core.data.sample import SampleGroup
from roll.core.record.journal import RotatedJournal, journal_parts
from roll.core.weights.bucket import WeightManifest

BATCHES = "batches.jsonl"


class BatchLog:
    def __init__(self, run_dir: Path, records: bool, most_bytes: int = 0) -> None:
        """`records`: False only winds back what an earlier start of the run has recorded. `most_bytes`: see `RotatedJournal`."""
        file = run_dir / BATCHES
        self.journal = RotatedJournal(file, most_bytes) if records or (run_dir.is_dir() and journal_parts(file)) else None
        self._records = records
        self._leased: dict[int, list[list[str]]] = {}
        """Step -> the parts of its batch so far."""

    async def leased(self, step: int, groups: Sequence[SampleGroup]) -> None:
        """Keeps groups of the step on version `step`, as they are leased: a stage of the user's own may change them later."""
        if self._records:
            self._leased.setdefault(step, []).append(await asyncio.to_thread(_in_base64, groups))

    def trained(self, step: int) -> None:
        """Writes the groups of the step on version `step`."""
        if self.journal is not None and (parts := self._leased.pop(step, None)):
            self.journal.append([{"step": step + 1, "parts": parts}])

    def gathered(self, manifest: WeightManifest) -> None:
        if self.journal is not None and self._records and manifest.base is None:
            self.journal.append([{"version": manifest.version, "weights": weights_digest(manifest)}])


def _in_base64(groups: Sequence[SampleGroup]) -> list[str]:
    return [b64encode(packed(group, finite=False)).decode() for group in groups]


def weights_digest(manifest: WeightManifest) -> str:
    """Returns a digest of the checksums of all buckets, which depends on their sizes (`model_update_buffer_size_mb`)."""
    return hashlib.blake2b(repr(sorted(manifest.checksums)).encode(), digest_size=16).hexdigest()
