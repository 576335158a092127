"""Stages of a user's own in whole runs: the three examples, where they run, and what is refused before anything starts."""

import asyncio
import gzip
import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import integration_stages
import pytest

from roll import AsyncTrainingFlow, create_role_state_machine
from roll.core.configs.problems import ConfigError
from roll.core.flow.custom_stage import Drop
from roll.core.flow.stage import Stage
from roll.platform.local_backend import LocalBackend
from roll.platform.ray_backend import RayBackend
from roll.prepare.own_stages import BuiltIn
from roll.prepare.rlvr_run import RLVRPipeline, RLVRRun, prepare
from roll.reports.printed_summary import print_summary

EXAMPLES = Path(__file__).parents[2] / "examples" / "custom_stages"
PENALTY = {
    "after": "reward",
    "name": "length_penalty",
    "worker": "length_penalty.length_penalty",
    "args": {"free": 2, "each": 0.25},
}


@pytest.fixture(autouse=True)
def _examples_are_importable(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))


def traced(run):
    """The names of the rows of the trace."""
    events = [
        event
        for path in (run.run_dir / "trace").iterdir()
        for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    ]
    return {event["args"]["name"] for event in events if event["ph"] == "M"}


def assert_all_are_penalised(run, every):
    samples = run.trained_samples()
    assert len(samples) == every
    for sample in samples:
        penalty = 0.25 * max(0, len(sample["response_ids"]) - 2)
        assert sample["reward_parts"]["length_penalty"] == pytest.approx(-penalty)
        assert sample["reward"] + penalty == pytest.approx(round(sample["reward"] + penalty)), "what Letters gave is 0 or 1"
    assert any(row["rewards/sums/length_penalty/mean"] < 0 for row in run.steps())


# -- the examples -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lanes", [None, 3])
def test_the_length_penalty_reaches_every_trained_sample_and_stands_in_ledger_and_trace(lab, make_config, lanes):
    stages = {"flow.stages": [{**PENALTY, "lanes": lanes}], "rollout_log_per_step": 64}
    run = lab.run(make_config(stages, async_generation_ratio=1))
    assert_all_are_penalised(run, every=32)
    assert "stage.length_penalty" in traced(run)


def test_the_group_filter_drops_with_its_reason_and_other_prompts_come_instead(lab, make_config):
    """Most responses of the random model are cut off at 8 tokens."""
    stage = {"after": "reward", "name": "group_quality", "worker": "group_quality.group_quality", "args": {"most_cut_off": 0.8}}
    run = lab.run(make_config({"flow.stages": [stage], "rollout_log_per_step": 64}))
    assert run.summary["groups"]["dropped"]["cut_off"] > 0
    groups = {}
    for sample in run.trained_samples():
        groups.setdefault(sample["group_id"], []).append(sample["finish_reason"])
    assert len(groups) == 8 and all(reasons.count("length") <= 3 for reasons in groups.values())
    assert {row["status"] for row in run.rows("samples")} == {"trained", "dropped: cut_off"}


def test_the_database_has_the_samples_of_every_group_that_was_rolled_out(lab, make_config, tmp_path):
    path = tmp_path / "samples.db"
    stage = {"after": "reward", "name": "database", "worker": "sample_database.SampleDatabase", "args": {"path": str(path)}}
    run = lab.run(make_config({"flow.stages": [PENALTY, stage], "rollout_log_per_step": 64}))
    with sqlite3.connect(path) as database:
        rows = {
            (prompt, number): (response, reward) for prompt, number, response, reward in database.execute("SELECT * FROM samples")
        }
    trained = {(row["prompt_uid"], row["index"]): (row["response"], row["reward"]) for row in run.trained_samples()}
    assert len(trained) == 32
    assert trained.items() <= rows.items(), "the stage after the penalty has seen the penalty"


# -- where they run -----------------------------------------------------------------------------------------------------


def test_a_resumed_run_has_the_stage_too(lab, make_config):
    changes = {"flow.stages": [PENALTY], "rollout_log_per_step": 64, "async_generation_ratio": 1, "save_steps": 1}
    lab.run(make_config(changes, max_steps=2))
    assert_all_are_penalised(lab.run(make_config(changes, max_steps=4, resume_from_checkpoint=True)), every=64)


@pytest.mark.ray
@pytest.mark.usefixtures("shared_ray")
def test_with_ray_it_is_the_same(lab, make_config):
    config = make_config({"flow.stages": [PENALTY], "rollout_log_per_step": 64})
    run = lab.start(config, RayBackend(lab.inventory))
    assert run.summary["status"] == "finished", run.summary["reason"]
    assert_all_are_penalised(run, every=32)


def test_each_process_runs_the_stages_of_its_own_half(lab, make_config):
    """One configuration for both: the explorer penalises, the trainer counts."""
    counted = {"after": "lease", "name": "counted", "worker": "integration_stages.count_step"}
    changes = {"flow.stages": [PENALTY, counted], "model_update_transport": "checkpoint_dir", "rollout_log_per_step": 64}
    configs = [make_config(changes, mode=mode) for mode in ("train", "explore")]

    async def both():
        backends = [LocalBackend(), LocalBackend()]
        backends[1]._starting = backends[0]._starting  # one process: no two models are loaded at the same time
        runs = [
            RLVRRun(config, prepare(config, lab.inventory), lab.inventory, backend)
            for config, backend in zip(configs, backends, strict=True)
        ]
        return runs, await asyncio.wait_for(asyncio.gather(*(run.run() for run in runs)), 60)

    runs, summaries = asyncio.run(both())
    assert [summary["status"] for summary in summaries] == ["finished", "finished"], summaries
    trainer, explorer = ({stage.name for stage in run._components.flow.stages} for run in runs)
    assert "counted" in trainer and "length_penalty" not in trainer
    assert "length_penalty" in explorer and "counted" not in explorer
    samples = [json.loads(line) for line in (runs[0].prepared.run_dir / "samples.jsonl").read_text().splitlines()]
    assert all("length_penalty" in sample["reward_parts"] for sample in samples if sample["status"] == "trained")


def test_a_stage_given_in_python_may_stand_in_the_trainers_half(make_config):
    seen = []

    class Watch(Stage):
        async def process(self, step):
            seen.append((step.number, len(step.batch)))
            return step

    stages = [create_role_state_machine(role_name="watch", worker=Watch, after="advantage")]
    pipeline = RLVRPipeline(make_config(), local=True, stages=stages)
    assert [stage.name for stage in pipeline.outline().stages].index("watch") > 0
    assert pipeline.run()["status"] == "finished"
    assert [number for number, _ in seen] == [0, 1]


class Weighed(BuiltIn):
    """Counts what the run's own stage does."""

    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    async def process(self, item):
        result = await super().process(item)
        self.seen.append((type(item).__name__, type(result).__name__))
        return result


def test_a_stage_of_the_run_is_replaced_by_a_subclass_that_may_call_it(make_config):
    seen = {name: [] for name in ("train", "reward", "log_prob")}
    stages = [create_role_state_machine(name, Weighed, args={"seen": seen[name]}) for name in seen]
    config = make_config(old_logprobs="recompute")
    plain = RLVRPipeline(config).outline().stages
    pipeline = RLVRPipeline(config, local=True, stages=stages)
    changed = pipeline.outline().stages
    assert [(s.name, s.role, s.lanes) for s in changed] == [(s.name, s.role, s.lanes) for s in plain]
    assert pipeline.run()["status"] == "finished"
    assert seen["train"] == [("Step", "NewWeights")] * 2 and seen["log_prob"] == [("Step", "Step")] * 2
    assert len(seen["reward"]) >= 8 and set(seen["reward"]) == {("SampleGroup", "SampleGroup")}


def test_a_function_in_the_place_of_the_judgement(make_config):
    async def own_reward(group):
        if group.group_id == 1:
            return Drop("the second")
        for sample in group.samples:
            sample.reward = 0.5
        return group

    stages = [create_role_state_machine("reward", own_reward)]
    config = make_config()
    assert RLVRPipeline(config, local=True, stages=stages).run()["status"] == "finished"
    rows = [json.loads(line) for line in (Path(config.run_dir) / "groups.jsonl").read_text().splitlines()]
    assert {reward for row in rows if row["status"] == "trained" for reward in row["rewards"]} == {0.5}
    assert [row["group_id"] for row in rows if row["reason"] == "the second"] == [1]


def test_the_call_that_verl_prints(make_config):
    """It gives the run's own stage, which may be given back to the flow, or be subclassed."""
    trainer = make_config(async_generation_ratio=1.0)
    pipeline = AsyncTrainingFlow(trainer=trainer, enable_async_rl=True)
    stage = create_role_state_machine(role_name="train", pipeline=pipeline, trainer=trainer, use_async_rl=True)
    assert AsyncTrainingFlow(trainer, local=True, stages=[stage]).pipeline.run()["status"] == "finished"
    assert create_role_state_machine(role_name="param_update", pipeline=pipeline).name == "publish"
    with pytest.raises(ValueError, match="'logprob' is no stage of the run: one of admit, generate, reward"):
        create_role_state_machine(role_name="logprob", pipeline=pipeline)
    with pytest.raises(ConfigError, match="enable_async_rl = True: async_generation_ratio is 0"):
        create_role_state_machine("train", trainer=make_config(async_generation_ratio=0.0), use_async_rl=True)


VERLS_EIGHT = ("dataloader", "generate", "rollout", "reward", "logp", "ref_logp", "train", "param_update")


def test_verls_eight_names_are_stages_of_a_run_that_has_them(make_config):
    config = make_config({"reference.device_mapping": "0"}, old_logprobs="recompute", use_kl_loss=True, kl_loss_coef=0.01)
    pipeline = AsyncTrainingFlow(config)
    ours = [create_role_state_machine(name, pipeline=pipeline).name for name in VERLS_EIGHT]
    assert ours == ["admit", "generate", "generate", "reward", "log_prob", "reference", "train", "publish"]
    assert (
        create_role_state_machine("mine", worker=integration_stages.count_step, after="logp", pipeline=pipeline).after
        == "log_prob"
    )
    critic = {"critic.device_mapping": "0", "critic.training_args.per_device_train_batch_size": 16}
    with_critic = AsyncTrainingFlow(make_config(critic, adv_estimator="gae"))
    assert create_role_state_machine("train", pipeline=with_critic).name == "train"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("logp", r"'logp' \(log_prob here\) is no stage of the run: one of admit, .*; what brings it: old_logprobs: recompute"),
        ("ref_logp", "'ref_logp' .reference here. .*; what brings it: use_kl_loss: true, or add_token_level_kl: true"),
        ("critic", "'critic' is no stage of the run: .*; what brings it: adv_estimator: gae"),
        ("episodes", "what brings it: a configuration of custom_envs"),
    ],
)
def test_a_stage_that_the_run_lacks_is_named_with_the_key_that_brings_it(make_config, name, told):
    with pytest.raises(ValueError, match=told):
        create_role_state_machine(name, pipeline=AsyncTrainingFlow(make_config()))


def flaky(on_error, **args):
    worker = {"worker": "integration_stages.Flaky", "args": {"at": [2, 5], **args}}
    return {"after": "reward", "name": "flaky", "on_error": on_error, **worker}


@pytest.mark.parametrize("what", ["RuntimeError", "SystemExit", "Odd"])
def test_a_stage_that_fails_drops_its_group_with_a_reason(lab, make_config, caplog, capsys, what):
    run = lab.run(make_config({"flow.stages": [flaky("drop", what=what)]}))
    assert run.summary["groups"]["dropped"]["flaky_failed"] == 2
    kind = "RuntimeError" if what == "RuntimeError" else "Escaped"
    assert run.summary["stage_errors"] == {"flaky": {"drop": {kind: 2}}}
    said = [record.getMessage() for record in caplog.records if "stage flaky fails" in record.getMessage()]
    assert (
        len(said) == 1
        and f"fails at group 2 and drops it (on_error: drop; said once, summary.json counts): {what}: once" in said[0]
    )
    assert [row["group_id"] for row in run.rows("groups") if row["reason"] == "flaky_failed"] == [2, 5]
    print_summary(run.summary, run.run_dir)
    assert "flaky has failed 2 times" in capsys.readouterr().out


def test_a_stage_that_fails_is_left_out_and_what_it_had_changed_undone(lab, make_config):
    run = lab.run(make_config({"flow.stages": [flaky("skip")]}))
    rewards = {row["group_id"]: row["rewards"] for row in run.rows("groups") if row["status"] == "trained"}
    assert {2, 5} < set(rewards) and run.summary["stage_errors"] == {"flaky": {"skip": {"RuntimeError": 2}}}
    for group, found in rewards.items():
        assert (77.0 not in found) and (found == [0.25, 1.25, 2.25, 3.25]) == (group not in (2, 5))


def test_a_stage_of_steps_is_left_out(lab, make_config):
    stage = {"after": "lease", "name": "marks", "worker": "integration_stages.flaky_step", "on_error": "skip"}
    run = lab.run(make_config({"flow.stages": [stage]}))
    assert ["mine/half" in row for row in run.steps()] == [False, True]
    assert run.summary["stage_errors"] == {"marks": {"skip": {"LookupError": 1}}}


def test_a_wrong_return_value_is_an_error_too(lab, make_config):
    stage = {"after": "reward", "name": "forgets", "worker": "integration_stages.gives_nan", "on_error": "skip"}
    run = lab.run(make_config({"flow.stages": [stage]}))
    assert run.summary["stage_errors"]["forgets"]["skip"]["ValueError"] >= 8


def test_a_stage_that_always_fails_ends_the_run(lab, make_config):
    stage = {"after": "reward", "name": "never", "worker": "integration_stages.divides_by_zero", "on_error": "drop"}
    run = lab.run_local(make_config({"flow.stages": [stage]}, max_dropped_batches=2))
    assert run.summary["status"] == "failed" and "never_failed" in run.summary["reason"]


# -- what is refused ----------------------------------------------------------------------------------------------------


def named(**changes):
    return {**PENALTY, **changes}


@pytest.mark.parametrize(
    ("stages", "told"),
    [
        ([named(after="rewards")], "flow.stages.length_penalty.after = 'rewards': there is no such stage; fix: one of admit, "),
        ([named(after="reference")], "there is no such stage"),
        ([named(after="keep")], "it ends its side"),
        ([named(after="validate")], "it ends its side"),
        ([named(name="train")], "there is a stage of this name"),
        (
            [named(after=None)],
            "name = 'length_penalty': without `after` it does the work of the stage of this name, and there is",
        ),
        ([named(after=None, name="lease")], "and there is no such work; fix: one of generate, reward, keep, "),
        ([named(after=None, name="reward", lanes=2)], "the lanes of reward are those of the stage that it stands for"),
        ([PENALTY, PENALTY], "there is a stage of this name"),
        ([named(name="Length penalty")], "is no name of a stage"),
        ([named(worker="length_penalty.width_penalty")], "module 'length_penalty' has no attribute 'width_penalty'"),
        ([named(worker="no_such_module.work")], "cannot be imported"),
        ([named(worker="length_penalty.__doc__")], "neither a function nor a subclass of Stage"),
        ([named(args={"free": 2})], "cannot be called with an item and free: missing a required argument: 'each'"),
        ([named(args={"free": 2, "eech": 1})], "eech"),
        (
            [named(after="lease", on_error="drop")],
            "on_error = 'drop': it is given no group that could be dropped, where it stands",
        ),
        ([named(worker="integration_stages.takes_two", args={})], "cannot be called with an item: missing"),
        ([named(worker="integration_stages.NoProcess", args={})], "is no subclass of Stage with a coroutine"),
        ([named(worker="integration_stages.CannotBeMade", args={})], "cannot be made: ZeroDivisionError"),
        ([named(worker="sample_database.SampleDatabase", args={})], "cannot be made: TypeError"),
    ],
)
def test_what_cannot_work_is_refused_before_a_worker_starts(make_config, stages, told):
    config = make_config({"flow.stages": stages})
    with pytest.raises(ConfigError) as caught:
        RLVRPipeline(config, local=True).run()
    (problem,) = caught.value.problems
    assert told in str(problem)
    assert not (Path(config.run_dir) / "config.yaml").exists()


def test_after_the_last_stage_that_a_process_has_nothing_comes(make_config):
    """Publishing is followed by the validation in one driver, and by nothing in a trainer's process."""
    stage = named(after="publish")
    RLVRPipeline(make_config({"flow.stages": [stage]})).outline()
    with pytest.raises(ConfigError, match="it ends its side"):
        RLVRPipeline(make_config({"flow.stages": [stage], "model_update_transport": "checkpoint_dir"}, mode="train")).outline()


@pytest.mark.parametrize(
    ("worker", "told"),
    [
        ("forgets", "TypeError: it must return the group that it was given, or a Drop, not None"),
        ("divides_by_zero", "ZeroDivisionError: "),
        ("gives_nan", "ValueError: it gave a sample of group"),
    ],
)
def test_a_stage_that_fails_ends_the_run_with_its_name(lab, make_config, worker, told):
    run = lab.run_local(make_config({"flow.stages": [named(worker=f"integration_stages.{worker}", args={})]}))
    assert run.summary["status"] == "failed"
    where, _, cause = run.summary["reason"].partition(": ")
    assert where.startswith("length_penalty at group ") and cause.startswith(told), run.summary["reason"]


def test_a_step_cannot_be_dropped(lab, make_config):
    async def drops(step):
        return Drop("why not")

    stages = (create_role_state_machine("drops", drops, after="lease"),)
    config = make_config()
    prepared = replace(prepare(config, lab.inventory), stages=stages)
    summary = asyncio.run(RLVRRun(config, prepared, lab.inventory, LocalBackend()).run())
    assert summary["reason"].startswith("drops at step 1: TypeError: it must return the Step that it was given")
