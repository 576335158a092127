"""A mixture of experts whose engine says which experts it chose, and whose trainer computes with these."""

import pytest
from safetensors.torch import load_file
from tiny_models import tiny_mixture
from transformers import AutoTokenizer

from roll.core.configs.problems import ConfigError
from roll.core.distributed.devices import Inventory
from roll.platform.local_backend import LocalBackend

CHANGED = "actor/router_replay_changed"
AHEAD = {"async_generation_ratio": 1, "weight_update_mode": "drain", "old_logprobs": "recompute", "max_steps": 4}
"""No response is of two versions: what one has computed for the other's tokens is replayed, and shows in the mismatch."""
THREE_SLOTS = Inventory("cpu", nodes=1, per_node=3, cpus_per_node=3)
R3 = {"actor_train.router_replay.mode": "R3"}
TWO_TYPES = {"actor_infer.model_args.dtype": "bf16", "actor_train.model_args.dtype": "fp32", "mismatch_alarm": None}


@pytest.fixture(scope="module")
def mixture(material, tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixture")
    tokenizer = AutoTokenizer.from_pretrained(material / "model")
    changes = {"num_hidden_layers": 6, "num_experts": 16, "max_position_embeddings": 64, "eos_token_id": 1, "pad_token_id": 0}
    tiny_mixture(len(tokenizer), **changes).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def of_mixture(make_config, mixture):
    return lambda *changes, **more: make_config(
        {k: v for each in changes for k, v in each.items()}, pretrain=str(mixture), **more
    )


def test_replay_takes_away_what_routing_adds_to_the_mismatch_of_two_types(lab, of_mixture):
    """The first step's, of the weights that sampled; its samples are the same in both runs."""
    plain, replayed = (lab.run(of_mixture(TWO_TYPES, mode, exp_name=name)) for name, mode in (("plain", {}), ("replayed", R3)))
    ours, theirs = ([row["response_ids"] for row in run.trained_samples() if row["step"] == 1] for run in (replayed, plain))
    assert ours == theirs
    without, with_ = plain.steps()[0], replayed.steps()[0]
    assert CHANGED not in without and 0 < with_[CHANGED] < 0.1
    assert with_["actor/engine_mismatch_k3"] < 0.5 * without["actor/engine_mismatch_k3"]


@pytest.mark.parametrize(
    "more",
    [
        {},
        AHEAD,
        {**AHEAD, "actor_log_prob.device_mapping": "2"},
        {"use_kl_loss": True, "kl_loss_coef": 0.1, "reference.device_mapping": "0"},
        {"adv_estimator": "gae", "critic.device_mapping": "0", "critic.training_args.per_device_train_batch_size": 16},
        {"train_on_arrival": True},
    ],
    ids=["synchronous", "recompute", "actor_log_prob", "reference", "critic", "on_arrival"],
)
def test_with_one_type_nothing_is_replaced_but_for_older_weights(lab, of_mixture, more):
    run = lab.start(of_mixture(R3, more), LocalBackend(), THREE_SLOTS)
    assert run.summary["status"] == "finished", run.summary["reason"]
    compared = [row["actor/engine_mismatch_max"] for row in run.steps() if "actor/engine_mismatch_max" in row]
    assert compared and max(compared) < 1e-4
    changed = [row[CHANGED] for row in run.steps()]
    assert changed[0] < 1e-3
    assert ("async_generation_ratio" in more) == (max(changed) > 1e-3), "the engine's weights were older ones"


def weights(run):
    return load_file(run.run_dir / "checkpoints" / "step-4" / "trainer" / "model" / "model.safetensors")


def test_a_database_and_a_checkpoint_keep_them(lab, of_mixture, tmp_path):
    """To the last bit of the weights that are trained with them."""
    fixed = {**R3, **TWO_TYPES, "deterministic": True, "max_steps": 4}
    expected = weights(lab.run(of_mixture(fixed, exp_name="memory")))
    stored = lab.run(of_mixture(fixed, exp_name="stored", groups_database=f"sqlite:///{tmp_path / 'groups.db'}"))
    assert all(tensor.equal(expected[name]) for name, tensor in weights(stored).items())
    lab.run(of_mixture(fixed, exp_name="parts", max_steps=2))
    resumed = lab.run_local(of_mixture(fixed, exp_name="parts", resume_from_checkpoint=True))
    assert resumed.summary["resumed_from_step"] == 2
    assert all(tensor.equal(expected[name]) for name, tensor in weights(resumed).items())


def test_a_model_without_experts_is_refused_before_a_worker_starts(lab, make_config):
    with pytest.raises(ConfigError, match=r"actor_train.router_replay.mode.*Qwen2ForCausalLM has no routers of experts"):
        lab.run(make_config(R3))
