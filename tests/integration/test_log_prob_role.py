"""Old log-probs from a role of their own: they are those of the version that the step's number tells."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from roll.core.distributed.devices import Inventory
from roll.platform.local_backend import LocalBackend

THREE_SLOTS = Inventory("cpu", nodes=1, per_node=3, cpus_per_node=3)
RECOMPUTED = {"old_logprobs": "recompute", "save_steps": 1, "max_ckpt_to_keep": 10, "rollout_log_per_step": 64}
ROLE = RECOMPUTED | {"actor_log_prob.device_mapping": "2"}
SHARED = {"model_update_transport": "ipc"}
ADAPTERS = {"actor_train.model_args.lora_target": "all-linear", "actor_train.training_args.learning_rate": 0.05}


def finished(lab, config):
    run = lab.start(config, LocalBackend(), THREE_SLOTS)
    assert run.summary["status"] == "finished", run.summary["reason"]
    lab.check_accounts(run, config)
    return run


def log_probs(model, tokenizer, row):
    """Of a logged sample's response, under the model."""
    prompt = tokenizer(row["prompt"]).input_ids
    tokens = torch.tensor([prompt + row["response_ids"]])
    with torch.no_grad():
        scores = model(tokens).logits.log_softmax(-1)[0, len(prompt) - 1 : -1]
    return scores.gather(1, tokens[0, len(prompt) :, None])[:, 0]


def assert_scored_with(run, version_of, pretrain):
    """`version_of`: of a step that counts from 0, the version whose log-probs its samples must have."""
    tokenizer = AutoTokenizer.from_pretrained(pretrain)
    folders = {0: pretrain} | {i: run.run_dir / "checkpoints" / f"step-{i}" / "trainer" / "model" for i in range(1, 10)}
    models, seen = {}, set()
    for row in run.trained_samples():
        version = version_of(row["step"] - 1)
        if version not in models:
            models[version] = AutoModelForCausalLM.from_pretrained(folders[version])
        seen.add(version)
        torch.testing.assert_close(
            torch.tensor(row["trainer_logprobs"]), log_probs(models[version], tokenizer, row), atol=2e-5, rtol=0
        )
    assert seen == {version_of(step) for step in range(run.summary["steps"])}


def test_waited_for_they_are_those_of_the_weights_that_the_step_starts_from(lab, make_config):
    deterministic = RECOMPUTED | {"deterministic": True, "max_steps": 3}
    by_trainer = finished(lab, make_config(deterministic, exp_name="trainer"))
    config = make_config(deterministic | ROLE)
    by_role = finished(lab, config)
    assert [row["staleness/proximal_lag"] for row in by_role.steps()] == [0, 0, 0]
    assert_scored_with(by_role, lambda step: step, config.pretrain)
    for one, other in zip(by_trainer.trained_samples(), by_role.trained_samples(), strict=True):
        assert one["response_ids"] == other["response_ids"]
        assert one["trainer_logprobs"] == pytest.approx(other["trainer_logprobs"], abs=2e-6)


@pytest.mark.parametrize("sent", [{}, SHARED, ADAPTERS], ids=["whole", "shared memory", "adapters"])
def test_while_the_step_before_trains_they_are_one_version_old_and_the_alarm_compares_like_with_like(lab, make_config, sent):
    config = make_config(ROLE | sent, async_generation_ratio=1, max_steps=4)
    run = finished(lab, config)
    assert [row["staleness/proximal_lag"] for row in run.steps()] == [0, 1, 1, 1]
    assert_scored_with(run, lambda step: max(0, step - 1), config.pretrain)
    compared = [row["actor/engine_mismatch_max"] for row in run.steps() if "actor/engine_mismatch_max" in row]
    assert compared and max(compared) < 1e-4, "tokens of the version that scores are compared, not of the one that is trained"


def test_between_two_published_versions_they_are_of_the_last_published_one(lab, make_config):
    changes = ROLE | {"weight_push_interval": 2, "async_generation_ratio": 2, "actor_log_prob.lag": 0}
    config = make_config(changes, max_steps=5)
    run = finished(lab, config)
    assert [row["staleness/proximal_lag"] for row in run.steps()] == [0, 1, 0, 1, 0]
    assert_scored_with(run, lambda step: step // 2 * 2, config.pretrain)


def test_a_resumed_run_begins_with_the_version_that_it_is_resumed_from(lab, make_config):
    changes = ROLE | {"async_generation_ratio": 1}
    finished(lab, make_config(changes, max_steps=2))
    run = finished(lab, make_config(changes, max_steps=4, resume_from_checkpoint=True))
    assert [row["staleness/proximal_lag"] for row in run.steps()] == [0, 1, 0, 1]


def test_on_arrival_each_part_is_scored_with_the_same_version(lab, make_config):
    config = make_config(ROLE | {"train_on_arrival": True}, max_steps=3)
    run = finished(lab, config)
    assert_scored_with(run, lambda step: step, config.pretrain)
