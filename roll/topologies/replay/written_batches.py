"""`batches.jsonl`: the groups of every step, exact and in order, and a digest of the weights that each step led to. With them the
trainer can take the steps again. Written with `rollout_log_per_step: all`.

    {"from": 50}                                                           the run begins, or goes on from a checkpoint
    {"step": 57, "parts": [["<a group, packed, in base64>", ...], ...]}    a part is a lease: several with train_on_arrival
    {"version": 57, "weights": "<digest>"}                                 of a version that is published whole
"""

from __future__ import annotations

import asyncio
import hashlib
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path

from roll.core.configs.plain import JsonObject
from roll.core.data.sample import SampleGroup
from roll.core.record.batch_log import BATCHES, BatchLog
from roll.core.record.journal import RotatedJournal
from roll.core.weights.bucket import WeightManifest
from roll.topologies.packing import packed


class WrittenBatches(BatchLog):
    journal: RotatedJournal

    def __init__(self, run_dir: Path, records: bool, most_bytes: int) -> None:
        """`records`: False only winds back the records of an earlier start of the run. `most_bytes`: see `RotatedJournal`."""
        self.journal = RotatedJournal(run_dir / BATCHES, most_bytes)
        self._records = records
        self._leased: dict[int, list[list[str]]] = {}
        """Step -> the parts of its batch so far."""

    def begun(self, step: int) -> None:
        self._write({"from": step})

    async def leased(self, step: int, groups: Sequence[SampleGroup]) -> None:
        if self._records:
            self._leased.setdefault(step, []).append(await asyncio.to_thread(_in_base64, groups))

    def trained(self, step: int) -> None:
        self._write({"step": step + 1, "parts": self._leased.pop(step, [])})

    def gathered(self, manifest: WeightManifest) -> None:
        if manifest.base is None:
            self._write({"version": manifest.version, "weights": weights_digest(manifest)})

    def _write(self, row: JsonObject) -> None:
        if self._records:
            self.journal.append([row])


def _in_base64(groups: Sequence[SampleGroup]) -> list[str]:
    return [b64encode(packed(group, finite=False)).decode() for group in groups]


def weights_digest(manifest: WeightManifest) -> str:
    """Returns a digest of the checksums of all buckets, which depends on their sizes (`model_update_buffer_size_mb`)."""
    return hashlib.blake2b(repr(sorted(manifest.checksums)).encode(), digest_size=16).hexdigest()
