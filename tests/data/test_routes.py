"""The experts of each token, from single calls of an engine to a batch of the trainer."""

import json

import numpy as np
import pytest
import torch

from roll.core.data.extras import Extras
from roll.core.data.kept_tokens import KeptTokens
from roll.core.data.routes import Routes, batch_routes, told_apart, type_for
from roll.core.data.sample import Prompt, Sample, SampleGroup
from roll.core.data.token_batch import TokenBatch
from roll.core.trainer.batch import token_batch

LAYERS, EACH = 3, 2


def routes(tokens: int, seed: int = 0, experts: int = 8) -> Routes:
    draw = np.random.default_rng(seed)
    dtype = "uint8" if experts < 255 else "int16"
    return Routes(draw.integers(0, experts, (tokens, LAYERS, EACH)).astype(dtype))


def group(extras: list[Extras | None], response: int = 3) -> SampleGroup:
    prompt = Prompt("p", [5, 6], "", "", "", "")
    samples = [
        Sample(prompt, i, [7] * response, [-1.0] * response, [], "stop", reward=1.0, extras=e) for i, e in enumerate(extras)
    ]
    return SampleGroup(0, 0, prompt, samples)


@pytest.mark.parametrize("experts", [8, 300])
def test_they_come_back_from_json(experts: int) -> None:
    kept = KeptTokens.of([np.array([1, 2], np.int32)])
    made = group([Extras(kept, routes(4, experts=experts)), None], response=1)
    assert SampleGroup.from_json(json.loads(json.dumps(made.to_json()))) == made


def test_a_type_that_numbers_no_experts_is_refused() -> None:
    with pytest.raises(ValueError, match="uint8 or int16, not 'float64'"):
        Routes.from_json(["float64", [0, 3, 2], ""])


def test_calls_for_one_response_follow_each_other_and_a_later_turn_adds_what_is_new() -> None:
    """A prompt of 2 tokens, an answer of 3 in two calls, 2 tokens that an environment said, an answer of 2."""
    whole, again = routes(8), routes(8, seed=1)
    first = Extras(routes=Routes(whole.experts[:3])).then(Extras(routes=Routes(whole.experts[3:4]))).then(Extras())
    said = Extras().answered(0, first, 3).told(2)
    both = said.answered(5, Extras(routes=again), 2)
    assert both.routes == Routes(np.concatenate([whole.experts[:4], again.experts[4:]])), "the first keep theirs"
    assert said.answered(5, Extras(), 2).routes == first.routes


def test_a_batch_leaves_open_what_nobody_said() -> None:
    said = routes(4)
    batch = token_batch([group([Extras(routes=said), None])], 1.0)
    assert batch.routes is not None and batch.routes.dtype == type_for(8) and batch.routes.shape == (10, LAYERS, EACH)
    assert torch.equal(batch.routes[:4], torch.from_numpy(said.experts))
    assert (batch.routes[4:] == 255).all()
    assert token_batch([group([None, Extras()])], 1.0).routes is None


def test_batches_with_and_without_join_and_are_cut_again() -> None:
    with_, without = token_batch([group([Extras(routes=routes(4))])], 1.0), token_batch([group([None])], 1.0)
    joined = TokenBatch.joined([without, with_, with_])
    back = joined.select([2, 0])
    assert back.routes is not None and with_.routes is not None
    assert torch.equal(back.routes, torch.cat([with_.routes, torch.full((5, LAYERS, EACH), 255, dtype=torch.uint8)]))
    assert torch.equal(back.padded().routes[0], with_.routes)
    assert TokenBatch.joined([without, without]).routes is None


@pytest.mark.parametrize("experts", [8, 300])
def test_equal_tokens_are_told_apart_by_one_expert(experts: int) -> None:
    made = batch_routes([(4, routes(4, experts=experts)), (4, routes(4, experts=experts))])
    assert made is not None
    tokens = np.array([1, 2, 2, 3] * 2)
    same = told_apart(tokens, made)
    assert (same[:4] == same[4:]).all() and len(set(same.tolist())) == 4
    made[6, LAYERS - 1, EACH - 1] += 1
    other = told_apart(tokens, made)
    assert (other[:4] == other[4:]).tolist() == [True, True, False, True]
