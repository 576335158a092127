"""The load of rlvr_vs_trl.py with a real model: the same rewards and prompts on both sides, and when an accuracy was reached."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from made_models import script

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # benchmarks are scripts: they import each other by name
import sums


def test_both_sides_judge_alike() -> None:
    ours = script("smollm2", "sums_reward").reward
    said, truths = ["15", "16", "7 + 8 = 15", ""], ["15"] * 4
    conversations = [[{"role": "assistant", "content": text}] for text in said]
    value, right = (function(completions=conversations, ground_truth=truths, prompts=None) for function in sums.rewards())
    judged = [ours(SimpleNamespace(response_text=text, prompt=SimpleNamespace(ground_truth="15"))) for text in said]
    assert value == [each for each, _ in judged] == [1.0, pytest.approx(0.45), 0.0, 0.0]
    assert right == [parts["right"] for _, parts in judged] == [1.0, 0.0, 0.0, 0.0]


def test_both_sides_are_given_the_same_conversations(tmp_path: Path) -> None:
    maker = script("smollm2", "make_model")
    (tmp_path / "made" / "model").mkdir(parents=True)
    (tmp_path / "load").mkdir()
    rows = [maker.row((3, 4)), maker.row((20, 19))]
    (tmp_path / "made" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sums.make(tmp_path / "load", tmp_path / "made" / "model")
    theirs = [json.loads(line) for line in (tmp_path / "load" / "prompts.jsonl").read_text().splitlines()]
    assert (tmp_path / "load" / "train.jsonl").read_text() == (tmp_path / "made" / "train.jsonl").read_text()
    assert [row["prompt"] for row in theirs] == [json.loads(row["messages"]) for row in rows]
    assert [row["ground_truth"] for row in theirs] == ["7", "39"]
    assert theirs[0]["prompt"][-1]["content"] == "What is 3 + 4? Reply with the number only."


@pytest.mark.parametrize(
    ("right", "found"),
    [
        ([0.0] * 4 + [1.0], None),
        ([0.0] * 4 + [1.0] * 2, 60.0),
        ([0.4] * 5, 50.0),
        ([0.4] * 4, None),
        ([0.5] * 3 + [0.0] * 7, None),
    ],
)
def test_an_accuracy_is_that_of_five_whole_steps(right: list[float], found: float | None) -> None:
    assert sums.seconds_to(0.4, right, [10.0 * (i + 1) for i in range(len(right))]) == found


def test_the_figures_of_the_load_are_those_of_the_configuration() -> None:
    import yaml

    config = yaml.safe_load((sums.EXAMPLE / "full.yaml").read_text())
    assert (config["rollout_batch_size"], config["num_return_sequences_in_group"]) == (sums.PROMPTS_PER_STEP, sums.GROUP)
    assert config["response_length"] == sums.LONGEST_RESPONSE
    assert config["actor_train"]["training_args"]["learning_rate"] == sums.LEARNING_RATE
