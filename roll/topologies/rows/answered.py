"""A run on rows whose policy is heard, too: at each evaluation engines answer the questions of some rows with the weights that
were evaluated, while the next step may train.

The rows take the way of all groups through an explorer, which has no rollouts; loss and answers of a version are one evaluation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from roll.core.data.sample import Prompt, SampleGroup
from roll.core.distributed.clock import monotonic
from roll.core.engines.rollout_client import RolloutClient
from roll.core.explorer.explorer import Exploration, Explorer
from roll.core.pipeline.topology import SingleDriver
from roll.core.record.run_progress import ENGINES, Places
from roll.core.record.validation import FIRST, SetRollouts, ValidationResult, ValidationSet
from roll.core.trainer.trainer import Trainer
from roll.prompts.stored_rows import ANSWERS, QUESTION
from roll.topologies.rows.from_rows import RowTrainer, complete, row_trainer


def question(row: Prompt, uid: str, text: Callable[[list[int]], str]) -> Prompt:
    """Returns the turns before the last answer of a row, which is the reference: of a pair the better one. `text`: of tokens."""
    ids, _, answer = row.row[ANSWERS][0]
    asked = [*row.input_ids, *ids[: row.row[QUESTION]]]
    return replace(row, uid=uid, input_ids=asked, text=text(asked), ground_truth=answer, row={})


class RowAnswers(Explorer):
    def __init__(self, exploration: Exploration, client: RolloutClient) -> None:
        """The sets of `exploration` are those of questions."""
        super().__init__(exploration, routing=client)
        self._client = client
        self._results: dict[int, ValidationResult] = {}

    async def keep(self, group: SampleGroup) -> None:
        await super().keep(complete(group))

    async def evaluated(self, result: ValidationResult) -> None:
        """Keeps the losses of a version until its answers are there."""
        self._results[result.version] = result

    async def validate(self, version: int) -> None:
        if (result := self._results.pop(version, None)) is None:
            return
        started = monotonic()
        try:
            sets = await asyncio.gather(*(self.validation_rollouts(version, each) for each in self._sets))
        finally:
            self._weights.release()
        seconds = result.seconds + monotonic() - started
        await self._reports.validation(replace(result, seconds=seconds), [each.samples for each in sets])

    async def validation_rollouts(self, version: int, of: ValidationSet) -> SetRollouts:
        answers = (self._client.rollout(f"v{version}/{each.uid}", each, of.n, of.sampling, FIRST) for each in of.prompts)
        by_prompt = await asyncio.gather(*answers)
        return SetRollouts(of, [sample for samples in by_prompt for sample in samples], failed=0)

    def places(self) -> Places:
        return Places(sum(self._client.limits), ENGINES, 0)


class AnsweredRows(SingleDriver):
    async def open(self) -> bool:
        await super().open()
        assert isinstance(self.trainer, RowTrainer) and isinstance(self.explorer, RowAnswers)
        self.trainer.report = self.explorer.evaluated
        await self.trainer.open(self._devices)
        return True

    def _kind(self) -> Callable[..., Trainer]:
        return row_trainer(self._prepared, self._state)
