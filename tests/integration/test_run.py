"""What each setting means for a whole run, and what a run leaves behind."""

import gzip
import itertools
import json
import math
import os
from collections import Counter, defaultdict
from dataclasses import replace

import pytest
import torch
import yaml
from safetensors.torch import load_file
from tiny_models import FOR_VLLM, symbol_tokenizer, tiny_classifier, tiny_qwen2

from roll.core.configs.problems import ConfigError
from roll.core.configs.rlvr import RLVRConfig
from roll.core.record import run_record
from roll.core.record.ledger import LaneState
from roll.plan.rules.loading import load_config
from roll.platform.local_backend import LocalBackend
from roll.prepare import rlvr_run

SUMMARY = {
    "": {"status", "reason", "steps", "wall_s", "validation", "groups"}
    | {"staleness", "idle_share", "weight_updates", "throughput", "memory"},
    "groups": {"admitted", "trained", "reused", "buffered", "in_flight", "dropped"},
    "staleness": {"bound", "max", "mean", "token_mean", "histogram"},
    "idle_share": {"actor_train", "actor_infer", "rewards.sums"},
    "weight_updates": {"count", "bytes", "pause_s_mean", "pause_s_max"},
    "throughput": {"samples_per_s", "response_tokens_per_s"},
}
MEAN_FILTER = {
    "rewards.sums.query_filter_config": {
        "type": "mean_filter",
        "filter_args": {"threshold_down": 0.3, "threshold_up": 0.8},
    }
}
STD_FILTER = {"rewards.sums.query_filter_config": {"type": "std_filter", "filter_args": {"std_threshold": 0.44}}}
FILTERS = {"mean": (MEAN_FILTER, {"filter_mean_low", "filter_mean_high"}), "std": (STD_FILTER, {"filter_std"})}


def assert_finite(run):
    for row in run.steps():
        assert all(value is not None for value in row.values()), "metrics.jsonl writes what is not finite as null"
        assert all(math.isfinite(value) for value in row.values() if isinstance(value, int | float))


# -- the algorithm ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [0, 1])
@pytest.mark.parametrize("variant", ["vanilla", "ppo", "tis", "topr", "cispo", "kimi15"])
def test_every_loss_variant_trains_synchronously_and_asynchronously(lab, make_config, variant, ratio):
    run = lab.run(make_config({"actor_train.pg_variant": variant}, async_generation_ratio=ratio))
    assert_finite(run)
    assert all(row["actor_train/grad_norm"] > 0 for row in run.steps())


@pytest.mark.parametrize("ratio", [0, 1])
def test_recomputed_log_probs_agree_with_the_samplers_where_the_policy_is_the_same(lab, make_config, ratio):
    """On-policy the ratio proximal / behaviour is 1 up to rounding: engine and trainer mean the same by a log-prob."""
    changes = {"old_logprobs": "recompute", "actor_infer.generating_args.temperature": 0.7}
    run = lab.run(make_config(changes, max_steps=3, async_generation_ratio=ratio))
    assert_finite(run)
    first = run.steps()[0]
    assert first["actor/behaviour_kl"] == pytest.approx(0, abs=1e-5)
    assert first["actor/approxkl"] == pytest.approx(0, abs=1e-9)


def test_the_kl_loss_keeps_the_policy_near_the_reference(lab, make_config):
    """From the same start a heavy KL term leaves the weights nearer to where they started."""
    placed = {"reference.device_mapping": "0", "use_kl_loss": True, "max_steps": 5, "loss_agg_mode": "token-mean"}
    free = lab.run(make_config({**placed, "kl_loss_coef": 1e-9}, exp_name="free"))
    tied = lab.run(make_config({**placed, "kl_loss_coef": 5.0}, exp_name="tied"))
    assert_finite(tied)
    distance = {run.run_dir.name: run.steps()[-1]["actor/kl_loss"] for run in (free, tied)}
    assert 0 < distance["tied"] < distance["free"]


def test_masks_leave_samples_out_of_the_loss_but_not_out_of_the_accounts(lab, make_config):
    """Some responses end within 24 tokens, others are cut off; some groups are easier than others."""
    masks = {
        "plain": {},
        "unfinished": {"max_len_mask": True},
        "easy": {"difficulty_mask": True, "difficulty_high_threshold": 0.6},
    }
    runs = {}
    for name, mask in masks.items():
        runs[name] = lab.run(make_config(mask, exp_name=name, max_steps=1, seed=7, response_length=24))
    for run in runs.values():
        assert_finite(run)
        assert run.summary["groups"]["dropped"] == {}
    first = {name: run.steps()[0] for name, run in runs.items()}
    assert 0 < first["plain"]["tokens/response_length/clip"] < 1
    assert len({row["critic/score/mean"] for row in first.values()}) == 1, "the same samples ..."
    assert len({row["actor_train/grad_norm"] for row in first.values()}) == 3, "... but not the same loss"


def test_a_step_without_a_trained_token_leaves_the_weights_as_they_were(lab, make_config):
    """No group is between 0.99 and 1: every sample is masked, the optimiser does not move, and the run goes on."""
    config = make_config(difficulty_mask=True, difficulty_low_threshold=0.99, max_steps=3)
    run = lab.run(config)
    weights = load_file(run.run_dir / "checkpoints/step-3/trainer/model/model.safetensors")
    start = load_file(f"{config.pretrain}/model.safetensors")
    assert all(weights[name].equal(start[name]) for name in start)
    assert [row["actor_train/optimiser_steps"] for row in run.steps()] == [0, 0, 0]
    assert run.summary["weight_updates"]["count"] == 3


# -- which groups are trained -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [0, 1])
@pytest.mark.parametrize("name", FILTERS)
def test_filtered_groups_are_replaced_and_named(lab, make_config, name, ratio):
    changes, reasons = FILTERS[name]
    run = lab.run(make_config(changes, max_steps=3, async_generation_ratio=ratio, rollout_log_per_step=16))
    dropped = run.summary["groups"]["dropped"]
    assert dropped.keys() & reasons
    assert dropped.keys() <= reasons | {"surplus"}
    groups = {}
    for row in run.trained_samples():
        groups.setdefault(row["group_id"], []).append(row["reward"])
    for rewards in groups.values():
        assert 0 < sum(rewards) < len(rewards), "a group that taught nothing was not trained"


@pytest.mark.parametrize("ratio", [0, 1])
def test_additional_prompts_beyond_the_batch_are_dropped_by_name(lab, make_config, ratio):
    changes = {
        **MEAN_FILTER,
        "redundant_groups": 3,
        "rewards.sums.worker_cls": f"{lab.rewards}.SlowLetters",
        "rewards.sums.reward_args": {"max_s": 0.02},
    }
    run = lab.run(make_config(changes, max_steps=5, async_generation_ratio=ratio))
    dropped = run.summary["groups"]["dropped"]
    assert dropped.keys() <= {"redundant", "surplus", "filter_mean_low", "filter_mean_high"}
    assert dropped.get("redundant", 0) + dropped.get("surplus", 0) > 0
    assert dropped.get("redundant", 0) + dropped.get("surplus", 0) <= (5 + 1) * 3, "no more than the extra ones of each step"


def test_a_group_that_cannot_be_rewarded_is_dropped_and_counted_never_rewarded_with_0(lab, make_config):
    changes = {"rewards.sums.worker_cls": f"{lab.rewards}.Unreliable", "rewards.sums.reward_args": {"every": 4}}
    run = lab.run(make_config(changes, max_steps=6, rollout_log_per_step=16))
    failed = run.summary["groups"]["dropped"]["reward_error"]
    assert failed > 0
    assert run.summary["groups"]["dropped"] == {"reward_error": failed}
    # Both attempts at each of a group's four samples.
    assert run.summary["reward_errors"] == {"sums: ConnectionError: the judge is away": failed * 4 * 2}
    assert all(int(row["prompt_uid"].rpartition("/")[2]) % 4 for row in run.trained_samples())
    statuses = {row["prompt_uid"]: row for row in run.rows("groups")}
    for uid, row in statuses.items():
        assert (row["status"] == "dropped") == (int(uid.rpartition("/")[2]) % 4 == 0)


@pytest.mark.parametrize("policy", ["retry", "drop_sample", "drop_group"])
def test_what_is_dropped_for_a_failed_judgement_is_chosen_by_domain(lab, make_config, policy):
    """The judge fails for the first of a group's four samples, whose group is dropped after one attempt or two, or trained
    without it."""
    changes = {"rewards.sums.worker_cls": f"{lab.rewards}.FailsForOne", "rewards.sums.on_reward_error": policy}
    if policy == "drop_sample":
        run = lab.run_local(make_config(changes, max_steps=2))
        assert run.summary["status"] == "finished" and run.summary["groups"]["dropped"] == {}
        sizes = Counter(row["group_id"] for row in run.trained_samples())
        assert set(sizes.values()) == {3}
        groups = run.summary["groups"]["trained"]
        assert groups == 8 and run.summary["samples_without_reward"] == {"sums": groups}
        assert run.summary["reward_errors"] == {"sums: ConnectionError: the judge is away": 2 * groups}
        return
    run = lab.run_local(make_config(changes, max_steps=1))
    assert run.summary["status"] == "failed"
    failed = run.summary["groups"]["dropped"]["reward_error"]
    attempts = 2 if policy == "retry" else 1
    (errors,) = run.summary["reward_errors"].values()
    assert failed * attempts <= errors <= (failed + 8) * attempts and run.summary["samples_without_reward"] == {}


SGLANG = os.environ.get("SGLANG_PYTHON")
NEEDS_SGLANG = [pytest.mark.skipif(SGLANG is None, reason="needs SGLANG_PYTHON (make test-sglang)"), pytest.mark.sglang]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("engine", "options"),
    [
        ("hf_infer", {}),
        pytest.param("vllm", {}, marks=pytest.mark.xdist_group("vllm")),
        pytest.param("sglang", {"python": SGLANG}, marks=NEEDS_SGLANG),
    ],
    ids=["hf_infer", "vllm", "sglang"],
)
def test_a_judge_on_a_device_of_its_own(lab, make_config, tmp_path, request, engine, options):
    """A model that says yes whatever it is asked: its logits are all equal, and the first of them is taken."""
    if engine == "vllm":
        pytest.importorskip("vllm", reason="needs requirements/vllm.txt")
        request.getfixturevalue("forked_engines")
    folder = tmp_path / "judge"
    tokenizer = symbol_tokenizer(["yes", "<pad>", "<eos>", *sorted({*"Is it right?"})], pattern=r"yes|[\s\S]")
    tokenizer.save_pretrained(folder)
    model = tiny_qwen2(len(tokenizer), eos_token_id=2, **FOR_VLLM)
    torch.nn.init.zeros_(model.model.norm.weight)
    model.save_pretrained(folder)
    changes = {
        "num_gpus_per_node": 3,
        "rewards.sums.worker_cls": "roll.pipeline.rlvr.rewards.llm_judge_reward_worker.LLMJudgeRewardWorker",
        "rewards.sums.timeout_s": 60.0,
        "rewards.sums.reward_args": {"judge_prompt": "Is it right? {response}"},
        "rewards.sums.judge": {
            "model_name_or_path": str(folder),
            "device_mapping": "2",
            "max_length": 128,
            "strategy_args": {"strategy_name": engine, "strategy_config": options},
            "generating_args": {"temperature": 0.0, "max_new_tokens": 1},
        },
    }
    run = lab.start(make_config(changes, max_steps=2), LocalBackend(), replace(lab.inventory, per_node=3))
    assert run.summary["status"] == "finished", run.summary["reason"]
    # An empty answer is wrong without being asked for.
    answers = {row["response"].strip() != "": row["reward"] for row in run.trained_samples()}
    assert answers[True] == 1.0 and answers.get(False, 0.0) == 0.0
    idle = [row["idle_share/rewards.sums"] for row in run.steps() if "idle_share/rewards.sums" in row]
    assert len(idle) == 2 and all(0 < share < 1 for share in (*idle, run.summary["idle_share"]["rewards.sums"]))


def test_a_reward_model_on_a_device_of_its_own(lab, make_config, tmp_path):
    """Its rewards are those of the classifier, and refusals name the key: no folder, and an engine that serves none."""
    folder = tmp_path / "classifier"
    tokenizer = symbol_tokenizer(["<pad>", "<eos>", *"ua:0123456789+="])
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'][0] }}:{{ m['content'] }}<eos>{% endfor %}"
    tokenizer.save_pretrained(folder)
    model = tiny_classifier(len(tokenizer), eos_token_id=1)
    torch.nn.init.normal_(model.score.weight)
    model.save_pretrained(folder)
    block = {"model_name_or_path": str(folder), "device_mapping": "2", "max_length": 128}
    changes = {
        "num_gpus_per_node": 3,
        "rewards.sums.worker_cls": "roll.pipeline.rlvr.rewards.reward_model_worker.RewardModelWorker",
        "rewards.sums.timeout_s": 60.0,
        "rewards.sums.max_concurrency": 16,
        "rewards.sums.reward_model": block,
    }
    run = lab.start(make_config(changes, max_steps=2), LocalBackend(), replace(lab.inventory, per_node=3))
    assert run.summary["status"] == "finished", run.summary["reason"]
    by_text: dict[tuple[str, str], set[float]] = {}
    for row in run.trained_samples():
        by_text.setdefault((row["prompt_uid"], row["response"]), set()).add(round(row["reward"], 3))
    assert all(len(rewards) == 1 for rewards in by_text.values()), "equal conversations earn the same"
    assert len({reward for rewards in by_text.values() for reward in rewards}) > 4

    nowhere = {**changes, "rewards.sums.reward_model": block | {"model_name_or_path": str(tmp_path / "nowhere")}}
    with pytest.raises(ConfigError, match=r"rewards\.sums\.reward_model\.model_name_or_path.*does not exist"):
        lab.start(make_config(nowhere), LocalBackend(), replace(lab.inventory, per_node=3))
    other = {**changes, "rewards.sums.reward_model": block | {"strategy_args": {"strategy_name": "sglang"}}}
    with pytest.raises(ConfigError, match=r"strategy_name.*sglang serves no classifier here"):
        lab.start(make_config(other), LocalBackend(), replace(lab.inventory, per_node=3))


def test_a_judge_that_recovers_costs_nothing_but_a_second_attempt(lab, make_config):
    run = lab.run(make_config({"rewards.sums.worker_cls": f"{lab.rewards}.Hiccup"}))
    assert run.summary["groups"]["dropped"] == {}
    assert run.summary["reward_errors"] == {"sums: ConnectionError: try again": 2 * 16}


def test_data_of_several_epochs_serves_every_row_once_an_epoch(lab, make_config):
    """20 steps of 4 prompts on 64 rows: one epoch and a quarter."""
    run = lab.run(make_config(max_steps=20))
    rows = [row["prompt_uid"].split("/") for row in run.rows("groups") if row["status"] == "trained"]
    by_epoch = {epoch: [uid for _, e, uid in rows if e == epoch] for epoch in ("0", "1")}
    assert sorted(map(int, by_epoch["0"])) == list(range(64))
    assert len(by_epoch["1"]) == len(set(by_epoch["1"])) == 16
    assert len(rows) == 80


def test_domains_have_their_own_judges_and_shares(lab, make_config):
    judge = {"worker_cls": f"{lab.rewards}.Letters", "max_concurrency": 8}
    changes = {
        "rewards": {"odd": judge, "even": judge | {"world_size": 2}},
        "actor_train.data_args.domain_interleave_probs": {"odd": 1.0, "even": 3.0},
    }
    run = lab.run(make_config(changes, max_steps=4, rollout_log_per_step=16))
    domains = [row["domain"] for row in run.trained_samples()]
    assert (domains.count("odd"), domains.count("even")) == (16, 48)
    assert all(row["domain"] == row["tag"] for row in run.trained_samples())


# -- where the roles are ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [0, 1])
def test_roles_on_one_device_take_turns(lab, make_config, with_validation, ratio):
    on_one = {"actor_infer.device_mapping": "0", "reference.device_mapping": "0", "use_kl_loss": True, "kl_loss_coef": 0.01}
    run = lab.run(make_config({**with_validation, **on_one}, max_steps=3, async_generation_ratio=ratio))
    assert [row["step"] for row in run.summary["validation"]] == [0, 1, 2, 3]
    assert run.summary["weight_updates"]["count"] == 3


@pytest.mark.parametrize("ratio", [0, 2])
def test_every_response_may_be_routed_on_its_own(lab, make_config, ratio):
    changes = {"is_num_return_sequences_expand": True, "max_running_requests": 3, "actor_infer.device_mapping": "0,1"}
    run = lab.run(make_config(changes, max_steps=3, async_generation_ratio=ratio))
    parameters = load_file(f"{make_config().pretrain}/model.safetensors").values()
    model_bytes = sum(tensor.numel() * tensor.element_size() for tensor in parameters)
    assert run.summary["weight_updates"] == run.summary["weight_updates"] | {"count": 3, "bytes": 3 * 2 * model_bytes}


@pytest.mark.parametrize("mode", ["interrupt", "in_flight"])
def test_weight_update_modes_run(lab, make_config, mode):
    run = lab.run(make_config(max_steps=4, async_generation_ratio=1, async_pipeline_depth=1.0, weight_update_mode=mode))
    assert run.summary["weight_updates"]["count"] == 4
    assert 0 < run.summary["weight_updates"]["pause_s_mean"] <= run.summary["weight_updates"]["pause_s_max"]


def test_workers_of_one_process_start_one_after_another(lab, make_config):
    """Two models that load at the same time break each other: transformers changes the default device meanwhile."""
    changes = {"rewards.sums.worker_cls": f"{lab.rewards}.Meeting", "rewards.sums.world_size": 2}
    lab.run(make_config({**changes, "actor_infer.device_mapping": "0,1"}, max_steps=1))


# -- validation ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [0, 2])
def test_validation_speaks_of_one_version_and_has_its_own_sampling(lab, make_config, with_validation, ratio):
    """Greedy validation of untrained and final weights, beside rollouts at temperature 1. A response of two versions would end
    the run. The accuracy at step 0 is that of the start weights alone, so it is the same in every run."""
    greedy = {**with_validation, "validation.generating_args.temperature": 0.0, "eval_steps": 2}
    runs = [
        lab.run(make_config(greedy, exp_name=f"greedy{i}", max_steps=5, async_generation_ratio=ratio, seed=i)) for i in range(2)
    ]
    for run in runs:
        assert [row["step"] for row in run.summary["validation"]] == [0, 2, 4, 5]
        assert all(0 <= row["accuracy"] <= 1 for row in run.summary["validation"])
        validated = {row["step"]: row["val_correct/all/mean"] for row in run.rows("metrics") if "val_correct/all/mean" in row}
        assert validated == {row["step"]: row["accuracy"] for row in run.summary["validation"]}
    assert runs[0].summary["validation"][0] == runs[1].summary["validation"][0], "greedy decoding has no seed"


def test_sampled_validation_of_n_responses_a_prompt(lab, make_config, with_validation):
    sampling = {"temperature": 1.0, "num_return_sequences": 3, "max_new_tokens": 4}
    changes = {**with_validation, "validation.generating_args": sampling}
    run = lab.run(make_config(changes, val_batch_size=8, eval_steps=100))
    assert [row["step"] for row in run.summary["validation"]] == [0, 2]
    assert all((row["accuracy"] * 24) == pytest.approx(round(row["accuracy"] * 24)) for row in run.summary["validation"])


@pytest.mark.parametrize(("every", "errors"), [(16, 1), (4, 4)])
def test_validation_leaves_out_what_could_not_be_graded(lab, make_config, with_validation, every, errors):
    """The judge fails for some of the 16 validation prompts: errors, not wrong answers. With a quarter missing there is no
    accuracy, which the run says."""
    changes = {**with_validation, "eval_steps": 100, "validation.generating_args.temperature": 0.0}
    unreliable = {"rewards.sums.worker_cls": f"{lab.rewards}.Unreliable", "rewards.sums.reward_args": {"every": every}}
    run = lab.run(make_config({**changes, **unreliable}))
    rows = [row for row in run.rows("metrics") if "val/errors" in row]
    assert [(row["val/errors"], row["val/rollouts"]) for row in rows] == [(errors, 16)] * 2
    known = [row["val_correct/all/mean"] * 15 for row in rows if "val_correct/all/mean" in row]
    assert known == ([pytest.approx(round(value)) for value in known] if errors == 1 else [])
    assert [each["accuracy"] is None for each in run.summary["validation"]] == [errors == 4] * 2
    assert (run.summary["verdict"]["kind"] == "not judged") == (errors == 4)


def test_a_run_without_validation_has_none(lab, make_config):
    assert lab.run(make_config()).summary["validation"] == []


# -- what a run leaves behind -------------------------------------------------------------------------------------------


def test_the_folder_of_a_run(lab, make_config, with_validation, pictures):
    config = make_config(
        with_validation, max_steps=4, save_steps=1, max_ckpt_to_keep=2, rollout_log_per_step=5, async_generation_ratio=1
    )
    run = lab.run(config)
    written = load_config(RLVRConfig, yaml.safe_load((run.run_dir / "config.yaml").read_text()))
    assert written == replace(config, model_update_transport="ipc"), "auto, on one machine"
    assert [row["step"] for row in run.steps()] == [1, 2, 3, 4]
    # Five rollouts are two groups of four.
    assert [(row["step"], row["index"]) for row in run.trained_samples()] == [
        (s, i) for s in (1, 2, 3, 4) for i in (*range(4),) * 2
    ]
    assert {row["status"] for row in run.rows("samples")} == {"trained", "validation"}
    assert all(row["advantage"] is not None for row in run.trained_samples())
    assert all(row["memory/driver_rss_mb"] > 10 for row in run.steps()), "workers in this process have no memory of their own"
    assert (run.run_dir / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in (run.run_dir / "checkpoints").iterdir()) == ["step-3", "step-4"]
    summary = json.loads((run.run_dir / "summary.json").read_text())
    assert summary == run.summary
    for block, keys in SUMMARY.items():
        assert keys <= (summary[block] if block else summary).keys()
    assert (summary["status"], summary["reason"], summary["steps"]) == ("finished", "", 4)
    assert summary["wall_s"] > 0
    assert summary["throughput"]["samples_per_s"] == pytest.approx(4 * 16 / summary["wall_s"])


def test_a_second_run_of_the_same_name_moves_the_first_aside(lab, make_config):
    first = lab.run(make_config(seed=1))
    kept = (first.run_dir / "summary.json").read_bytes()
    second = lab.run(make_config(seed=2))
    lab.run(make_config(seed=3))
    assert second.run_dir == first.run_dir
    seeds = [yaml.safe_load((path / "config.yaml").read_text())["seed"] for path in sorted(first.run_dir.parent.iterdir())]
    assert [path.name for path in sorted(first.run_dir.parent.iterdir())] == ["run", "run.old-1", "run.old-2"]
    assert seeds == [3, 1, 2]
    assert (first.run_dir.parent / "run.old-1" / "summary.json").read_bytes() == kept


def test_the_trace_has_every_second_of_every_role_and_stage(lab, make_config, with_validation):
    """The states of a row follow each other to the end; idle shares are what is left of the busy ones."""
    run = lab.run(make_config(with_validation, max_steps=3, async_generation_ratio=1))
    rows = read_trace(run)
    stages = {f"stage.{name}" for name in ("admit", "generate", "reward", "keep", "lease", "train", "publish", "validate")}
    roles = {"actor_train", "actor_infer", "rewards"}
    assert stages | roles <= set(rows)
    end = max(begin + seconds for spans in rows.values() for _, begin, seconds, _ in spans)
    for row in stages | roles:
        spans = sorted(rows[row], key=lambda span: span[1])
        for (_, begin, seconds, _), (_, following, *_) in itertools.pairwise(spans):
            assert begin + seconds == pytest.approx(following, abs=1e-5)
        assert spans[-1][1] + spans[-1][2] == pytest.approx(end, abs=1e-5)
    for role, idle in run.summary["idle_share"].items():
        spans = [(name, begin, seconds) for name, begin, seconds, _ in rows[role]]
        busy = sum(seconds for name, _, seconds in spans if name == LaneState.PROCESSING.value)
        assert idle == pytest.approx(1 - busy / (end - min(begin for _, begin, _ in spans)), abs=0.05)


def test_the_trace_has_every_step_version_validation_and_group(lab, make_config, with_validation):
    run = lab.run(make_config(with_validation, max_steps=3, async_generation_ratio=1, eval_steps=3))
    rows = read_trace(run)
    assert [(name, args["version"]) for name, *_, args in rows["steps"]] == [("step 1", 0), ("step 2", 1), ("step 3", 2)]
    assert [name for name, *_ in rows["publish"]] == ["version 1", "version 2", "version 3"]
    loads = [name for name, *_ in rows["weights"]]
    assert loads[-3:] == ["send version 3 as it is made", "send version 3", "flip to version 3"]
    shown = [(name, args["accuracy"]) for name, *_, args in rows["validations"]]
    assert shown == [(f"version {each['step']}", each["accuracy"]) for each in run.summary["validation"]]
    groups = {args["group_id"]: args for name, *_, args in rows["groups"] if name == "group"}
    for row in run.rows("groups"):
        tokens, judged_s = (groups[row["group_id"]].pop(name) for name in ("tokens_by_version", "judged_s"))
        assert len(judged_s) == len(row["rewards"]) and min(judged_s) >= 0
        assert groups[row["group_id"]] == {name: value for name, value in row.items() if name not in ("rewards", "tokens")}
        assert row["status"] == "dropped" or min(map(int, tokens)) == row["step"] - 1 - row["lag"]
    assert len(groups) == run.summary["groups"]["admitted"]


def read_trace(run):
    """Row -> [(name, begin, seconds, args)]; that of groups has their beginnings only."""
    (path,) = (run.run_dir / "trace").iterdir()
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    rows = defaultdict(list)
    for e in events:
        if e["ph"] == "X":
            rows[names[e["tid"]]].append((e["name"], e["ts"] / 1e6, e["dur"] / 1e6, e["args"]))
        elif e["ph"] == "b":
            rows["groups"].append((e["name"], e["ts"] / 1e6, 0.0, e.get("args")))
    return rows


# -- how a run ends -----------------------------------------------------------------------------------------------------


def test_a_run_that_fails_says_who_and_why_and_its_accounts_still_balance(lab, make_config, monkeypatch):
    """The trainer breaks in its second step."""
    from roll.core.workers.workers import TrainWorker

    train, calls = TrainWorker.train, []

    def breaks(self, *args):
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("out of memory on a Tuesday")
        return train(self, *args)

    monkeypatch.setattr(TrainWorker, "train", breaks)
    run = lab.run_local(make_config(max_steps=5, async_generation_ratio=1))
    assert run.summary["status"] == "failed"
    assert run.summary["steps"] == 1
    assert "train" in run.summary["reason"] and "out of memory on a Tuesday" in run.summary["reason"]
    groups = run.summary["groups"]
    assert groups["trained"] == 4
    assert groups["admitted"] == groups["trained"] + groups["buffered"] + groups["in_flight"] + sum(groups["dropped"].values())


def test_an_interrupted_run_ends_after_its_step_with_a_checkpoint_and_is_continued(lab, make_config, monkeypatch):
    """What Ctrl-C does. The groups that were under way keep their prompts: each is trained once, before or after."""
    add_step = run_record.RunRecord.add_step
    pipelines = []
    original = rlvr_run.RLVRRun.__init__

    def remember(self, *args, **kwargs):
        original(self, *args, **kwargs)
        pipelines.append(self)

    def stop_after_two(self, version, *told):
        row = add_step(self, version, *told)
        if version == 1:
            pipelines[-1].interrupt()
        return row

    monkeypatch.setattr(rlvr_run.RLVRRun, "__init__", remember)
    monkeypatch.setattr(run_record.RunRecord, "add_step", stop_after_two)
    changes = {"max_steps": 6, "async_generation_ratio": 2, "async_pipeline_depth": 2.0, "staleness_policy": "wait"}
    stopped = lab.start(make_config(changes), LocalBackend())
    assert stopped.summary["status"] == "interrupted"
    assert stopped.summary["steps"] == 2
    assert (stopped.run_dir / "checkpoints" / "step-2" / "manifest.json").is_file()
    config = make_config(changes, resume_from_checkpoint=True)
    resumed = lab.start(config, LocalBackend())
    assert resumed.summary["status"] == "finished" and resumed.summary["resumed_from_step"] == 2
    trained = [row for row in resumed.rows("groups") if row["status"] == "trained"]
    assert len(trained) == len({row["prompt_uid"] for row in trained}) == 24
    assert [row["step"] for row in resumed.steps()] == [1, 2, 3, 4, 5, 6]


def test_sequences_that_the_model_was_not_made_for_are_told_before_anything_starts(lab, make_config):
    def told(length):
        config = make_config(response_length=length)
        return [line for line in rlvr_run.prepare(config, lab.inventory).warnings if "max_position_embeddings" in line]

    assert told(8) == []
    (line,) = told(100_000)
    assert line.startswith("pretrain = ") and "a sequence may have 100,008 tokens, the model was made for" in line
