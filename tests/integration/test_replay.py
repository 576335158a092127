"""`mode: replay`: from what an asynchronous run has recorded, the trainer alone leads to the same weights at every step."""

import asyncio
import json
from base64 import b64decode, b64encode
from pathlib import Path

import pytest
from mortal_workers import MortalBackend
from tiny_models import tiny_mixture
from transformers import AutoTokenizer

from roll.cli.verify import read_run, violations
from roll.core.configs.problems import ConfigError
from roll.core.distributed.devices import Inventory
from roll.core.record.manifest import read_manifest
from roll.platform.local_backend import LocalBackend
from roll.prepare.replayed import beginning_of, explaining, generating, replayed
from roll.prepare.rlvr_run import RLVRRun, prepare
from roll.topologies.packing import packed, unpacked
from roll.topologies.replay.recording import Recording

SOLVED = "solved.jsonl"
THREE_SLOTS = Inventory("cpu", nodes=1, per_node=3, cpus_per_node=3)
RECORDED = {
    "async_generation_ratio": 1.5,
    "rollout_log_per_step": "all",
    "deterministic": "training",
    "max_steps": 4,
    "save_steps": 2,
    "rewards.sums.worker_cls": "integration_rewards.SlowLetters",
    "rewards.sums.reward_args": {"max_s": 0.01},
}
CRITIC = {
    "actor_infer.generating_args.eos_token_id": 1,
    "adv_estimator": "gae",
    "critic.device_mapping": "0",
    "critic.training_args.learning_rate": 0.01,
    "critic.training_args.per_device_train_batch_size": 8,
}
KL = {
    "reference.device_mapping": "0",
    "adv_estimator": "reinforce",
    "norm_mean_type": "running",
    "norm_std_type": "running",
    "add_token_level_kl": True,
    "init_kl_coef": 0.1,
    "target_kl": 0.001,
}
CASES = {
    "half a batch ahead": {"async_generation_ratio": 0.5},
    "four batches ahead, groups are trained twice": {"async_generation_ratio": 4, "max_reuse": 2},
    "a critic": CRITIC,
    "what is carried from step to step": KL,
    "adapters": {"actor_train.model_args.lora_target": "all-linear"},
    "a copy scores, two epochs, a rate that falls": {
        "old_logprobs": "recompute",
        "actor_log_prob.device_mapping": "2",
        "ppo_epochs": 2,
        "actor_train.training_args.lr_scheduler_type": "linear",
    },
    "a cut distribution": {"actor_infer.generating_args": {"temperature": 0.9, "top_p": 0.7}},
    "one group after the other": {"train_on_arrival": True},
    "versions are published every second step": {"async_generation_ratio": 2, "weight_push_interval": 2},
    "groups in a database": {"groups_database": "sqlite:///groups.db"},
    "greedy baselines": {"adv_estimator": "remax", "actor_train.pg_variant": "reinforce"},
    "rows first": {"warm_start": {"steps": 3, "learning_rate": 0.01, "data_args": {"file_name": SOLVED, "template": "none"}}},
}


def again(lab, config, run, first=None, until=None, without=(), name="again", tokens=False):
    begin, _ = beginning_of(run.run_dir, config, first)
    own = replayed(config, run.run_dir, run.run_dir.with_name(name), begin, until, without)
    own = generating(own) if tokens else own
    found = lab.start(own, LocalBackend(), THREE_SLOTS)
    assert found.summary["status"] == "finished", found.summary["reason"]
    assert list(violations(read_run(found.run_dir))) == []
    return found


def compared(replay):
    return json.loads((replay.run_dir / "replay.json").read_text())


def trained_files(run, step):
    files = read_manifest(run.run_dir / "checkpoints" / f"step-{step}").files
    return {name: digest for name, digest in files.items() if name.startswith(("trainer/", "critic/"))}


def assert_equal(run, replay, steps, checkpoints):
    found = compared(replay)
    assert found["different"] == [] and [*found["equal"], *found["unknown"]] == steps
    for step in checkpoints:
        assert trained_files(replay, step) == trained_files(run, step)


@pytest.mark.parametrize("case", CASES)
def test_every_step_leads_to_the_same_weights(lab, make_config, case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path(SOLVED).write_text("".join(f'{{"prompt": "{i}+{i}=", "response": "{2 * i}"}}\n' for i in range(20)))
    config = make_config({**RECORDED, **CASES[case]})
    run = lab.start(config, LocalBackend(), THREE_SLOTS)
    assert run.summary["status"] == "finished", run.summary["reason"]
    steps = [2, 4] if "weight_push_interval" in CASES[case] else [1, 2, 3, 4]
    assert_equal(run, again(lab, config, run), steps, [2, 4])
    begins = 0 if config.actor_log_prob is not None else 2  # its step 3 is scored with version 1
    assert_equal(run, again(lab, config, run, first=3, name="later"), [step for step in steps if step > begins], [4])


def test_what_rows_do_not_have_is_refused_by_name(lab, make_config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = make_config({**RECORDED, **CASES["rows first"]})
    with pytest.raises(ConfigError, match=r"--all = .*rows of a file, which no engine has written"):
        generating(config)
    with pytest.raises(ConfigError, match=r"--step = 3: the first 3 steps train rows of a file .*fix: --step 4"):
        explaining(config, 3)


def test_experts_are_those_that_the_engine_chose(lab, make_config, material, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(material / "model")
    sizes = {"num_hidden_layers": 2, "num_experts": 8, "max_position_embeddings": 64, "eos_token_id": 1, "pad_token_id": 0}
    tiny_mixture(len(tokenizer), **sizes).save_pretrained(tmp_path / "mixture")
    tokenizer.save_pretrained(tmp_path / "mixture")
    changes = {**RECORDED, "actor_train.router_replay.mode": "R3", "max_steps": 3}
    config = make_config(changes, pretrain=str(tmp_path / "mixture"))
    run = lab.run(config)
    assert_equal(run, again(lab, config, run), [1, 2, 3], [2, 3])


@pytest.mark.ray
@pytest.mark.usefixtures("shared_ray")
def test_two_ranks_of_processes_of_their_own(lab, make_config):
    from roll.platform.ray_backend import RayBackend

    changes = {"actor_train.device_mapping": "0,1", "actor_train.training_args.per_device_train_batch_size": 8}
    config = make_config({**RECORDED, **changes, "actor_infer.device_mapping": "2"})
    run = lab.start(config, RayBackend(THREE_SLOTS), THREE_SLOTS)
    assert run.summary["status"] == "finished", run.summary["reason"]
    own = replayed(config, run.run_dir, run.run_dir.with_name("again"), None)
    replay = lab.start(own, RayBackend(THREE_SLOTS), THREE_SLOTS)
    assert replay.summary["status"] == "finished", replay.summary["reason"]
    assert_equal(run, replay, [1, 2, 3, 4], [2, 4])


def test_a_run_whose_trainer_and_engine_died_and_that_was_interrupted(lab, make_config):
    """What is recorded is the course that counts: steps that were taken back are not replayed."""
    config = make_config({**RECORDED, "max_steps": 6, "max_trainer_restarts": 2})
    deaths = {("actor_train-0", "train"): {4}, ("actor_infer-0", "generate"): {5}}
    prepared = prepare(config, THREE_SLOTS)
    first = RLVRRun(prepared.config, prepared, THREE_SLOTS, MortalBackend(deaths))
    begin_step = first.state.record.add_step

    def interrupt_after_five(done, *given):
        row = begin_step(done, *given)
        if done == 4:
            first.interrupt()
        return row

    go_back = first.go_back

    def heed(resumed):
        nonlocal begin_step
        go_back(resumed)
        begin_step, first.state.record.add_step = first.state.record.add_step, interrupt_after_five

    first.go_back = heed
    summary = asyncio.run(first.run())
    assert (summary["status"], summary["steps"], summary["trainer_resumed_from"]) == ("interrupted", 5, [2])
    assert summary["engine_restarts"] == 1
    later = make_config({**RECORDED, "max_steps": 6, "resume_from_checkpoint": True})
    run = lab.start(later, LocalBackend(), THREE_SLOTS)
    assert (run.summary["status"], run.summary["steps"]) == ("finished", 6), run.summary["reason"]
    replay = again(lab, config, run)
    assert set(compared(replay)["unknown"]) <= {2, 5}, "digests of the versions that a restart began with may be missing"
    assert_equal(run, replay, compared(replay)["equal"] + compared(replay)["unknown"], [2, 4, 6])
    assert len(compared(replay)["equal"]) >= 4


def test_at_ratio_0_a_changed_loss_is_a_fresh_run_with_it(lab, make_config):
    """One step: its rollouts do not depend on the loss, nor their log-probs on what an engine batches."""
    changes = {**RECORDED, "deterministic": True, "async_generation_ratio": 0, "max_steps": 1, "save_steps": 1}
    other = {"actor_train.pg_variant": "gspo", "actor_train.training_args.learning_rate": 0.01}
    run, fresh = lab.run(make_config(changes, exp_name="one")), lab.run(make_config({**changes, **other}, exp_name="other"))
    changed = again(lab, make_config({**changes, **other}, exp_name="one"), run)
    assert trained_files(changed, 1) == trained_files(fresh, 1) != trained_files(run, 1)
    assert compared(changed)["different"] == [1]


def test_groups_and_samples_can_be_left_out(lab, make_config):
    config = make_config({**RECORDED, "max_steps": 1})
    run = lab.run(config)
    first, second = (row["group_id"] for row in run.rows("groups")[:2])
    changed = again(lab, config, run, without=[str(first), f"{second}/0"])
    assert changed.summary["groups"]["trained"] == 3
    assert [len(row["rewards"]) for row in changed.rows("groups")] == [3, 4, 4]
    assert compared(changed)["different"] == [1]


def test_only_what_was_recorded_is_replayed(lab, make_config):
    run = lab.run(make_config(exp_name="sampled"))
    with pytest.raises(ConfigError, match="has recorded no step: rollout_log_per_step is 8"):
        beginning_of(run.run_dir, make_config(), None)
    config = make_config({**RECORDED, "save_steps": 1000})
    run = lab.run(config)
    rows = (run.run_dir / "batches.jsonl").read_text().splitlines(keepends=True)
    (run.run_dir / "batches.jsonl").write_text("".join(row for row in rows if '"step": 2,' not in row))
    with pytest.raises(ConfigError, match="has not recorded step 2: steps 1, 3 to 4 are"):
        prepare(replayed(config, run.run_dir, run.run_dir.with_name("again"), None), THREE_SLOTS)
    assert_equal(run, again(lab, config, run, until=1, name="one"), [1], [])
    (run.run_dir / "batches.jsonl").write_text("".join(row for row in rows if '"step": 1,' not in row))
    with pytest.raises(ConfigError, match="steps before 2 are not recorded, and there is no checkpoint"):
        beginning_of(run.run_dir, config, None)


def test_a_recorded_number_is_exact_even_if_it_is_none(lab, make_config):
    """Log-probs as float32, rewards as float64; also those that JSON has no word for."""
    run = lab.run(make_config({**RECORDED, "max_steps": 1}))
    group = Recording(run.run_dir).parts(1)[0][0]
    assert unpacked(packed(group)) == group
    assert any(round(value, 6) != value for value in group.samples[0].behaviour_logprobs)
    group.samples[0].reward, group.samples[1].reward = float("inf"), 1 / 3
    back = unpacked(packed(group, finite=False))
    assert (back.samples[0].reward, back.samples[1].reward) == (float("inf"), 1 / 3)


TOKENS = {
    "interrupted": {"async_generation_ratio": 2, "response_length": 24, "prompt_length": 8},
    "in flight": {"async_generation_ratio": 2, "response_length": 24, "weight_update_mode": "in_flight"},
    "adapters": {
        "async_generation_ratio": 2,
        "actor_train.model_args.lora_target": "all-linear",
        "actor_train.training_args.learning_rate": 0.05,
    },
    "a cut distribution": {"actor_infer.generating_args": {"temperature": 0.9, "top_p": 0.7}},
}


@pytest.mark.parametrize("case", TOKENS)
def test_tokens_come_again_each_by_the_weights_of_its_version(lab, make_config, case):
    config = make_config({**RECORDED, **TOKENS[case]})
    run = lab.run(config)
    found = again(lab, config, run, tokens=True)
    assert_equal(run, found, [1, 2, 3, 4], [2, 4])
    counts = json.loads((found.run_dir / "regenerated.json").read_text())
    samples = run.trained_samples()
    assert counts["first"] is None and counts["equal"] == counts["tokens"]
    assert counts["tokens"] + counts["not_compared"] == sum(len(row["response_ids"]) for row in samples)
    assert counts["largest_gap"] < 1e-5  # float32, in batches of other sizes
    mixed = sum(len(row["versions"]) > 1 for row in samples)
    if case == "interrupted":
        assert mixed and not counts["not_compared"]
    if case == "in flight":
        assert bool(counts["not_compared"]) == bool(mixed)


def test_the_first_token_that_is_another_one_is_named(lab, make_config):
    config = make_config(RECORDED)
    run = lab.run(config)
    rows = (run.run_dir / "batches.jsonl").read_text().splitlines()
    place = next(i for i, row in enumerate(rows) if '"step": 3,' in row)
    row = json.loads(rows[place])
    group = unpacked(b64decode(row["parts"][0][1]))
    sample = next(each for each in group.samples if len(each.response_ids) > 2)
    sample.response_ids[2] = (sample.response_ids[2] + 1) % 8 + 2
    row["parts"][0][1] = b64encode(packed(group)).decode()
    rows[place] = json.dumps(row)
    (run.run_dir / "batches.jsonl").write_text("".join(f"{each}\n" for each in rows))
    found = again(lab, config, run, tokens=True)
    first = json.loads((found.run_dir / "regenerated.json").read_text())["first"]
    version = next(span.version for span in sample.versions if span.start <= 2 < span.stop)
    assert (first["step"], first["group"], first["sample"], first["token"]) == (3, group.group_id, sample.index, 2)
    assert (first["version"], first["recorded"]) == (version, sample.response_ids[2])
    assert compared(found)["different"] == [3, 4], "and the trainer was given other tokens"


def test_what_cannot_be_generated_again_is_refused(make_config):
    config = make_config({**RECORDED, "actor_infer.strategy_args": {"strategy_name": "vllm"}})
    with pytest.raises(ConfigError, match="does not promise that a response is a function of weights, prompt and seed"):
        generating(config)
