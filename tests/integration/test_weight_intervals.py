"""Real runs that publish every n steps and whose engines load every m groups."""

import pytest
from run_files import loads_of_an_engine

from roll.core.distributed.devices import Inventory
from roll.platform.local_backend import LocalBackend

THREE_SLOTS = Inventory("cpu", nodes=1, per_node=3, cpus_per_node=3)


def versions(run):
    return {span[2] for sample in run.trained_samples() for span in sample["versions"]}


def test_weights_are_published_every_n_steps_and_at_the_end(lab, make_config, with_validation):
    """Validations that fall between two publications are done at the next one; the last version is served and validated."""
    config = make_config(
        with_validation, max_steps=7, async_generation_ratio=2, weight_push_interval=3, eval_steps=2, rollout_log_per_step=16
    )
    run = lab.run(config)
    assert versions(run) <= {0, 3, 6} and len(versions(run)) > 1
    assert [entry["step"] for entry in run.summary["validation"]] == [0, 3, 6, 7]
    assert run.summary["weight_updates"]["published"] == run.summary["weight_updates"]["count"] == 3
    assert run.summary["staleness"]["max"] == 2, "the step before a publication trains what was sampled two versions ago"


def test_with_the_least_ratio_that_the_interval_needs_the_run_goes_on(lab, make_config):
    run = lab.run(make_config(max_steps=5, async_generation_ratio=1, weight_push_interval=2, rollout_log_per_step=16))
    assert versions(run) == {0, 2, 4}
    assert run.summary["staleness"]["histogram"] == {"0": 3 * 16, "1": 2 * 16}


def test_a_run_goes_on_from_a_checkpoint_between_two_publications(lab, make_config):
    changes = {"async_generation_ratio": 2, "weight_push_interval": 3, "save_steps": 4, "rollout_log_per_step": 16}
    lab.run(make_config(**changes, max_steps=4))
    run = lab.run(make_config(**changes, max_steps=8, resume_from_checkpoint=True))
    assert run.summary["resumed_from_step"] == 4
    assert {span[2] for row in run.trained_samples() if row["step"] > 5 for span in row["versions"]} <= {4, 6}


def pulling(make_config, changes=None, /, **top_level):
    return make_config(
        {**(changes or {}), "actor_infer.device_mapping": "1-2", **top_level},
        max_steps=10,
        async_generation_ratio=4,
        async_pipeline_depth=2.0,
        rollout_log_per_step=16,
    )


@pytest.mark.parametrize("rolling", [False, True])
def test_engines_that_load_every_m_groups_load_less_often_and_end_on_the_last_version(lab, make_config, with_validation, rolling):
    """Two engines, four groups a step. A validation is answered by one version, whatever the engines had put off."""
    changes = {**with_validation, "eval_steps": 6}
    config = pulling(make_config, changes, weight_pull_interval=8, weight_update_rolling=rolling)
    run = lab.start(config, LocalBackend(), THREE_SLOTS)
    assert run.summary["status"] == "finished", run.summary["reason"]
    lab.check_accounts(run, config)
    assert run.summary["weight_updates"]["published"] == 10
    assert 2 <= loads_of_an_engine(run.summary, config.pretrain, 2) < 10
    assert [entry["step"] for entry in run.summary["validation"]] == [0, 6, 10]


@pytest.mark.ray
@pytest.mark.usefixtures("shared_ray")
def test_the_same_by_broadcast_with_every_worker_in_a_process_of_its_own(lab, make_config):
    from roll.platform.ray_backend import RayBackend

    config = pulling(make_config, weight_push_interval=2, weight_pull_interval=4, model_update_transport="collective")
    run = lab.start(config, RayBackend(THREE_SLOTS), THREE_SLOTS)
    assert run.summary["status"] == "finished", run.summary["reason"]
    lab.check_accounts(run, config)
    assert versions(run) <= {0, 2, 4, 6, 8}
    assert run.summary["weight_updates"]["published"] == 5
