import copy
import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load, save

from roll.core.data.extras import Extras
from roll.core.data.kept_tokens import KeptTokens
from roll.core.data.sample import Prompt, Sample, SampleGroup, Trajectory, Turn, VersionSpan
from roll.topologies.packing import packed
from roll.topologies.sql.rows import digest, unpack_group

SHARED = Prompt("d/0/1", [1, 2], "text", "tag", "d", "42", {"level": 3})
OWN = Prompt("d/0/1", [1, 2, 3], "other text", "tag", "d", "42", {"level": 3})
EPISODE = Trajectory(
    [Turn("saw", "did", 0.5, "key", True, False, 2)], 1, 4, 1.5, True, "max_steps", 0.1, 0.2, 0.3, {"boxes": 2.0}
)
SAMPLES = [
    Sample(SHARED, 0, [5, 6], [-0.1, -0.2], [VersionSpan(0, 1, 3), VersionSpan(1, 2, 4)], "stop", "ab", 1.0),
    Sample(OWN, 1, [5, 6], [-0.1, 0.0], [VersionSpan(0, 1, 3)], "length", "a", None, [True, False], EPISODE),
]


def test_a_group_comes_back_from_json_as_it_was():
    for baseline in (None, SAMPLES[0]):
        group = SampleGroup(7, 3, SHARED, SAMPLES, baseline)
        row = json.loads(json.dumps(group.to_json()))
        assert SampleGroup.from_json(row) == group


def test_a_response_takes_as_many_bytes_between_processes_as_its_arrays():
    def size(tokens):
        sample = replace(
            SAMPLES[1], response_ids=[70_000] * tokens, behaviour_logprobs=[-0.1] * tokens, loss_mask=[True] * tokens
        )
        return len(pickle.dumps(sample))

    assert size(3000) - size(1000) == 2000 * (4 + 4 + 1)


def test_samples_that_were_stored_with_doubles_are_read():
    group = SampleGroup(7, 3, SHARED, SAMPLES)
    arrays = load(packed(group))
    data = save(arrays | {"behaviour_logprobs": np.array([-0.1, -0.2, -0.1, 0.0])})
    assert unpack_group(7, (data, digest(data))) == group


def test_what_was_kept_comes_back_from_json():
    kept = KeptTokens.of([np.array([4, 5], dtype=np.int32), np.zeros(0, dtype=np.int32)])
    group = SampleGroup(7, 3, SHARED, [replace(SAMPLES[0], extras=Extras(kept)), SAMPLES[1]])
    back = SampleGroup.from_json(json.loads(json.dumps(group.to_json())))
    assert back == group and back.samples[0].kept == kept
    assert unpack_group(7, (data := packed(group), digest(data))) == group


def test_a_prompt_that_all_samples_share_is_written_once():
    row = SampleGroup(7, 3, SHARED, SAMPLES).to_json()
    assert [sample["prompt"] is None for sample in row["samples"]] == [True, False]
    assert SampleGroup.from_json(row).samples[0].prompt.row == {"level": 3}


def test_without_a_mask_all_response_tokens_are_the_policys():
    assert [sample.policy_mask for sample in SAMPLES] == [[True, True], [True, False]]


def test_a_sample_can_be_copied_and_pickled_although_it_says_where_things_are():
    assert copy.deepcopy(SAMPLES[1]) == pickle.loads(pickle.dumps(SAMPLES[1])) == SAMPLES[1]
    assert not hasattr(SAMPLES[0], "ground_truth") and hasattr(SAMPLES[0], "response_text")


def test_a_missing_reward_is_never_a_number():
    with pytest.raises(ValueError, match="without a reward"):
        _ = SampleGroup(7, 3, SHARED, SAMPLES).outcomes
