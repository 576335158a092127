"""What a reward worker says of samples, from its start to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from roll.core.data.sample import Sample
from roll.core.rewards.worker import RewardResult, RewardWorker


def judged(worker: RewardWorker, samples: Sequence[Sample]) -> list[RewardResult]:
    async def main() -> list[RewardResult]:
        await worker.start()
        try:
            return await worker.compute_rewards(samples)
        finally:
            await worker.close()

    return asyncio.run(main())
