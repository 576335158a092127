"""What teaches nothing takes part less often; the rest as before."""

import json
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roll.core.configs.arguments import PassRateConfig
from roll.core.data.pass_rates import share
from roll.core.data.sample import JUDGED, Sample, SampleGroup
from roll.prompts.pass_rates import PassRates, difficulty
from roll.prompts.prompt_source import PromptSource
from roll.prompts.stored_rows import TokenizedRow

VISITS = st.lists(st.tuples(st.integers(0, 11), st.integers(0, 8)), max_size=40)
"""(row, how many of eight responses pass)"""


def rates_of(visited, seed=1, **options):
    rates = PassRates(PassRateConfig(**options), seed)
    for row, passed in visited:
        rates.visited("math", row, passed, 8)
        rates.settle()
    return rates


@given(rate=st.floats(0, 1), least=st.floats(0.01, 1))
def test_the_share_is_the_formula_of_the_documentation(rate, least):
    assert share(rate, least) == pytest.approx(least + (1 - least) * 4 * rate * (1 - rate))
    assert least - 1e-12 <= share(rate, least) <= 1 + 1e-12
    assert share(0.5, least) == pytest.approx(1) and share(0, least) == share(1, least) == least


@given(visits=VISITS, seed=st.integers(0, 99), epoch=st.integers(1, 9))
def test_what_was_never_visited_or_passes_half_of_the_time_takes_part(visits, seed, epoch):
    rates = rates_of(visits, seed, visits=1)
    last = dict(visits)
    left_out = rates.left_out("math", epoch, 12)
    assert all(row in last and last[row] != 4 for row in left_out)
    assert list(left_out) == sorted(set(left_out)) and len(left_out) < 12
    assert rates_of(visits, seed, visits=1).left_out("math", epoch, 12) == left_out
    assert not rates_of(visits, seed, least=1.0).left_out("math", epoch, 12)


def test_prompts_take_part_as_often_as_the_formula_says():
    rates = rates_of([(row, passed) for passed in range(9) for row in range(200 * passed, 200 * passed + 200)], least=0.25)
    out = [0] * 9
    for epoch in range(1, 41):
        for row in rates.left_out("math", epoch, 2000):
            out[row // 200] += 1
    for passed, count in enumerate(out):
        assert 1 - count / 8000 == pytest.approx(share(passed / 8, 0.25), abs=0.02)
    assert out[0] > out[1] > out[2] > out[3] > out[4] == 0


def test_the_rate_is_that_of_the_last_visits():
    rates = rates_of([(0, 0), (0, 0), (0, 8), (0, 4)], visits=2)
    assert rates.state()["known"] == {"math": {"0": ((8, 8), (4, 8))}}
    assert [difficulty(((passed, 8),)) for passed in (0, 1, 4, 5, 7, 8)] == ["never", "hard", "hard", "easy", "easy", "always"]
    assert difficulty(()) == "new"


def test_what_is_measured_counts_when_a_step_is_trained_in_whatever_order_it_came():
    one, other = PassRates(PassRateConfig(), 1), PassRates(PassRateConfig(), 1)
    visits = [("math", 1, 3, 8), ("math", 0, 8, 8), ("code", 5, 0, 8)]
    for rates, given_visits in ((one, visits), (other, visits[::-1])):
        for visit in given_visits:
            rates.visited(*visit)
        assert rates.state()["known"] == {}
        rates.settle()
    assert one.state() == other.state()
    assert one.metrics(10) == {
        "pass_rate/new/prompts": 7, "pass_rate/never/prompts": 1, "pass_rate/hard/prompts": 1, "pass_rate/easy/prompts": 0,
        "pass_rate/always/prompts": 1, "pass_rate/new/mean": 11 / 24,
    }  # fmt: skip
    one.visited("math", 1, 8, 8)
    one.settle()
    assert one.metrics(10)["pass_rate/hard/mean"] == 1 and "pass_rate/new/mean" not in one.metrics(10)
    assert one.metrics(10)["pass_rate/easy/prompts"] == 1, "3 of 8, then 8 of 8"


# -- in a sequence of prompts -------------------------------------------------------------------------------------------


def source_of(sizes, seed=1, **options):
    rows = {d: [TokenizedRow(f"row/{i}", d, "tag", f"text {i}", [i], str(i)) for i in range(n)] for d, n in sizes.items()}
    return PromptSource(rows, {}, seed, None, PassRates(PassRateConfig(**options), seed))


def rolled_out(prompt):
    """Rows whose number is divisible by 3 always pass; the others never."""
    passes = int(prompt.uid.rpartition("/")[2]) % 3 == 0
    return SampleGroup(0, 0, prompt, [Sample(prompt, i, [1], [0.0], [], "stop", "", float(passes)) for i in range(2)])


def serve(source, count, every=4):
    """As a run does: a step is trained when `every` prompts have been served."""
    served = []
    for number in range(1, count + 1):
        prompt = source.next()
        served.append(prompt.uid)
        source.ended(rolled_out(prompt))
        if number % every == 0:
            source.settle()
    return served


@given(sizes=st.dictionaries(st.sampled_from("abc"), st.integers(1, 6), min_size=1), seed=st.integers(0, 99))
def test_each_prompt_is_served_at_most_once_an_epoch_and_in_the_first_epoch_once(sizes, seed):
    served = serve(source_of(sizes, seed), 60)
    assert len(set(served)) == len(served)
    for domain, size in sizes.items():
        epochs = [int(uid.split("/")[1]) for uid in served if uid.startswith(f"{domain}/")]
        assert all(0 <= other - one <= 1 for one, other in pairwise(epochs))
        assert epochs.count(0) == min(size, len(epochs))


@given(
    sizes=st.dictionaries(st.sampled_from("ab"), st.integers(1, 6), min_size=1), steps=st.integers(0, 9), seed=st.integers(0, 9)
)
def test_a_restored_source_continues_identically(sizes, steps, seed):
    source = source_of(sizes, seed)
    serve(source, 4 * steps)
    cursor = json.loads(json.dumps(source.cursor()))
    restored = source_of(sizes, seed)
    restored.restore(cursor)
    assert restored.cursor() == source.cursor() and restored.metrics() == source.metrics()
    assert serve(restored, 40) == serve(source, 40)


def test_what_is_left_out_is_told_and_a_source_may_go_back():
    source = source_of({"a": 30}, least=0.1)
    beginning = json.loads(json.dumps(source.cursor()))
    first = serve(source, 31)
    left_out = source.metrics()["pass_rate/left_out/a"]
    assert 15 < left_out < 30
    assert sum(uid.startswith("a/1/") for uid in first + serve(source, 60)) == 30 - left_out
    source.restore(beginning)
    assert serve(source, 31) == first and source.metrics()["pass_rate/left_out/a"] == left_out


def test_a_checkpoint_knows_whether_pass_rates_decided():
    without = PromptSource({"a": [TokenizedRow("row/0", "a", "tag", "text 0", [0], "0")]}, {}, 1)
    with pytest.raises(ValueError, match="made without pass_rate_curriculum"):
        source_of({"a": 1}).restore(without.cursor())
    with pytest.raises(ValueError, match="made with pass_rate_curriculum"):
        without.restore(source_of({"a": 1}).cursor())


def test_a_response_passes_with_a_full_judgement_and_one_without_a_reward_does_not_count():
    source = source_of({"a": 1})
    prompt = source.next()
    given_rewards = [(1.0, {}), (0.7, {JUDGED: 1.0}), (0.5, {}), (None, {})]
    samples = [
        Sample(prompt, i, [1], [0.0], [], "stop", "", reward, reward_parts=parts)
        for i, (reward, parts) in enumerate(given_rewards)
    ]
    source.ended(SampleGroup(0, 0, prompt, samples))
    source.ended(SampleGroup(1, 0, prompt, samples[3:]))
    assert source.cursor()["pass_rates"]["since"] == [("a", 0, 2, 3)]
    assert SimpleNamespace(**source.cursor()).epochs == {"a": [0, 0, []]}
