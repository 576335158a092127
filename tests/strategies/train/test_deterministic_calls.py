"""`deterministic: true` on accelerators: torch refuses there what has no repeatable form. Here a step's calls are looked at."""

from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from train_specs import fsdp2_spec

from roll.core.configs.losses import POLICY_LOSSES
from roll.core.workers.train_interface import RankContext
from roll.strategies.train.fsdp2 import FSDP2Strategy

aten = torch.ops.aten
FLOATS_ONLY = {aten.cumsum, aten.cumsum_, aten.histc}
ALWAYS = {aten.nll_loss2d_forward, aten.put, aten.put_, aten.median, aten.kthvalue, aten.cumprod}
"""What `torch.use_deterministic_algorithms` says that it refuses on CUDA."""


class RefusesWhatCudaDoes(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kind = function.overloadpacket
        result = (kwargs or {}).get("dtype") or args[0].dtype if kind in FLOATS_ONLY else None
        weighted = kind is aten.bincount and len(args) > 1 and args[1] is not None
        if kind in ALWAYS or weighted or (result is not None and result.is_floating_point):
            raise RuntimeError(f"{function} has no deterministic implementation")
        return function(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def strategy(model_path):
    return FSDP2Strategy(RankContext(), fsdp2_spec(model_path))


def test_the_look_is_not_blind():
    with RefusesWhatCudaDoes(), pytest.raises(RuntimeError, match="cumsum"):
        torch.ones(3).cumsum(0)
    with RefusesWhatCudaDoes():
        torch.ones(3, dtype=torch.int64).cumsum(0)


@pytest.mark.parametrize("variant", POLICY_LOSSES)
def test_a_step_calls_nothing_that_is_refused(strategy, rank_program, variant):
    batch, loss = rank_program.make_batch(0), replace(rank_program.LOSS, pg_variant=variant)
    with RefusesWhatCudaDoes():
        strategy.train_step(batch, loss, rank_program.totals(batch))
        strategy.log_probs(batch)
