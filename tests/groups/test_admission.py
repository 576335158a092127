import itertools
import math
import random
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.core.configs.staleness import deepest_pipeline
from roll.core.errors import AccountingError
from roll.core.groups.admission import Admission
from roll.core.groups.pipeline_depth import PipelineDepth
from roll.core.groups.reuse import Trained
from roll.core.groups.ticket import GroupState

sys.path.insert(0, str(Path(__file__).parent))
from virtual_run import simulate
from virtual_weights import VirtualWeights

RATIOS = [0, 0.25, 0.5, 1, 1.5, 2, 4]


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    ratio=st.sampled_from(RATIOS),
    batch=st.integers(1, 9),
    policy=st.sampled_from(["wait", "drop"]),
    extra=st.sampled_from([0, 0, 3]),
    adaptive=st.booleans(),
    slots=st.sampled_from([1, 4, 10**9]),
    heavy_tail=st.floats(0.1, 3.0),
    ahead=st.booleans(),
    on_arrival=st.booleans(),
    max_reuse=st.integers(1, 4),
    newest=st.booleans(),
    falls_back_at=st.one_of(st.none(), st.integers(1, 60)),
)
def test_staleness_is_bounded_and_nothing_is_lost_whatever_happens(
    seed, ratio, batch, policy, extra, adaptive, slots, heavy_tail, ahead, on_arrival, max_reuse, newest, falls_back_at
):
    """Random durations, failures, filters, pauses and slow publications, the next step scored ahead or not, groups taken as they
    come or not, a fallback to the synchronous schedule at any moment or none: every use of a group is at most ceil(ratio)
    versions old, accounts balance at every event (checked inside), each id is trained by `max_reuse` steps at most, and the run
    always ends."""
    rng = random.Random(seed)
    options = {"max_reuse": max_reuse, "order": "newest" if newest and policy == "drop" else "fifo"}
    admission = Admission(batch, ratio, max_steps=12, policy=policy, extra_groups=extra, **options)
    depth = PipelineDepth(deepest_pipeline(ratio, 1, max_reuse)) if adaptive else PipelineDepth(ratio, ratio)
    statuses = itertools.count()

    def status(_):
        if next(statuses) == falls_back_at:
            admission.go_synchronous()
        return rng.choice([None, None, None, "filter_mean_low", "reward_error"])

    outcome = simulate(
        admission,
        depth,
        duration=lambda _: rng.lognormvariate(0, heavy_tail),
        status=status,
        train_s=lambda _: rng.expovariate(1.0),
        publish_s=lambda _: rng.expovariate(2.0),
        slots=slots,
        pauses=lambda _: rng.expovariate(4.0),
        score_s=lambda _: rng.expovariate(1.0),
        ahead=ahead,
        on_arrival=on_arrival,
    )
    assert not outcome.stuck
    assert max(outcome.lags) <= math.ceil(ratio)
    assert all(len(ids) == len(set(ids)) == batch for ids in outcome.trained_by_step)
    uses = Counter(outcome.trained_ids)
    assert max(uses.values()) <= max_reuse
    assert (admission.trained, admission.reuse.done) == (len(uses), 12 * batch - len(uses))
    if policy == "wait" and not extra:
        assert set(admission.dropped) <= {"filter_mean_low", "reward_error"}, "waiting never drops a group for its age"


@pytest.mark.parametrize("ratio", [0.5, 1, 2, 4])
def test_after_a_fallback_what_is_under_way_is_trained_and_then_every_group_is_on_policy(ratio):
    admission = Admission(4, ratio, max_steps=20)

    def train_s(step):
        if step == 5:
            admission.go_synchronous()
        return 1.0

    outcome = simulate(admission, PipelineDepth(ratio, ratio), duration=lambda _: 1.0, train_s=train_s, publish_s=lambda _: 0.1)
    lags = [outcome.lags[4 * step : 4 * step + 4] for step in range(20)]
    assert not outcome.stuck and not admission.dropped and admission.trained == 80
    assert max(map(max, lags[:6])) > 0 and lags[6 + math.ceil(ratio) :] == [[0] * 4] * (14 - math.ceil(ratio))


class AgainstItsDefinition(Admission):
    """Compares every selection with what its definition says, written down without counting ahead."""

    def select(self, step, leased=(), lacking=None):
        expected = self.by_definition(step, leased)
        selection = super().select(step, leased, lacking)
        assert (selection.take, selection.drop) == expected
        assert bool(selection.take) != bool(selection.waiting_for)
        return selection

    def by_definition(self, step, leased):
        tickets = [ticket for ticket in self.live.values() if ticket.group_id not in leased]
        tickets.sort(key=lambda ticket: (ticket.start_version, ticket.group_id))
        drop = {ticket.group_id: "stale" for ticket in tickets if self.deadline(ticket) < step}
        tickets = [ticket for ticket in tickets if ticket.group_id not in drop]
        take = [ticket for ticket in tickets if ticket.state is GroupState.BUFFERED][: self.batch_groups]
        trained = [group for group in self.reuse.groups.values() if group.start_version + self.bound >= step]
        trained.sort(key=lambda group: (group.uses, -group.start_version, group.group_id))
        again = again_at_first = [] if leased else trained[: self.batch_groups - len(take)]
        if len(take) + len(again) < self.batch_groups:
            return (), drop
        left, late = [], []
        for ticket in tickets if self.policy == "wait" or again else ():
            if ticket in take:
                continue
            left.append(ticket)
            if len(left) > (self.deadline(ticket) - step) * self.batch_groups:
                in_flight = [other for other in left if other.state is GroupState.IN_FLIGHT]
                late.append((in_flight or left)[-1])
                left.remove(late[-1])
        for ticket in late:
            if self.extra_groups and not again_at_first:
                drop[ticket.group_id] = "redundant"
            elif ticket.state is GroupState.BUFFERED:
                drop[ticket.group_id] = "stale"
            else:
                take = again = []
        return tuple(sorted(group.group_id for group in [*take, *again])), drop


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    ratio=st.sampled_from(RATIOS),
    batch=st.integers(1, 9),
    policy=st.sampled_from(["wait", "drop"]),
    extra=st.sampled_from([0, 3]),
    max_reuse=st.integers(1, 3),
    ahead=st.booleans(),
)
def test_a_selection_is_what_its_definition_says_though_it_looks_at_ready_groups_only(
    seed, ratio, batch, policy, extra, max_reuse, ahead
):
    rng = random.Random(seed)
    outcome = simulate(
        AgainstItsDefinition(batch, ratio, max_steps=8, policy=policy, extra_groups=extra, max_reuse=max_reuse),
        PipelineDepth(ratio, ratio),
        duration=lambda _: rng.lognormvariate(0, 1.5),
        status=lambda _: rng.choice([None, None, None, "reward_error"]),
        train_s=lambda _: rng.expovariate(1.0),
        publish_s=lambda _: rng.expovariate(2.0),
        slots=10**9,
        pauses=lambda _: rng.expovariate(4.0),
        score_s=lambda _: rng.expovariate(1.0),
        ahead=ahead,
    )
    assert not outcome.stuck


class Numbered(Admission):
    """Notes of every group that starts how many count before it, trained or live, and under which version it starts."""

    def start(self, version=None):
        number = self.trained + len(self.live)
        ticket = super().start(version)
        self.starts = [*getattr(self, "starts", []), (number, ticket.start_version)]
        return ticket


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    k=st.integers(1, 5),
    batch=st.integers(1, 5),
    drops=st.booleans(),
    slots=st.sampled_from([1, 4, 10**9]),
    engines=st.integers(1, 3),
)
def test_with_weights_every_k_steps_and_no_more_ahead_a_task_is_sampled_by_a_version_that_its_number_decides(
    seed, k, batch, drops, slots, engines
):
    """Task i sees version k * (i // (k * B)), whatever takes how long: an exchange once every k * B tasks, as others call it."""
    rng = random.Random(seed)
    admission, depth = Numbered(batch, k - 1, max_steps=13), PipelineDepth(k - 1, k - 1)
    outcome = simulate(
        admission,
        depth,
        duration=lambda _: rng.lognormvariate(0, 1.5),
        status=lambda _: rng.choice([None, None, "filter_std"]) if drops else None,
        train_s=lambda _: rng.expovariate(1.0),
        publish_s=lambda _: rng.expovariate(2.0),
        slots=slots,
        weights=VirtualWeights(admission, depth, push=k, engines=engines, load_s=lambda _: rng.expovariate(4.0)),
    )
    assert not outcome.stuck
    assert admission.starts == [(number, number // (k * batch) * k) for number, _ in admission.starts]
    if not drops:
        assert [number for number, _ in admission.starts] == list(range(13 * batch))


def test_the_cost_of_a_selection_does_not_grow_with_what_is_in_flight():
    """Counted, not timed: tickets that are looked at while a batch of 4 waits among 5,000 groups in flight."""

    class Counted(dict):
        looked_at = 0

        def values(self):
            for value in super().values():
                self.looked_at += 1
                yield value

    admission = Admission(4, 2000.0, max_steps=10**6)
    admission.live = Counted()
    for _ in range(5000):
        admission.start()
    for group_id in range(4000, 4004):
        admission.select(0)
        admission.complete(group_id)
    assert admission.select(0).take == (4000, 4001, 4002, 4003)
    assert admission.live.looked_at <= 10


@pytest.mark.parametrize("ratio", RATIOS)
def test_a_slow_group_is_awaited_not_overtaken_beyond_the_bound(ratio):
    """One group takes 40 train steps: it is trained, and never later than the bound allows."""
    admission = Admission(4, ratio, max_steps=60)
    outcome = simulate(
        admission, PipelineDepth(ratio, ratio), duration=lambda group: 40.0 if group == 2 else 0.1, train_s=lambda _: 1.0
    )
    assert max(outcome.lags) <= math.ceil(ratio)
    step_of_slow = next(i for i, ids in enumerate(outcome.trained_by_step) if 2 in ids)
    assert step_of_slow <= math.ceil(ratio)
    assert not admission.dropped


def test_with_instant_generation_the_lag_is_far_below_the_bound():
    """ROLL fills its allowance at once and trains 97 / 93 / 90 % of samples at the bound for ratio 1 / 2 / 3."""
    for ratio in (1, 2, 4):
        outcome = simulate(Admission(32, ratio, max_steps=30), PipelineDepth(ratio), duration=lambda _: 1e-6)
        assert sum(outcome.lags) / len(outcome.lags) < 0.1 * ratio


@pytest.mark.parametrize("ratio", [1, 2, 4])
def test_when_rollout_takes_as_long_as_training_the_trainer_is_kept_busy_with_one_batch_of_lead(ratio):
    """32 groups a step on 32 slots, each 0.9 of a train step: one batch of depth is needed, and not more is used."""
    rng = random.Random(0)
    outcome = simulate(
        Admission(32, ratio, max_steps=100),
        PipelineDepth(ratio),
        duration=lambda _: rng.uniform(0.7, 0.9),
        train_s=lambda _: 1.0,
        slots=32,
    )
    assert outcome.wait_s / outcome.wall_s < 0.08
    assert sum(outcome.lags) / len(outcome.lags) <= 1.3


def test_a_long_tail_uses_the_allowance_it_needs():
    """Groups that take 2.5 train steps need more than two batches of lead; with ratio 4 the trainer hardly waits."""
    outcome = simulate(Admission(8, 4, max_steps=100), PipelineDepth(4), duration=lambda _: 2.5, train_s=lambda _: 1.0)
    assert outcome.wait_s / outcome.wall_s < 0.15
    assert 2 <= sum(outcome.lags) / len(outcome.lags) <= 4


@pytest.mark.parametrize(("ratio", "score_s"), [(1, 0.4), (2, 0.95)])
def test_scoring_ahead_costs_nothing_where_the_ratio_leaves_room_for_it(ratio, score_s):
    """Rollouts, scores and training of three steps at the same time. A step takes the longest of the three, or the sum of all
    over 1 + ratio, whichever is more; one after the other, scoring would be added to training."""

    def step_s(ahead):
        outcome = simulate(
            Admission(8, ratio, max_steps=400),
            PipelineDepth(ratio),
            duration=lambda _: 0.6,
            score_s=lambda _: score_s,
            ahead=ahead,
        )
        assert max(outcome.lags) <= ratio
        return outcome.wall_s / 400

    assert step_s(True) < 1.02 < 1 + score_s - 0.01 < step_s(False)


@pytest.mark.parametrize(("rollout_s", "score_s", "lag"), [(0.1, 0.9, 1), (0.1, 2.0, 1), (1.0, 1.0, 2), (2.5, 0.5, 3)])
def test_scoring_ahead_takes_no_more_lag_than_it_needs(rollout_s, score_s, lag):
    outcome = simulate(
        Admission(8, 8, max_steps=300),
        PipelineDepth(8),
        duration=lambda _: rollout_s,
        score_s=lambda _: score_s,
        ahead=True,
    )
    assert outcome.wall_s / 300 < 1.07 * max(score_s, 1.0)
    assert sum(outcome.lags) / len(outcome.lags) <= lag


def test_at_ratio_0_there_is_nothing_to_score_ahead():
    options = {"duration": lambda _: 1.0, "score_s": lambda _: 0.5}
    before, ahead = (simulate(Admission(8, 0, max_steps=10), PipelineDepth(0), ahead=a, **options) for a in (False, True))
    assert before.wall_s == ahead.wall_s and set(ahead.lags) == {0}


def test_groups_are_taken_as_they_come_unless_that_makes_others_too_old():
    admission = Admission(2, 1, max_steps=10)
    for _ in range(4):
        admission.start()
    admission.complete(3)
    assert admission.select(0, (), 2).take == (3,)
    admission.complete(2)
    chosen = admission.select(0, (3,), 1)
    assert chosen.take == (2,), "0 and 1 can be trained by step 1"
    admission.train((3, 2))
    admission.set_served(1)
    admission.start()
    admission.complete(4)
    chosen = admission.select(1, (), 2)
    assert chosen.take == () and "group 0, 1 in flight" not in chosen.waiting_for and "1 in flight" in chosen.waiting_for
    admission.complete(1)
    assert admission.select(1, (), 2).take == (1,), "0 is the other group of step 1"
    assert admission.next_step == 1


def test_fractional_ratio_admits_that_part_of_a_batch_ahead():
    admission = Admission(10, 0.5, max_steps=100)
    started = 0
    while admission.may_start():
        admission.start()
        started += 1
    assert started == 15


def test_a_dropped_group_gives_its_ticket_back():
    admission = Admission(2, 0, max_steps=10)
    first, _ = admission.start(), admission.start()
    assert not admission.may_start()
    admission.drop(first.group_id, "filter_std")
    assert admission.may_start()
    assert admission.counts()["dropped"] == {"filter_std": 1}


def test_nothing_starts_that_the_run_could_not_train():
    admission = Admission(4, 4, max_steps=2)
    while admission.may_start():
        admission.start()
    assert admission.admitted == 8


@pytest.mark.parametrize("move", ["drop", "complete", "train"])
def test_a_group_has_one_terminal_status(move):
    admission = Admission(1, 0, max_steps=2)
    group = admission.start().group_id
    admission.complete(group)
    admission.train((group,))
    with pytest.raises(AccountingError, match=f"group {group}"):
        {
            "drop": lambda: admission.drop(group, "x"),
            "complete": lambda: admission.complete(group),
            "train": lambda: admission.train((group,)),
        }[move]()


def test_restored_accounts_balance_and_ids_go_on():
    admission = Admission(2, 1, max_steps=10)
    ids = [admission.start().group_id for _ in range(4)]
    for i in ids[:3]:
        admission.complete(i)
    admission.train((0, 1))
    state = admission.state()
    again = Admission(2, 1, max_steps=10, version=1)
    again.restore(state, {2: 0})
    again.check()
    assert again.counts() == {"admitted": 3, "trained": 2, "reused": 0, "buffered": 1, "in_flight": 0, "dropped": {}}
    assert again.start().group_id == 4


@pytest.mark.parametrize("starts", [[0] * 8, [0] * 5 + [1] * 4])
def test_a_resume_with_a_smaller_ratio_goes_on(starts):
    """The buffer holds more groups of a version than the smaller bound has steps for: the rest is dropped, not waited for."""
    admission = Admission(4, 1, max_steps=10, version=1)
    admission.restore({"next_group_id": 20, "trained": 4, "reused": 0, "dropped": {}}, dict(enumerate(starts)))
    chosen = admission.select(1)
    assert len(chosen.take) == 4 and set(chosen.drop.values()) == {"stale"}
    for group_id, reason in chosen.drop.items():
        admission.drop(group_id, reason)
    admission.train(chosen.take)
    admission.check()
    assert all(admission.deadline(ticket) > 1 for ticket in admission.live.values())
    admission.set_served(2)
    assert admission.may_start()


class GoesOn(AgainstItsDefinition):
    """A run that goes on from a checkpoint: its first tasks have parts that came about under older versions."""

    def start(self, version=None):
        ticket = super().start(self.earliest(self.begun.pop()) if version is None and self.begun else version)
        self.older += ticket.start_version < self.version
        return ticket


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    ratio=st.sampled_from([0, 0.5, 1, 1.5, 2, 4]),
    batch=st.integers(1, 6),
    policy=st.sampled_from(["wait", "drop"]),
)
def test_groups_that_began_before_a_checkpoint_are_trained_within_their_own_bound(seed, ratio, batch, policy):
    """Whatever versions are on record, and whatever lies buffered: nothing is staler than the bound counted from the oldest of a
    group's turns, and nothing is dropped for its age where the run waits."""
    rng, done = random.Random(seed), 5
    admission = GoesOn(batch, ratio, max_steps=14, policy=policy, version=done)
    bound = admission.bound
    buffered = {20 + i: rng.randint(done - bound, done) for i in range(rng.randint(0, math.floor(ratio * batch)))}
    buffered = dict(zip(buffered, sorted(buffered.values(), reverse=True), strict=True))
    state = {"next_group_id": 40, "trained": done * batch, "reused": 0, "dropped": {}}
    admission.restore(state, buffered if fits(buffered, done, bound, batch) else {})
    versions = range(done - bound - 1, done + 1)
    admission.begun, admission.older = [rng.choices(versions, k=rng.randint(0, 3)) for _ in range(2 * batch)], 0
    outcome = simulate(
        admission,
        PipelineDepth(ratio, ratio),
        duration=lambda _: rng.lognormvariate(0, 1.5),
        publish_s=lambda _: rng.expovariate(2.0),
        first_step=done,
    )
    assert not outcome.stuck and max(outcome.lags) <= bound
    assert policy == "drop" or not admission.dropped
    assert not admission.older or bound


def fits(buffered, done, bound, batch):
    """There is a place for each before its deadline."""
    deadlines = [version + bound for version in buffered.values()]
    return all(sum(each <= step for each in deadlines) <= (step + 1 - done) * batch for step in range(done, done + bound + 1))


def test_a_group_starts_under_the_oldest_of_its_versions_that_has_room():
    admission = Admission(2, 2, max_steps=20, version=5)
    assert admission.earliest([]) == admission.earliest([5, 6]) == 5
    assert admission.earliest([2, 3, 4]) == 3, "one of version 2 is too stale for step 5"
    started = [admission.start(admission.earliest([3, 4])).start_version for _ in range(6)]
    assert started == [3, 3, 4, 4, 5, 5], "as many as could be trained by the deadlines of each version"
    for group_id in (5, 3, 1, 0):
        admission.complete(group_id)
    assert admission.select(5).take == (0, 1), "those with the earliest deadline go first"


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), ratio=st.sampled_from([1, 1.5, 2, 4]), batch=st.integers(1, 6))
def test_a_reuse_takes_no_place_that_a_group_needs_which_was_never_trained(seed, ratio, batch):
    """Rollouts that take as long as several steps: without reuse none is dropped for its age, and with it none either."""
    rng = random.Random(seed)
    admission = Admission(batch, ratio, max_steps=15, policy="drop", max_reuse=math.ceil(ratio) + 1)
    simulate(admission, PipelineDepth(ratio, ratio), duration=lambda _: rng.uniform(0.9, 1.0) * admission.bound)
    assert not admission.dropped


def test_a_trainer_that_is_faster_than_the_rollouts_trains_groups_again_instead_of_waiting():
    def waited(max_reuse):
        admission, depth = Admission(8, 4, max_steps=60, max_reuse=max_reuse), PipelineDepth(deepest_pipeline(4, 1, max_reuse))
        outcome = simulate(admission, depth, duration=lambda _: 2.0, train_s=lambda _: 1.0, slots=8)
        return outcome.wait_s / outcome.wall_s, outcome

    once, _ = waited(1)
    twice, outcome = waited(2)
    assert once > 0.45 and twice < 0.25
    assert 0.3 < outcome.reuses / len(outcome.trained_ids) <= 0.5


def test_rollouts_run_ahead_rather_than_that_groups_are_trained_again():
    """Rollouts as fast as training: the depth learns from what reuses stood in for, and hardly a group is trained again."""
    admission = Admission(8, 4, max_steps=100, max_reuse=2)
    outcome = simulate(
        admission, PipelineDepth(deepest_pipeline(4, 1, 2)), duration=lambda _: 0.9, train_s=lambda _: 1.0, slots=8
    )
    assert outcome.reuses / len(outcome.trained_ids) < 0.15


def ready(admission, count):
    for _ in range(count):
        admission.complete(admission.start().group_id)


def use(admission, step, *group_ids):
    assert admission.select(step).take == group_ids
    admission.reuse.lease(group_ids)
    admission.train(group_ids)
    admission.check()


def test_those_that_were_trained_least_often_are_trained_again_first_and_of_these_the_newest():
    admission = Admission(2, 3, max_steps=10, max_reuse=3)
    ready(admission, 2)
    use(admission, 0, 0, 1)
    admission.set_served(1)
    ready(admission, 1)
    use(admission, 1, 0, 2)  # 2 is new; of 0 and 1 the first
    use(admission, 2, 1, 2)  # once each, and 2 is newer
    use(admission, 3, 0, 2)  # twice each: 2 is newer, then the first of 0 and 1
    assert admission.select(4).waiting_for == "2 of 2 groups", "0 and 2 were trained three times, 1 has passed its deadline"
    assert (admission.trained, admission.reuse.done) == (3, 5)


def test_a_leased_reuse_counts_towards_the_limit_before_it_is_trained():
    """Under version 0 three batches may start. One was trained, and one is being trained again: there is room for one more."""
    admission = Admission(2, 2, max_steps=10, max_reuse=2)
    ready(admission, 2)
    use(admission, 0, 0, 1)
    selection = admission.select(1)
    admission.reuse.lease(selection.take)
    started = 0
    while admission.may_start():
        admission.start()
        started += 1
    assert (selection.take, started) == ((0, 1), 2)


def test_the_newest_ready_groups_go_first_and_those_that_are_overtaken_for_too_long_are_dropped():
    admission = Admission(2, 2, max_steps=10, policy="drop", order="newest")
    ready(admission, 6)
    for step, newest in enumerate([(4, 5), (6, 7), (8, 9)]):
        use(admission, step, *newest)
        admission.set_served(step + 1)
        ready(admission, 2)
    assert admission.select(3).drop == {i: "overtaken" for i in (0, 1, 2, 3)}


def test_where_rollouts_are_plenty_the_newest_first_makes_trained_groups_fresher_and_leaves_others_behind():
    def fifo_or(order):
        admission = Admission(8, 4, max_steps=50, policy="drop", order=order)
        outcome = simulate(admission, PipelineDepth(4, fixed=4), duration=lambda _: 0.1, train_s=lambda _: 1.0)
        return sum(outcome.lags) / len(outcome.lags), admission.dropped

    assert fifo_or("fifo")[0] > 3.5 and not fifo_or("fifo")[1]
    lag, dropped = fifo_or("newest")
    assert lag < 1.5 and set(dropped) == {"overtaken"}


def test_restored_reuses_go_on_and_those_that_a_smaller_setting_excludes_do_not():
    state = {"next_group_id": 9, "trained": 3, "reused": 1, "dropped": {}}
    trained = [Trained(0, 0, 2), Trained(1, 0, 1), Trained(2, 1, 1)]

    def restored(ratio, max_reuse):
        admission = Admission(2, ratio, max_steps=10, version=2, max_reuse=max_reuse)
        admission.restore(state, {}, trained=trained)
        admission.check()
        assert admission.next_step == 2 and admission.state()["reused"] == 1
        return sorted(admission.reuse.groups)

    assert restored(3, 3) == [0, 1, 2]
    assert restored(3, 2) == [1, 2]
    assert restored(1, 2) == [2]
    assert restored(3, 1) == []
