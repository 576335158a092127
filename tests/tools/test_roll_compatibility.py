from pathlib import Path

import pytest
from roll_compatibility import page, rules_of, status
from roll_surface import keys

PAGE = Path(__file__).parents[2] / "docs_roll" / "roll_compatibility.md"


def test_the_page_in_the_repository_is_current():
    command = "python tools/roll_compatibility.py > docs_roll/roll_compatibility.md"
    assert PAGE.read_text() == page(), f"make it again: {command}"


def test_every_key_of_roll_is_on_the_page_once_with_what_becomes_of_it():
    text = page()
    for key in keys():
        name = key.rpartition(".")[2]
        assert f"`{name}`" in text
        assert status(key) == "implemented" or rules_of(key), key


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("rollout_batch_size", "implemented"),
        ("custom_envs", "implemented"),
        ("actor_train.model_args.flash_attn", "read as another key"),
        ("value_clip", "implemented"),
        ("l2", "without effect"),
        ("rl_loss_coef", "refused"),
        ("actor_infer.training_args", "without effect"),
    ],
)
def test_status(key, expected):
    assert status(key) == expected
