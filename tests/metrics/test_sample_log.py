"""samples.jsonl: few groups, but whole ones, of all over the step."""

import json

import torch

from roll.data.sample import Prompt, Sample, SampleGroup, VersionSpan
from roll.data.token_batch import TokenBatch
from roll.metrics.sample_log import SampleLog


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
            "fate": "trained",
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


def test_groups_are_whole_and_spread_over_the_step_until_there_are_enough_rollouts(tmp_path):
    log = SampleLog(tmp_path, per_step=5)
    assert log.record(1, groups(8, 4)) == 8
    assert log.record(2, groups(1, 2)) == 2
    written = [(row["group_id"], row["index"]) for row in read(tmp_path) if row["step"] == 1]
    assert written == [(group, index) for group in (10, 14) for index in range(4)]


def test_a_trained_sample_has_its_advantage_and_what_the_trainer_said_of_it(tmp_path):
    """Two samples of a one-token prompt; the second's first token is masked, and counts in no advantage."""
    batch = TokenBatch(
        lengths=torch.tensor([3, 3]),
        scores=torch.ones(2),
        temperatures=torch.ones(2),
        tokens=torch.tensor([1, 7, 8, 1, 7, 8]),
        loss_mask=torch.tensor([False, True, True, False, False, True]),
        behaviour_logprobs=torch.zeros(6),
        advantages=torch.tensor([0.0, 0.5, 1.5, 0.0, 0.0, -2.0]),
        proximal_logprobs=torch.tensor([0.0, -0.25, -1.5, 0.0, -0.125, -3.0]),
    )
    SampleLog(tmp_path, per_step=2).record(1, groups(1, 2), batch)
    first, second = read(tmp_path)
    assert (first["advantage"], first["trainer_logprobs"]) == (1.0, [-0.25, -1.5])
    assert (second["advantage"], second["trainer_logprobs"]) == (-2.0, [-0.125, -3.0])


def test_dropped_groups_and_validation_are_written_with_their_fate(tmp_path):
    log = SampleLog(tmp_path, per_step=3)
    for group in groups(4, 2):
        log.record_dropped(1, group, "filter_std")
    log.record(1, groups(1, 1))
    log.record_dropped(2, groups(1, 2)[0], "filter_mean_low")
    log.record_validation(1, [sample for group in groups(5, 2) for sample in group.samples])
    told = [(row["step"], row["fate"], row["prompt_uid"], row["index"]) for row in read(tmp_path)]
    assert told == [
        *[(1, "dropped: filter_std", f"row{g}", i) for g in (0, 1) for i in (0, 1)],
        (1, "trained", "row0", 0),
        *[(2, "dropped: filter_mean_low", "row0", i) for i in (0, 1)],
        *[(1, "validation", f"row{g}", i) for g in (0, 1) for i in (0, 1)],
    ]


def test_zero_samples_a_step_and_rewind(tmp_path):
    assert SampleLog(tmp_path, per_step=0).record(1, groups(2, 2)) == 0
    log = SampleLog(tmp_path, per_step=2)
    log.record(1, groups(2, 2))
    position = log.position()
    log.record(2, groups(2, 2))
    assert log.rewind(position) == 2
    assert {row["step"] for row in read(tmp_path)} == {1}
