"""A checkpoint that does not fit the configuration is refused by what is different, and told which key to change."""

import json
from types import SimpleNamespace

import pytest

from roll.core.errors import Misfit
from roll.core.record.checkpoint_fits import check_fits

TINY = {"model_type": "qwen2", "vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 2}


def checkpoint(folder, state=None, model=TINY, critic=False):
    (folder / "model").mkdir()
    (folder / "model/config.json").write_text(json.dumps(model))
    if critic:
        (folder / "critic").mkdir()
    accounts = {"admission": {"trained": 8, "reused": 0}}
    return SimpleNamespace(path=folder, step=1, state=accounts | (state or {}), critic=folder / "critic", model=folder / "model")


def config(folder, model=TINY, **changes):
    (folder / "base").mkdir()
    (folder / "base/config.json").write_text(json.dumps(model))
    given = {
        "mode": "both",
        "trains": True,
        "uses_critic": False,
        "groups_address": None,
        "groups_per_step": 8,
        "rollout_batch_size": 8,
    }
    return SimpleNamespace(**(given | changes), actor_train=None, model_folder=lambda role: str(folder / "base"))


def test_what_fits_is_taken(tmp_path):
    check_fits(checkpoint(tmp_path), config(tmp_path))


@pytest.mark.parametrize("key", ["vocab_size", "hidden_size", "num_hidden_layers"])
def test_another_model_is_said_to_be_one_before_anything_else(tmp_path, key):
    """Also where the batch is another one, too."""
    other = config(tmp_path, TINY | {key: 128}, groups_per_step=32, rollout_batch_size=32)
    with pytest.raises(Misfit, match=f"is of another model than .*: its {key} is {TINY[key]}, not 128") as caught:
        check_fits(checkpoint(tmp_path), other)
    assert caught.value.fix.startswith("pretrain: ")


def test_of_a_folder_without_a_configuration_nothing_is_said(tmp_path):
    known = config(tmp_path)
    (tmp_path / "base/config.json").unlink()
    check_fits(checkpoint(tmp_path), known)


@pytest.mark.parametrize(("group_size", "fix"), [(1, "rollout_batch_size: 8, "), (4, "rollout_batch_size: 32, ")])
def test_another_batch_is_mended_by_the_old_number(tmp_path, group_size, fix):
    """In agentic runs a group is several of rollout_batch_size."""
    now = config(tmp_path, groups_per_step=16, rollout_batch_size=16 * group_size)
    with pytest.raises(Misfit, match="8 groups a step, not 16") as caught:
        check_fits(checkpoint(tmp_path), now)
    assert caught.value.fix.startswith(fix)


@pytest.mark.parametrize(
    ("state", "changes", "fix"),
    [
        ({}, {"uses_critic": True}, "an adv_estimator that needs no critic"),
        ({}, {"groups_address": "sqlite:///a.db"}, "groups_database: null"),
        ({"database": {}}, {}, "the groups_database of the run's config.yaml"),
    ],
)
def test_each_cause_has_its_own_fix(tmp_path, state, changes, fix):
    with pytest.raises(Misfit) as caught:
        check_fits(checkpoint(tmp_path, state), config(tmp_path, **changes))
    assert caught.value.fix.startswith(fix)
