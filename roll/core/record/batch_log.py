"""The interface of a record of the groups that each step trains."""

from __future__ import annotations

from collections.abc import Sequence

from roll.core.data.sample import SampleGroup
from roll.core.record.journal import RotatedJournal
from roll.core.weights.bucket import WeightManifest

BATCHES = "batches.jsonl"
WRITTEN = "roll.topologies.replay.written_batches.WrittenBatches"
"""The implementation, loaded when it is used."""


class BatchLog:
    """Records nothing."""

    journal: RotatedJournal | None = None

    def begun(self, step: int) -> None:
        """The run begins, or goes on from the checkpoint of `step`."""

    async def leased(self, step: int, groups: Sequence[SampleGroup]) -> None:
        """The step on version `step` has these groups, all or some of its own. A stage of the user's own may change them
        later."""

    def trained(self, step: int) -> None:
        """The step on version `step` is trained."""

    def gathered(self, manifest: WeightManifest) -> None:
        """A version is gathered."""
