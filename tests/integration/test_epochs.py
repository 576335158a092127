"""`total_epochs` instead of `max_steps`."""

from collections import Counter

import pytest

from roll.core.configs.problems import ConfigError


@pytest.fixture
def ten_rows(material, tmp_path):
    rows = (material / "train.jsonl").read_text().splitlines(keepends=True)[:10]
    (tmp_path / "ten.jsonl").write_text("".join(rows))
    return {"actor_train.data_args.file_name": str(tmp_path / "ten.jsonl")}


def test_a_run_of_two_epochs_trains_each_prompt_twice(make_config, lab, ten_rows):
    run = lab.run_local(make_config(ten_rows, max_steps=500, total_epochs=2.0))
    assert (run.summary["status"], run.summary["steps"]) == ("finished", 5), "2 x 10 prompts in batches of 4"
    trained = [row["prompt_uid"] for row in run.rows("groups") if row["status"] == "trained"]
    assert sorted(Counter(uid.split("/")[1] for uid in trained).items()) == [("0", 10), ("1", 10)]
    assert len(set(trained)) == 20
    assert "max_steps: 5" in (run.run_dir / "config.yaml").read_text()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"total_epochs": 0.3, "max_steps": 500}, "0.3 x 10 usable prompts are less than a batch of 4"),
        ({"total_epochs": 2.0, "max_steps": 5}, "max_steps 5 are both given"),
        ({"total_epochs": 0.0, "max_steps": 500}, "total_epochs"),
    ],
)
def test_what_is_no_number_of_steps_is_refused(make_config, lab, ten_rows, changes, says):
    with pytest.raises(ConfigError, match=says):
        lab.run_local(make_config(ten_rows, **changes))
