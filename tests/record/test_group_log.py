"""samples.jsonl: few groups, but whole ones, of all over the step."""

import json
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from roll.core.data.sample import Prompt, Sample, SampleGroup, VersionSpan
from roll.core.data.token_batch import TokenBatch
from roll.core.record.group_log import Draw, GroupLog, SampleLog


def groups(count, size):
    out = []
    for g in range(count):
        prompt = Prompt(f"row{g}", [1], f"{g} + 1 =", "add", "math", str(g + 1))
        spans = [VersionSpan(0, 1, 3), VersionSpan(1, 2, 4)]
        samples = [Sample(prompt, i, [7, 8], [-0.25, -1.5], spans, "stop", f"answer {i}", reward=1.0) for i in range(size)]
        out.append(SampleGroup(10 + g, 3, prompt, samples))
    return out


def read(path):
    return [json.loads(line) for line in (path / "samples.jsonl").read_text().splitlines()]


def test_a_row_has_what_produced_the_sample(tmp_path):
    SampleLog(tmp_path, per_step=1).record(4, groups(1, 1))
    assert read(tmp_path) == [
        {
            "step": 4,
            "status": "trained",
            "prompt": "0 + 1 =",
            "response": "answer 0",
            "ground_truth": "1",
            "reward": 1.0,
            "finish_reason": "stop",
            "group_id": 10,
            "index": 0,
            "prompt_uid": "row0",
            "domain": "math",
            "tag": "add",
            "versions": [[0, 1, 3, 0], [1, 2, 4, 0]],
            "response_ids": [7, 8],
            "behaviour_logprobs": [-0.25, -1.5],
        }
    ]


def test_groups_are_whole_until_there_are_enough_rollouts(tmp_path):
    log = SampleLog(tmp_path, per_step=5)
    assert log.record(1, groups(8, 4)) == 8
    assert log.record(2, groups(1, 2)) == 2
    written = [(row["group_id"], row["index"]) for row in read(tmp_path) if row["step"] == 1]
    first, second = written[0][0], written[4][0]
    assert first < second and written == [(group, index) for group in (first, second) for index in range(4)]


def test_every_group_is_drawn_as_often_as_any_other_and_a_seed_decides(tmp_path):
    for name, seed in (("one", 1), ("same", 1), ("other", 2)):
        log = SampleLog(tmp_path / name, per_step=2, seed=seed)
        for step in range(400):
            log.record(step, groups(8, 1))
    one, same, other = ([(row["step"], row["group_id"]) for row in read(tmp_path / name)] for name in ("one", "same", "other"))
    assert one == same != other
    counts = Counter(group for _, group in one)
    assert sorted(counts) == list(range(10, 18))
    # Of 400 draws of 2 in 8 a group is in 100, with a standard deviation of 8.7.
    assert all(60 < count < 140 for count in counts.values())


@given(st.lists(st.integers(1, 4), max_size=12), st.integers(0, 9), st.randoms(use_true_random=False))
def test_a_draw_does_not_depend_on_the_order_and_has_no_group_too_many(sizes, rollouts, random):
    def drawn(offers):
        draw = Draw(rollouts)
        for name, size in offers:
            draw.offer(name, size, (name, size))
        return draw.take()

    offers = [(f"group {i}", size) for i, size in enumerate(sizes)]
    found = drawn(offers)
    assert found == drawn(random.sample(offers, len(offers)))
    counts = [size for _, size in found]
    assert sum(counts) >= min(rollouts, sum(sizes)) and sum(counts[:-1]) < max(rollouts, 1)


def test_all_are_written(tmp_path):
    log = SampleLog(tmp_path, per_step="all")
    log.record_dropped(1, groups(2, 2)[1], "equal")
    assert log.record(1, groups(8, 4)) == 32 and len(read(tmp_path)) == 34


def two_samples(proximal_logprobs=None):
    """Of a one-token prompt; the second's first token is masked, and counts in no advantage."""
    return TokenBatch(
        lengths=torch.tensor([3, 3]),
        scores=torch.ones(2),
        temperatures=torch.ones(2),
        tokens=torch.tensor([1, 7, 8, 1, 7, 8]),
        loss_mask=torch.tensor([False, True, True, False, False, True]),
        behaviour_logprobs=torch.zeros(6),
        advantages=torch.tensor([0.0, 0.5, 1.5, 0.0, 0.0, -2.0]),
        proximal_logprobs=proximal_logprobs,
    )


def test_a_trained_sample_has_its_advantage_and_what_the_trainer_said_of_it(tmp_path):
    SampleLog(tmp_path, per_step=2).record(1, groups(1, 2), two_samples(torch.tensor([0.0, -0.25, -1.5, 0.0, -0.125, -3.0])))
    first, second = read(tmp_path)
    assert (first["advantage"], first["trainer_logprobs"]) == (1.0, [-0.25, -1.5])
    assert (second["advantage"], second["trainer_logprobs"]) == (-2.0, [-0.125, -3.0])


def test_advantages_and_mask_stand_token_by_token_where_they_differ(tmp_path):
    SampleLog(tmp_path, per_step=2).record(1, groups(1, 2), two_samples())
    first, second = read(tmp_path)
    assert first["advantages"] == [0.5, 1.5] and "loss_mask" not in first
    assert second["loss_mask"] == [False, True] and "advantages" not in second


def test_dropped_groups_and_validation_are_written_with_their_status(tmp_path):
    log = SampleLog(tmp_path, per_step=3)
    for group in groups(4, 2):
        log.record_dropped(1, group, "filter_std")
    log.record(1, groups(1, 1))
    log.record_dropped(2, groups(1, 2)[0], "filter_mean_low")
    for version in (1, 2):
        log.record_validation(version, [sample for group in groups(5, 2) for sample in group.samples])
    log.close()
    told = [(row["step"], row["status"], row["prompt_uid"], row["index"]) for row in read(tmp_path)]
    assert len(told) == 4 + 1 + 8 + 2 and [status for _, status, *_ in told[:4]] == ["dropped: filter_std"] * 4
    assert len({uid for _, _, uid, _ in told[:4]}) == 2 and told[4] == (1, "trained", "row0", 0)
    assert told[-2:] == [(2, "dropped: filter_mean_low", "row0", i) for i in (0, 1)], "what waits is written at the end"
    first, second = ({uid for step, _, uid, _ in told[5:13] if step == version} for version in (1, 2))
    assert first == second and len(first) == 2, "a validation has the same prompts each time"


def test_zero_samples_a_step_and_rewind(tmp_path):
    assert SampleLog(tmp_path, per_step=0).record(1, groups(2, 2)) == 0
    log = SampleLog(tmp_path, per_step=2)
    log.record(1, groups(2, 2))
    position = log.journal.position()
    log.record(2, groups(2, 2))
    assert log.journal.rewind(position) == 2
    assert {row["step"] for row in read(tmp_path)} == {1}


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def ended(group_id, status="trained", reason=""):
    return dict(group_id=group_id, prompt_uid=f"p{group_id}", status=status, reason=reason, step=1, start_version=0, lag=1)


def test_a_group_has_one_terminal_status_also_across_a_restart(tmp_path):
    log = GroupLog(tmp_path)
    log.write(**ended(0))
    log.write(**ended(1, "dropped", "difficulty_mask"))
    log.close()
    log = GroupLog(tmp_path)
    with pytest.raises(ValueError, match="group 1"):
        log.write(**ended(1))
    assert [(row["group_id"], row["status"], row["reason"]) for row in log.rows()] == [
        (0, "trained", ""),
        (1, "dropped", "difficulty_mask"),
    ]


def test_a_group_whose_rollouts_are_known_has_their_rewards(tmp_path):
    log = GroupLog(tmp_path)
    log.write(**ended(0), rewards=[1.0, None], tokens=7)
    log.write(**ended(1))
    log.close()
    first, second = rows_of(tmp_path / "groups.jsonl")
    assert (first["rewards"], first["tokens"]) == ([1.0, None], 7) and not {"rewards", "tokens"} & second.keys()


def test_only_a_group_that_was_trained_is_reused_also_across_a_restart(tmp_path):
    def row(group_id, status, step):
        return {
            "group_id": group_id,
            "prompt_uid": "p",
            "status": status,
            "reason": "x" * (status == "dropped"),
            "step": step,
        } | others

    others = {"start_version": 0, "lag": 0}
    log = GroupLog(tmp_path)
    log.write(**row(0, "trained", 1))
    log.write(**row(1, "dropped", 1))
    log.write(**row(0, "reused", 2))
    log.close()
    log = GroupLog(tmp_path)
    log.write(**row(0, "reused", 3))
    for group_id in (1, 2):
        with pytest.raises(ValueError, match=f"group {group_id} .* was not trained before"):
            log.write(**row(group_id, "reused", 3))
    with pytest.raises(ValueError, match="has ended before"):
        log.write(**row(0, "trained", 3))
    assert [row["status"] for row in log.rows()] == ["trained", "dropped", "reused", "reused"]
    log.close()


def test_groups_after_the_checkpoint_may_end_anew(tmp_path):
    log = GroupLog(tmp_path)
    log.write(**ended(0))
    position = log.journal.position()
    log.write(**ended(1))
    assert log.rewind(position) == 1
    log.write(**ended(1, "dropped", "stale"))
    assert [row["status"] for row in rows_of(tmp_path / "groups.jsonl")] == ["trained", "dropped"]
    assert [row["status"] for row in rows_of(tmp_path / "groups.rolled-back.jsonl")] == ["trained"]


@pytest.mark.parametrize(("what", "reason"), [("dropped", ""), ("trained", "stale"), ("lost", "")])
def test_a_drop_needs_a_reason(tmp_path, what, reason):
    with pytest.raises(ValueError, match="trained, or dropped for a reason"):
        GroupLog(tmp_path).write(**ended(0, what, reason))
