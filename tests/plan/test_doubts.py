"""What a run says before it starts although it can run."""

import pytest

from roll.core.configs.agentic import AgenticConfig
from roll.core.configs.rlvr import RLVRConfig
from roll.plan.rules.doubts import doubts
from roll.plan.rules.loading import load_config

SET = {"data_args": {"file_name": "v.jsonl"}}


def told(training=None, loss=None, **changes):
    base = {
        "exp_name": "x",
        "pretrain": "m",
        "prompt_length": 8,
        "response_length": 8,
        "actor_train": {"device_mapping": [0], "data_args": {"file_name": "p.jsonl"}, "training_args": training or {}}
        | (loss or {}),
        "rewards": {"a": {"worker_cls": "a.B"}},
        "validation": SET,
    }
    return {note.key: str(note) for note in doubts(load_config(RLVRConfig, base | changes))}


def test_a_usual_configuration_raises_no_doubt():
    assert told() == told({"learning_rate": 3e-4}, eval_steps=5) == {}


def test_a_loss_that_corrects_nothing_is_told_where_samples_are_old():
    loss = {"pg_variant": "vanilla"}
    assert "does not correct for old samples" in told(loss=loss, async_generation_ratio=1)["actor_train.pg_variant"]
    assert not told(loss=loss) and not told(async_generation_ratio=1)
    assert not told(loss=loss, async_generation_ratio=1, old_logprobs="recompute"), "weighted by what happened since"


@pytest.mark.parametrize("rate", [0.1, 5])
def test_a_learning_rate_that_no_policy_stands_is_told_with_usual_ones(rate):
    (text,) = told({"learning_rate": rate}).values()
    assert text.startswith(f"actor_train.training_args.learning_rate = {float(rate)}: ") and "1.0e-6 is usual" in text


def test_the_rate_of_a_trainer_does_not_concern_an_explorer():
    assert not told({"learning_rate": 5}, mode="explore", groups_database="sqlite:///g.db")


@pytest.mark.parametrize(
    ("loss", "keys"),
    [
        ({"tis_upper_bound": 2.0}, ["actor_train.tis_upper_bound"]),
        ({"pg_variant": "tis", "tis_upper_bound": 2.0}, ["dual_clip_c"]),
        ({"pg_variant": "gspo", "gspo_clip_low": 0.1}, []),
        ({"pg_variant": "dppo_kl", "dppo_ratio_cap": 2.0}, ["dual_clip_c"]),
        ({"pg_variant": "mine.loss", "tis_upper_bound": 2.0}, []),
    ],
)
def test_a_key_that_the_loss_does_not_read_is_told(loss, keys):
    found = told(loss=loss, dual_clip_c=3.0)
    assert [*found] == keys and all("does nothing: pg_variant" in text for text in found.values())


def test_a_correction_that_is_described_and_not_enabled_is_told():
    key = "train_infer_correction"
    assert [*told(**{key: {"is_weight": {"upper_bound": 3.0}, "filters": [{"ratio_low": 0.5}]}})] == [
        f"{key}.is_weight.enabled",
        f"{key}.filters[0].enabled",
    ]
    on = {"is_weight": {"upper_bound": 3.0, "enabled": True}, "filters": [{"ratio_low": 0.5}, {"enabled": True}]}
    assert not told(**{key: on})


def test_keys_of_a_kl_term_that_is_off_are_told():
    given = {"init_kl_coef": 0.01, "kl_penalty": "k3"}
    assert [*told(**given)] == ["kl_penalty", "init_kl_coef"]
    assert not told(**given, add_token_level_kl=True, reference={"device_mapping": [0]})


def test_a_threshold_that_no_response_reaches_is_told():
    assert (
        "no response has more than 8 tokens"
        in told(error_max_len_clip=True, error_max_len_threshold=9)["error_max_len_threshold"]
    )
    assert not told(error_max_len_clip=True, error_max_len_threshold=8)


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


def test_a_warm_up_that_outlasts_the_run_is_told_with_its_steps():
    training = {"warmup_steps": 400, "per_device_train_batch_size": 32, "gradient_accumulation_steps": 4}
    (text,) = told(training, max_steps=100, rollout_batch_size=32, num_return_sequences_in_group=8).values()
    assert "the run has 200 optimiser steps: the learning rate never gets to" in text
    assert not told(training, max_steps=201, rollout_batch_size=32, num_return_sequences_in_group=8)
    assert not told(training, total_epochs=1, rollout_batch_size=32, num_return_sequences_in_group=8)


@pytest.mark.parametrize(
    ("batch", "words"), [(64, "in 1 optimiser step"), (24, "in 2 optimiser steps of nearly equal size"), (16, None)]
)
def test_episodes_that_make_no_whole_optimiser_batches_are_told_what_becomes_of_their_turns(batch, words):
    envs = {"Lake": {"env_type": "frozen_lake", "env_manager_cls": "a.b.StepEnvManager"}}
    train = {"device_mapping": "0", "training_args": {"per_device_train_batch_size": batch}}
    given = {"pretrain": "m", "sequence_length": 64, "rollout_batch_size": 32, "custom_envs": envs, "actor_train": train}
    config = load_config(AgenticConfig, given | {"train_env_manager": {"tags": ["Lake"], "group_size": 8}})
    found = {note.key: note.message for note in doubts(config)}
    assert set(found) == ({"rollout_batch_size"} if words else set())
    assert words is None or words in found["rollout_batch_size"]


def test_prompts_that_are_trained_and_validated_are_told():
    (text,) = told(validation={"data_args": {"file_name": ["q.jsonl", "p.jsonl"]}}).values()
    assert text.startswith("validation.data_args.file_name = ") and "p.jsonl is trained on, too" in text


@pytest.mark.parametrize("clip", [20, [20, 28]])
def test_a_clip_of_percent_is_told(clip):
    (text,) = told(pg_clip=clip).values()
    assert text.startswith("pg_clip = ") and "0.2 is usual" in text
    assert not told(pg_clip=[0.2, 5])
