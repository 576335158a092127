"""A slot's states outlive its request: the next turn of an episode computes only what is new, and gets what it would have got."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.strategies.infer.hf.kept_rows import LEAST, Beginning, KeptRows


def ids(count: int, seed: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(256) for _ in range(count)]


class Episodes:
    """Each turn's prompt is all that was said, and something new."""

    def __init__(self, lab: Any, engine: Any, said: list[list[int]], turn_tokens: int = 12) -> None:
        self.lab, self.engine, self.said, self.turn_tokens = lab, engine, said, turn_tokens
        self.turns = [0] * len(said)
        self.asked: list[tuple[tuple[int, ...], Any]] = []

    def play(self, which: list[int], at_border: Any = None) -> None:
        requests = []
        for i in which:
            self.said[i] += ids(5 + i, seed=100 * i + self.turns[i])
            self.turns[i] += 1
            requests.append(self.lab.request(f"{i}.{self.turns[i]}", self.said[i], max_new_tokens=self.turn_tokens))
        results = self.lab.run_all(self.engine, requests, at_border)
        for i, request in zip(which, requests, strict=True):
            result = results[request.request_id]
            self.asked.append((request.prompt_ids, result))
            self.said[i] += result.token_ids


def assert_right(lab: Any, plain: Any, asked: list[tuple[tuple[int, ...], Any]]) -> None:
    for prompt, result in asked:
        expected = lab.true_logprobs(plain, prompt, result.token_ids)
        assert torch.tensor(result.logprobs).sub(expected).abs().max() < 2e-5


@pytest.mark.parametrize("architecture", ["qwen2", "llama"])
def test_a_turn_computes_what_is_new_in_it(lab: Any, architecture: str) -> None:
    engine, plain = lab.engine(lab.model(architecture), slots=6, max_length=400), lab.model(architecture)
    episodes = Episodes(lab, engine, [ids(40 + 9 * i, seed=i) for i in range(6)])
    episodes.play([0, 1, 2, 3, 4, 5])
    for _ in range(5):
        before = engine.stats().prefill_tokens
        episodes.play([5, 2, 0, 1, 4, 3])
        # What was added to the prompts, and of each the last sampled token, whose states are not made while it is sampled.
        assert engine.stats().prefill_tokens - before == sum(5 + i + 1 for i in range(6))
    assert_right(lab, plain, episodes.asked)


def test_what_many_prompts_begin_with_is_computed_once(lab: Any) -> None:
    engine, plain = lab.engine(lab.model(), slots=4), lab.model()
    rules = ids(50, seed=1)
    asked = [lab.request(str(i), rules + ids(3 + i, seed=10 + i), max_new_tokens=4) for i in range(9)]
    first = lab.run_all(engine, asked[:1])
    begun = engine.stats().prefill_tokens
    results = first | lab.run_all(engine, asked[1:])
    assert engine.stats().prefill_tokens - begun == sum(3 + i for i in range(1, 9))
    assert_right(lab, plain, [(request.prompt_ids, results[request.request_id]) for request in asked])


def test_the_episode_that_was_silent_longest_gives_up_its_slot(lab: Any) -> None:
    engine = lab.engine(lab.model(), slots=3, max_length=400)
    episodes = Episodes(lab, engine, [ids(60, seed=i) for i in range(4)])
    for i in range(4):
        episodes.play([i])  # 3 slots: the fourth takes that of the first
    for i, computed in ((3, 5 + 3 + 1), (1, 5 + 1 + 1), (2, 5 + 2 + 1)):
        before = engine.stats().prefill_tokens
        episodes.play([i])
        assert engine.stats().prefill_tokens - before == computed
    before = engine.stats().prefill_tokens
    episodes.play([0])
    assert engine.stats().prefill_tokens - before == 60 + 12 + 5 + 5


@pytest.mark.parametrize("mode", ["interrupt", "in_flight"])
def test_nothing_of_older_weights_is_continued(lab: Any, mode: str) -> None:
    new = lab.model(seed=1)
    engine = lab.engine(lab.model(seed=0), slots=4, max_length=400)
    buckets, manifest = lab.weights(new, 1)
    episodes = Episodes(lab, engine, [ids(40, seed=i) for i in range(4)])
    episodes.play([0, 1])

    def update(step: int) -> None:
        if step == 6:
            for bucket in buckets:
                engine.shadow.receive(1, bucket)
            engine.activate(manifest, mode)

    episodes.play([0, 1, 2, 3], update)  # all four are running when the weights change
    before, episodes.asked = engine.stats().prefill_tokens, []
    whole = sum(len(said) + 5 + i for i, said in enumerate(episodes.said))
    episodes.play([0, 1, 2, 3])
    computed = engine.stats().prefill_tokens - before
    assert computed == whole if mode == "in_flight" else computed < whole / 4
    assert_right(lab, new, episodes.asked)


def test_an_engine_that_slept_has_kept_nothing(lab: Any) -> None:
    engine, plain = lab.engine(lab.model()), lab.model()
    episodes = Episodes(lab, engine, [ids(30, seed=3)])
    episodes.play([0])
    engine.sleep()
    engine.wake()
    before = engine.stats().prefill_tokens
    episodes.play([0])
    assert engine.stats().prefill_tokens - before == 30 + 5 + 12 + 5
    assert_right(lab, plain, episodes.asked)


def test_a_deterministic_engine_computes_every_turn_whole(lab: Any) -> None:
    engine = lab.engine(lab.model(), deterministic=True)
    episodes = Episodes(lab, engine, [ids(30, seed=3)])
    episodes.play([0])
    episodes.play([0])
    assert engine.stats().prefill_tokens == 35 + 35 + 12 + 5


@settings(max_examples=25, deadline=None)
@given(st.randoms(use_true_random=False))
def test_any_company_gets_what_each_would_get_alone(lab: Any, draw: random.Random) -> None:
    """Turns that come together or one by one, more episodes than slots, new ones between, aborts, prompts that share rules."""
    slots = draw.randint(1, 5)
    engine, plain = lab.engine(lab.model(), slots=slots, max_length=300), lab.model()
    rules = ids(draw.choice((0, 10, 30)), seed=0)
    episodes = Episodes(lab, engine, [rules + ids(draw.randint(1, 40), seed=i) for i in range(7)], turn_tokens=draw.randint(1, 9))
    for _ in range(6):
        names = draw.sample(range(7), draw.randint(1, 7))

        def abort(step: int) -> None:
            if draw.random() < 0.1:
                engine.abort([f"{draw.randrange(7)}.{draw.randint(1, 6)}"])

        episodes.play(names, abort)
    assert_right(lab, plain, [(prompt, result) for prompt, result in episodes.asked if result.token_ids])


# -- the bookkeeping -------------------------------------------------------------------------------------------------------


class Slots:
    """What slots really hold, moved as the bookkeeping says."""

    def __init__(self, count: int) -> None:
        self.held: list[tuple[int, ...]] = [()] * count
        self.kept = KeptRows(count)

    def moved(self, moves: Iterator[tuple[int, int, int]]) -> None:
        for source, target, tokens in moves:
            self.held[target] = self.held[source][:tokens]


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 6), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(0, 5)), max_size=40))
def test_a_slot_holds_what_it_is_said_to(count: int, turns: list[tuple[int, int, int]]) -> None:
    """One row at a time, in slot 0, and then it is kept where it was, or swapped with nothing."""
    slots = Slots(count)
    for seed, length, branch in turns:
        tokens = [*ids(length, seed), *ids(3, 1000 + branch)]
        found = slots.kept.beginning(tokens)
        if found is not None:
            assert LEAST <= found.tokens < len(tokens)
            assert slots.held[found.slot][: found.tokens] == tuple(tokens[: found.tokens])
        slots.moved(slots.kept.give_up(range(1), [] if found is None else [found]))
        slots.held[0] = tuple(tokens)
        slots.kept.keep(0, tokens)


def test_most_of_the_beginning_is_found_but_never_the_last_token() -> None:
    kept = KeptRows(4)
    tokens = ids(40, seed=0)
    assert kept.beginning(tokens) is None
    kept.keep(3, tokens[:20])
    kept.keep(2, [*tokens[:30], 1, 2, 3])
    kept.keep(1, tokens[: LEAST - 1])
    assert kept.beginning(tokens) == Beginning(2, 30)
    assert kept.beginning(tokens[:20]) == Beginning(2, 19)
    assert kept.beginning(tokens[:LEAST]) is None
    kept.clear()
    assert kept.beginning(tokens) is None
