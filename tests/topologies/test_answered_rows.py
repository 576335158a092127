"""Runs on rows whose policy answers questions of evaluated rows, in this process."""

import json
from types import SimpleNamespace

import pytest
import torch
from rows_world import config, make_world, settings, sums
from transformers import AutoTokenizer

from roll.core.configs.problems import ConfigError
from roll.plan.rows_config import SFTConfig
from roll.plan.rules.loading import load_config
from roll.plan.rules.validation import check_config
from roll.prepare.training_flow import pipeline_for
from roll.strategies.model_folder import load_model

ASKED = 4


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("rows"))


def heard(world, name="held_out", **more):
    data = {"file_name": str(world / f"{name}.jsonl")}
    return {"data_args": data, "generate_during_eval": ASKED, "generating_args": {"max_new_tokens": 5}, **more}


def run(world, out, **given):
    changes = {"actor_infer": {"device_mapping": "0"}, **given}
    summary = pipeline_for(config(world, out, **changes), local=True).run()
    folder = out / "run"
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    answers = [row for row in samples if row["status"] == "validation"]
    return SimpleNamespace(summary=summary, answers=answers, losses=losses_of(folder), folder=folder)


def losses_of(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {name: {row["step"]: row[name] for row in rows if name in row} for name in ("val/loss", "actor/pg_loss")}


def greedy(folder, tokens, most, end):
    model, told = load_model(folder, torch.float32, "eager"), list(tokens)
    for _ in range(most):
        told.append(int(model(input_ids=torch.tensor([told])).logits[0, -1].argmax()))
        if told[-1] == end:
            break
    return told[len(tokens) :]


def test_at_each_evaluation_the_policy_answers_what_the_rows_ask(world, tmp_path):
    """The answers are those of the weights that were evaluated, and training is as without them."""
    from roll.cli.export import main as export
    from roll.cli.verify import main as verify

    made = run(world, tmp_path, validation=heard(world), deterministic=True)
    assert made.summary["status"] == "finished" and verify([str(made.folder)]) == 0
    places = sorted((row["step"], row["prompt_uid"]) for row in made.answers)
    assert places == [(step, f"validation/{i}") for step in (0, 3, 6) for i in range(ASKED)]
    assert export(["--checkpoint", str(made.folder), "--output", str(tmp_path / "exported")]) == 0
    tokenizer = AutoTokenizer.from_pretrained(world / "model")
    for i, row in enumerate(sums(ASKED, 50)):
        *asked, own = row["messages"]
        said = "".join(f"<|im_start|>{each['role'][0]}{each['content']}<|im_end|>\n" for each in asked) + "<|im_start|>a"
        ids = tokenizer(said, add_special_tokens=False)["input_ids"]
        for folder, step in ((world / "model", 0), (tmp_path / "exported", 6)):
            found = next(one for one in made.answers if (one["step"], one["prompt_uid"]) == (step, f"validation/{i}"))
            assert (found["prompt"], found["ground_truth"]) == (tokenizer.decode(ids), own["content"])
            assert found["response_ids"] == greedy(folder, ids, 5, 4)
    unheard = config(world, tmp_path / "without", deterministic=True)
    pipeline_for(unheard, local=True).run()
    assert made.losses == losses_of(tmp_path / "without/run")


def test_a_resumed_run_asks_each_question_once_a_version(world, tmp_path):
    sets = {"validation_sets": {"more": heard(world, "train", generate_during_eval=2)}, "validation": heard(world)}
    run(world, tmp_path, **sets, max_steps=3)
    made = run(world, tmp_path, **sets, resume_from_checkpoint=True)
    places = [(row["step"], row["prompt_uid"]) for row in made.answers]
    assert made.summary["resumed_from_step"] == 3
    assert len(places) == len(set(places)) == 3 * (ASKED + 2)


def test_a_pair_is_asked_for_once_and_its_better_answer_is_the_reference(world, tmp_path):
    reference = {"device_mapping": "0"}
    made = run(world, tmp_path, dpo={}, reference=reference, validation=heard(world, "held_out_pairs"), max_steps=1)
    pairs = [json.loads(line) for line in (world / "held_out_pairs.jsonl").read_text().splitlines()]
    first = next(row for row in made.answers if row["prompt_uid"] == "validation/0")
    assert first["ground_truth"] == pairs[0]["chosen"] and pairs[0]["prompt"] in first["prompt"]


def refusable(world, out, **changes):
    changes = {"actor_infer": {"device_mapping": "0"}} | changes if changes["validation"]["generate_during_eval"] else changes
    return load_config(SFTConfig, settings(world, out, **changes))


REFUSED = {
    "validation.generating_args": {"generate_during_eval": 0},
    "validation.generate_during_eval": {"generate_during_eval": 9},
}


@pytest.mark.parametrize("key", REFUSED)
def test_what_would_be_written_nowhere_or_read_by_nobody_is_refused(world, tmp_path, key):
    made = refusable(world, tmp_path, validation=heard(world, **REFUSED[key]))
    assert [each.key for each in check_config(made, 1)] == [key]


def test_whole_rows_have_no_question_and_engines_are_for_questions(world, tmp_path):
    whole = refusable(world, tmp_path, validation=heard(world), sft={"loss_on": "all"})
    assert [each.key for each in check_config(whole, 1)] == ["validation.generate_during_eval"]
    unheard = load_config(SFTConfig, settings(world, tmp_path, actor_infer={"device_mapping": "0"}))
    assert [each.key for each in check_config(unheard, 1)] == ["actor_infer"]


def test_an_answer_has_to_fit_behind_the_longest_question(world, tmp_path):
    made = refusable(world, tmp_path, validation=heard(world, generating_args={"max_new_tokens": 60}))
    with pytest.raises(ConfigError, match=r"max_new_tokens.*the longest question has 37 tokens, and sequence_length is 64"):
        pipeline_for(made, local=True).run()
