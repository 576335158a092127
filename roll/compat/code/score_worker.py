"""A reward function that was written for verl, as it stands, in child processes."""

from __future__ import annotations

from typing import Any

from roll.compat.code.reward_worker import RollRewardWorker
from roll.core.data.sample import Sample


class ScoreRewardWorker(RollRewardWorker):
    """`reward_args`: `path`, the function's file; `name`, its name; `source`, the column that names a row's origin;
    `reward_kwargs`, further arguments."""

    reads = frozenset({"path", "name", "source", "reward_kwargs"})
    child = "roll.compat.code.score_child:ScoreChild"

    def question(self, sample: Sample) -> dict[str, Any]:
        """Returns the arguments of a call, by verl's names."""
        row = sample.prompt.row
        judged = row.get("reward_model")
        truth = judged.get("ground_truth") if isinstance(judged, dict) else None
        return {
            "data_source": row.get(self.reward_args.get("source", "data_source")),
            "solution_str": sample.response_text,
            "ground_truth": sample.prompt.ground_truth if truth is None else truth,
            "extra_info": row.get("extra_info") or {},
        }
