"""What a run says before it starts although it can run."""

import pytest

from roll.configs.doubts import doubts
from roll.configs.loading import load_config
from roll.configs.rlvr import RLVRConfig

SET = {"data_args": {"file_name": "v.jsonl"}}


def told(training=None, **changes):
    base = {
        "exp_name": "x",
        "pretrain": "m",
        "prompt_length": 8,
        "response_length": 8,
        "actor_train": {"data_args": {"file_name": "p.jsonl"}, "training_args": training or {}},
        "rewards": {"a": {"worker_cls": "a.B"}},
        "validation": SET,
    }
    return {note.key: str(note) for note in doubts(load_config(RLVRConfig, base | changes))}


def test_a_usual_configuration_raises_no_doubt():
    assert told() == told({"learning_rate": 3e-4}, eval_steps=5) == {}


@pytest.mark.parametrize("rate", [0.1, 5])
def test_a_learning_rate_that_no_policy_stands_is_told_with_usual_ones(rate):
    (text,) = told({"learning_rate": rate}).values()
    assert text.startswith(f"actor_train.training_args.learning_rate = {float(rate)}: ") and "1.0e-6 is usual" in text


def test_the_rate_of_a_trainer_does_not_concern_an_explorer():
    assert not told({"learning_rate": 5}, mode="explore", groups_database="sqlite:///g.db")


def test_responses_of_one_token_are_all_cut_off():
    assert "every answer is cut off" in told(response_length=1)["response_length"]
    assert "every answer is cut off" in told(response_length=None, sequence_length=9)["sequence_length"]
    assert (
        "every answer is cut off"
        in told(actor_infer={"generating_args": {"max_new_tokens": 1}})["actor_infer.generating_args.max_new_tokens"]
    )


def test_eval_steps_without_a_validation_set_does_nothing():
    assert told(eval_steps=5, validation=None)["eval_steps"].startswith(
        "eval_steps = 5: does nothing: there is no validation set"
    )
    assert not told(validation=None), "a key that nobody has written is no mistake"
    assert not told(eval_steps=5, validation=None, validation_sets={"mine": SET})
