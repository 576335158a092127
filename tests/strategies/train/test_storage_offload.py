"""Memory that a role gives up for another's turn: emptied below live tensors, and filled again."""

import torch
from train_specs import fsdp2_spec

from roll.core.workers.train_interface import RankContext
from roll.strategies.train.fsdp2 import FSDP2Strategy
from roll.strategies.train.sharding import local


def held(strategy):
    """Everything that a rank keeps between two steps, but for counters."""
    moments = [state[m] for state in strategy._optimizer.state.values() for m in ("exp_avg", "exp_avg_sq")]
    return [local(t.detach()) for t in (*strategy._model.parameters(), *strategy._model.buffers(), *moments)]


def test_a_step_after_a_turn_of_others_is_that_of_a_trainer_that_stayed(model_path, rank_program):
    """FSDP2 on a mesh of one, as on a GPU; its parts are not registered anew, they are the same tensors."""
    stayed, moved = (FSDP2Strategy(RankContext(), fsdp2_spec(model_path, dtype="bf16")) for _ in range(2))
    for step in range(3):
        batch = rank_program.make_batch(step)
        metrics = [each.train_step(batch, rank_program.LOSS, rank_program.totals(batch)) for each in (stayed, moved)]
        assert metrics[0] == metrics[1]
        before = [(tensor, tensor.clone()) for tensor in held(moved)]
        moved._free_device()
        assert not any(tensor.untyped_storage().nbytes() for tensor, _ in before), "nothing stays on the device"
        moved._free_device()  # the turn is another role's already
        moved._fill_device()
        assert all(torch.equal(tensor, content) for tensor, content in before)
    assert all(torch.equal(one, other) for one, other in zip(held(stayed), held(moved), strict=True))
    weights = [{n: t for bucket in each.export_weights(1 << 20) for n, t in bucket.tensors.items()} for each in (stayed, moved)]
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())


def test_host_memory_is_one_piece_and_the_same_in_every_turn(model_path, rank_program):
    strategy = FSDP2Strategy(RankContext(), fsdp2_spec(model_path, dtype="bf16"))
    batch = rank_program.make_batch(0)
    strategy.train_step(batch, rank_program.LOSS, rank_program.totals(batch))
    places = set()
    for _ in range(3):
        strategy._free_device()
        places.add((strategy._offloaded._host.data_ptr(), strategy._offloaded._host.numel()))
        strategy._fill_device()
    ((_, size),) = places
    assert sum(tensor.nbytes for tensor in held(strategy)) <= size < 2 * 512 * len(held(strategy)) + size
