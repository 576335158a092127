"""samples.jsonl: few rollouts, but whole ones, of all over the step."""

import json

from roll.data.sample import Prompt, Sample, SampleGroup, VersionSpan
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


def test_at_most_per_step_samples_spread_over_the_groups(tmp_path):
    log = SampleLog(tmp_path, per_step=4)
    assert log.record(1, groups(8, 4)) == 4
    assert log.record(2, groups(1, 2)) == 2
    written = read(tmp_path)
    assert [row["group_id"] for row in written if row["step"] == 1] == [10, 12, 14, 16]
    assert [row["index"] for row in written if row["step"] == 2] == [0, 1]


def test_zero_samples_a_step_and_rewind(tmp_path):
    assert SampleLog(tmp_path, per_step=0).record(1, groups(2, 2)) == 0
    log = SampleLog(tmp_path, per_step=2)
    log.record(1, groups(2, 2))
    position = log.position()
    log.record(2, groups(2, 2))
    assert log.rewind(position) == 2
    assert {row["step"] for row in read(tmp_path)} == {1}
