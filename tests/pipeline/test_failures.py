"""What starts anew when a rank of the trainer dies, and when a run goes on synchronously: decided on plain values."""

import asyncio

import pytest

from roll.core.distributed.cluster import Cluster
from roll.core.errors import WorkerDied
from roll.core.pipeline.failures import Fallback, dead_rank, restarted_roles


class Reached:
    """A rank whose connection was lost during its last call, and which answers again."""

    name, killable = "actor_train-1", True

    async def call(self, method):
        raise WorkerDied(f"worker {self.name} died: the actor is temporarily unavailable")

    async def ping(self):
        return None


def test_a_rank_that_may_or_may_not_have_done_its_part_counts_as_dead_though_it_answers():
    async def after_a_call(*methods):
        cluster = Cluster("actor_train", [Reached()], 10.0)
        for method in methods:
            with pytest.raises(WorkerDied):
                await cluster.call(0, method)
        return await dead_rank({"actor_train": cluster})

    assert asyncio.run(after_a_call()) is None
    assert asyncio.run(after_a_call("train")) == "worker actor_train-1 of role actor_train lost its connection during a call"


@pytest.mark.parametrize(
    ("devices", "anew"),
    [
        ({"actor_train": [0], "actor_infer": [1]}, {"actor_train"}),
        ({"actor_train": [0, 1], "actor_infer": [2], "reference": [3]}, {"actor_train", "reference"}),
        ({"actor_train": [0], "critic": [1], "actor_infer": [2]}, {"actor_train", "critic"}),
        ({"actor_train": [0, 1], "actor_infer": [1, 2]}, {"actor_train", "actor_infer"}),
        ({"actor_train": [0], "reference": [1], "actor_infer": [1]}, {"actor_train", "reference", "actor_infer"}),
        ({"actor_infer": [0, 1]}, set()),
    ],
)
def test_the_whole_trainer_starts_anew_with_all_that_shares_its_devices(devices, anew):
    assert restarted_roles(devices) == anew


def test_a_run_that_went_back_to_a_checkpoint_stays_synchronous():
    fallback = Fallback(3)
    fallback.since = 5
    assert fallback.is_due({"actor_infer": 0})


@pytest.mark.parametrize(
    ("after", "restarts", "due"),
    [
        (0, {"actor_infer": 100}, False),
        (3, {"actor_infer": 1, "environments": 1}, False),
        (3, {"actor_infer": 1, "environments": 2}, True),
        (2, {"rewards.math": 1, "rewards.code": 1}, True),
        (1, {"actor_train": 5, "reference": 1, "critic": 1}, False),
    ],
)
def test_rollouts_that_fail_count_and_the_trainer_does_not(after, restarts, due):
    assert Fallback(after).is_due(restarts) is due
