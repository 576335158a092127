"""What the optimiser steps of a pipeline step tell together."""

import asyncio

import pytest
import torch

from roll.core.algorithms.loss import LossSpec
from roll.core.data.token_batch import TokenBatch
from roll.core.distributed.cluster import Cluster
from roll.core.trainer.optimise import optimise

STEPS = [
    {"actor/loss": 1.0, "actor/ratio_max": 3.0, "actor_train/skipped_steps": 4.0, "actor/engine_mismatch": 0.5},
    {"actor/loss": 2.0, "actor/ratio_max": 1.0, "actor_train/skipped_steps": 5.0},
]


class Trainer:
    name = "actor_train-0"

    async def call(self, method, batches, loss, totals):
        return STEPS[: len(batches)]


def batch():
    flat = torch.zeros(2)
    return TokenBatch(
        lengths=torch.tensor([2]),
        scores=torch.zeros(1),
        temperatures=torch.ones(1),
        tokens=torch.tensor([1, 2]),
        loss_mask=torch.tensor([False, True]),
        behaviour_logprobs=flat,
        advantages=flat,
    )


def test_means_maxima_and_counts_so_far():
    """A metric that one of the steps has no value for is of the others."""
    told = asyncio.run(optimise(Cluster("actor_train", [Trainer()], 10.0), [batch(), batch()], LossSpec()))
    assert told == pytest.approx(
        {
            "actor/loss": 1.5,
            "actor/ratio_max": 3.0,
            "actor_train/skipped_steps": 5.0,
            "actor/engine_mismatch": 0.5,
            "actor_train/optimiser_steps": 2.0,
        }
    )
