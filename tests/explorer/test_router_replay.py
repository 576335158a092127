"""Episodes of a mixture of experts: the experts of all turns are those of the engine."""

import pytest
from tiny_models import tiny_mixture
from transformers import AutoTokenizer


@pytest.fixture(scope="module")
def mixture(model_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixture")
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    tiny_mixture(len(tokenizer), max_position_embeddings=256, eos_token_id=1, pad_token_id=0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("manager", ["traj_env_manager.TrajEnvManager", "step_env_manager.StepEnvManager"])
def test_trainer_and_engine_agree_over_all_turns(lab, make_config, mixture, manager):
    changes = {
        "pretrain": str(mixture),
        "actor_train.router_replay.mode": "R3",
        "custom_envs.letters.env_manager_cls": f"roll.pipeline.agentic.env_manager.{manager}",
    }
    run = lab.run(make_config(changes))
    assert all(len(sample["response_ids"]) for sample in run.trained_samples())
    for row in run.steps():
        assert row["actor/engine_mismatch_max"] < 1e-4
        assert row["actor/router_replay_changed"] < 1e-3
