"""Rollouts of a user's own: what is trained, who rewards them, what a failure costs."""

import json

import pytest
from mortal_workers import MortalBackend
from tiny_models import symbol_tokenizer

from roll.cli.verify import read_run, violations
from roll.core.configs.problems import ConfigError
from roll.prepare.rlvr_run import prepare
from roll.simulate.run import simulated

TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% if m['role'] == 'user' %}={% else %}-{% endif %}{% endfor %}"


@pytest.fixture
def of_rollouts(make_config, material, tmp_path):
    """A configuration whose model has a chat template, and room for several turns."""
    folder = tmp_path / "talks"
    folder.mkdir()
    for file in (material / "model").iterdir():
        (folder / file.name).symlink_to(file)
    symbols = ["<pad>", "<eos>", *"0123456789+-=abcdefghijklmnopqrst"]
    made = symbol_tokenizer(symbols)
    made.chat_template = TEMPLATE
    for file in made.save_pretrained(tmp_path / "words"):
        name = file.rsplit("/", 1)[-1]
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(file)
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"tag": "odd", "prompt": f"{i}", "ground_truth": "a"}) + "\n" for i in range(16)))

    def make(function, changes=None, **top_level):
        base = {
            "pretrain": str(folder),
            "rollout": {"function": f"integration_rollouts.{function}", "max_calls": 6},
            "actor_train.data_args.template": "native",
            "actor_train.data_args.file_name": str(rows),
            "sequence_length": 48,
            "prompt_length": 8,
            "response_length": 8,
            "rollout_log_per_step": 64,
            "loss_agg_mode": "rollout-mean",
        }
        return make_config({**base, **(changes or {})}, **top_level)

    return make


SMALL = {
    "num_return_sequences_in_group": 2,
    "rollout_batch_size": 2,
    "actor_train.training_args.per_device_train_batch_size": 4,
}


def finished(lab, config):
    run = lab.run_local(config)
    assert run.summary["status"] == "finished", run.summary["reason"]
    assert run.summary["steps"] == config.max_steps and list(violations(read_run(run.run_dir))) == []
    return run


def test_a_rollout_of_several_turns_is_trained_token_by_token_and_brings_its_reward(lab, of_rollouts):
    run = finished(lab, of_rollouts("two_turns", {"rollout.args": {"letter": "b"}, "async_generation_ratio": 1}))
    samples = run.trained_samples()
    assert len(samples) == 2 * 4 * 4
    for sample in samples:
        turns = sample["trajectory"]["turns"]
        said = "".join(turn["action"] for turn in turns)
        assert len(turns) == 2 and sample["reward"] == pytest.approx(said.count("b") / max(1, len(said)))
        assert (
            sum(sample["loss_mask"])
            == sum(turn["tokens"] for turn in turns)
            == sum(stop - start for start, stop, *_ in sample["versions"])
        )
    assert max(row["actor/engine_mismatch_max"] for row in run.steps() if "actor/engine_mismatch_max" in row) < 1e-4


def test_conversations_of_a_rollout_are_samples_of_one_that_its_domain_judges_once(lab, of_rollouts, with_validation):
    changes = {name: value for name, value in with_validation.items() if "template" not in name}
    run = finished(lab, of_rollouts("two_branches", {**changes, "validation.data_args.template": "native"}, max_steps=1))
    samples = run.trained_samples()
    assert len(samples) == 4 * 4 * 2, "two leaves each"
    by_rollout = {}
    for sample in samples:
        by_rollout.setdefault((sample["group_id"], sample["index"]), []).append(sample)
    assert len(by_rollout) == 16
    for first, second in by_rollout.values():
        assert first["reward"] == second["reward"] in (0.0, 1.0)
        assert (len(first["trajectory"]["turns"]), len(second["trajectory"]["turns"])) == (2, 1), (
            "the first answer is trained once"
        )
        assert first["trajectory"]["success"] is (first["reward"] == 1.0)
    validations = [row for row in run.rows("metrics") if "val_correct/all/mean" in row]
    assert [0 <= row["val_correct/all/mean"] <= 1 and row["val/errors"] == 0 for row in validations] == [True, True]


@pytest.mark.parametrize(("function", "reward"), [("minds_the_limit", {1.0, 0.5}), ("until_refused", {0.0, 1.0})])
def test_limits_are_told_to_the_coroutine_and_end_one_that_does_not_mind(lab, of_rollouts, function, reward):
    run = finished(lab, of_rollouts(function, max_steps=1))
    ends = {sample["trajectory"]["end"] for sample in run.trained_samples()}
    assert ends <= {"context", "max_steps"} and {sample["reward"] for sample in run.trained_samples()} <= reward


def test_a_failed_rollout_is_made_again_and_then_costs_its_group(lab, of_rollouts):
    run = finished(lab, of_rollouts("odd_ones_fail", {**SMALL, "seed": 5}, max_steps=1))  # some answers are odd
    failures = {name: value for name, value in run.steps()[-1].items() if name.startswith("rollout/failures/")}
    assert failures.keys() == {"rollout/failures/exception"} and failures["rollout/failures/exception"] > 0
    assert all(sample["reward"] == 1.0 for sample in run.trained_samples())


def test_engines_and_trainers_that_die_cost_no_rollout(lab, of_rollouts):
    """An engine that dies in a rollout is replaced, and the answer goes on; a trainer goes back to its checkpoint."""
    deaths = MortalBackend({("actor_infer-0", "generate"): {5}, ("actor_train-0", "train"): {3}})
    config = of_rollouts("two_turns", {"async_generation_ratio": 1, "save_steps": 1}, max_steps=4)
    run = lab.start(config, deaths)
    assert run.summary["status"] == "finished", run.summary["reason"]
    assert list(violations(read_run(run.run_dir))) == []
    assert run.summary["engine_restarts"] == len(run.summary["trainer_recovery_s"]) == 1
    assert run.summary["rollout_failures"] == {}
    assert run.summary["staleness"]["max"] <= run.summary["staleness"]["bound"]


def test_a_run_goes_on_where_it_was_and_what_top_p_kept_is_trained(lab, of_rollouts):
    changes = {"actor_infer.generating_args.top_p": 0.6, "save_steps": 1}
    finished(lab, of_rollouts("two_branches", changes, max_steps=1))
    run = finished(lab, of_rollouts("two_branches", changes, max_steps=2, resume_from_checkpoint=True))
    assert [row["step"] for row in run.steps()][-1] == 2 and run.summary["resumed_from_step"] == 1
    assert max(row["actor/engine_mismatch_max"] for row in run.steps() if "actor/engine_mismatch_max" in row) < 1e-4


@pytest.mark.parametrize(
    ("function", "kind"), [("never_ends", "timeout"), ("asks_nothing", "no_calls"), ("says_nonsense", "scoring")]
)
def test_rollouts_that_come_to_nothing_end_the_run_with_the_reason(lab, of_rollouts, function, kind):
    patience_s = 0.3 if kind == "timeout" else 60.0  # a busy machine may take long to find nonsense
    config = of_rollouts(function, {"rollout.timeout_s": patience_s, "rollout.on_failure": "drop_group"}, max_steps=1)
    run = lab.run_local(config)
    assert run.summary["status"] == "failed" and kind in run.summary["reason"]


@pytest.mark.parametrize("function", ["with_tools", "with_tools_and_patience"])
def test_tools_that_the_chat_template_does_not_show_end_the_run_with_the_cause(lab, of_rollouts, function):
    run = lab.run_local(of_rollouts(function, {"rollout.on_failure": "drop_group"}, max_steps=1))
    assert run.summary["status"] == "failed" and run.summary["reason"].endswith("does not show tools: add")


@pytest.mark.parametrize(
    ("function", "changes", "key", "message"),
    [
        ("no_such", {}, "rollout.function", "no_such"),
        ("no_coroutine", {}, "rollout.function", "no coroutine function"),
        ("two_turns", {"rollout.args": {"lettre": "a"}}, "rollout.args", "lettre"),
        ("two_turns", {"actor_train.data_args.template": "none"}, "actor_train.data_args.template", "chat template"),
        ("two_turns", {"adv_estimator": "remax"}, "adv_estimator", "may become several"),
        (
            "two_turns",
            {"actor_train.data_args.continue_final_message": True},
            "actor_train.data_args.continue_final_message",
            "makes itself",
        ),
        ("two_turns", {"is_num_return_sequences_expand": True}, "is_num_return_sequences_expand", "no effect"),
    ],
)
def test_bad_input_is_refused_before_any_worker_starts(lab, of_rollouts, function, changes, key, message):
    with pytest.raises(ConfigError) as refused:
        prepare(of_rollouts(function, changes), lab.inventory)
    assert [(problem.key, message in str(problem)) for problem in refused.value.problems] == [(key, True)]


def test_a_simulation_refuses_them(of_rollouts, tmp_path):
    with pytest.raises(ConfigError, match="rollouts of your own take real time"):
        simulated(of_rollouts("two_turns"), tmp_path)
