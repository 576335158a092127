"""Supervised fine-tuning before the first rollouts, in one run: what each step trains, versions, accounts, resumption."""

import json
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny_world
import torch
import yaml
from train_specs import fsdp2_spec

from roll.core.configs.problems import ConfigError
from roll.core.configs.rlvr import RLVRConfig
from roll.core.data.sample import SampleGroup
from roll.core.trainer.batch import token_batch, totals_of
from roll.core.workers.train_backends import make_train_strategy
from roll.core.workers.train_interface import RankContext
from roll.plan.rules.loading import load_config
from roll.platform.local_backend import LocalBackend
from roll.prepare.rlvr_run import RLVRRun, prepare
from roll.prepare.training_flow import pipeline_for
from roll.strategies.model_folder import load_model
from roll.topologies.rows.from_rows import complete
from roll.topologies.rows.warm_start import RowLoss

WARM, STEPS = 3, 6


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    tiny_world.make_world(folder)
    rows = [{"prompt": f"{i}+{i * 7 % 90}=", "response": str(i * 8 % 90)} for i in range(10)]
    tiny_world.write_rows(folder / "solved.jsonl", rows)
    return folder


def config(world, out, *, kind=RLVRConfig, **changes):
    warm = {"data_args": {"file_name": str(world / "solved.jsonl"), "template": "none"}, "steps": WARM}
    given = tiny_world.settings(world) if kind is RLVRConfig else tiny_world.agentic_settings(world)
    given |= {"output_dir": str(out), "max_steps": STEPS, "save_steps": 1, "eval_steps": WARM, "max_ckpt_to_keep": 20}
    given |= {"warm_start": warm | changes.pop("warm_start", {})} | changes
    return load_config(kind, given)


def run(world, out, **changes):
    summary = pipeline_for(config(world, out, **changes), local=True).run()
    folder = out / "run"
    rows, groups = ([json.loads(line) for line in (folder / name).read_text().splitlines()] for name in FILES)
    return SimpleNamespace(summary=summary, rows=rows, groups=groups, folder=folder)


FILES = ("metrics.jsonl", "groups.jsonl")
ALIKE = {"deterministic": True, "async_generation_ratio": 0, "actor_infer": {"device_mapping": "1"}}


@pytest.fixture(autouse=True)
def _workers(monkeypatch):
    monkeypatch.syspath_prepend(str(tiny_world.WORKERS))


def of_rows(group):
    return group["prompt_uid"].startswith("warm_start/")


def trained_after(group, step):
    return group["status"] == "trained" and group["step"] > step


@pytest.mark.parametrize("ratio", [0, 1, 2.5])
def test_rows_come_first_and_no_rollout_is_older_than_the_last_of_them(world, tmp_path, ratio):
    from roll.cli.verify import main as verify

    made = run(world, tmp_path, async_generation_ratio=ratio, warm_start={"learning_rate": 2.0e-2})
    assert (made.summary["status"], made.summary["steps"]) == ("finished", STEPS), made.summary
    assert verify([str(made.folder)]) == 0
    trained = [group for group in made.groups if group["status"] == "trained"]
    warm = [group for group in trained if of_rows(group)]
    assert [group["step"] for group in warm] == [1 + i // tiny_world.BATCH for i in range(WARM * tiny_world.BATCH)]
    assert all(group["lag"] == 0 for group in warm), "a row counts as written under the version that trains it"
    rolled = [group for group in made.groups if not of_rows(group)]
    assert rolled and min(group["start_version"] for group in rolled) >= WARM
    assert max(group["step"] - 1 - group["start_version"] for group in trained) <= -(-ratio // 1)
    by_step = {row["step"]: row for row in made.rows if "actor/pg_loss" in row}
    assert [step for step, row in by_step.items() if "rewards/mean" in row] == [4, 5, 6]
    assert by_step[3]["actor/pg_loss"] < by_step[1]["actor/pg_loss"], "it learns the rows"
    assert by_step[1]["actor_train/optimiser_steps"] == 1
    assert sorted(row["step"] for row in made.rows if "val/score/mean" in row) == [0, 3, 6]


@pytest.mark.parametrize("kind", ["rlvr", "agentic"])
def test_a_run_resumed_in_the_warm_start_at_the_seam_and_after_it_goes_on_as_if_it_had_never_stopped(world, tmp_path, kind):
    changes = dict(ALIKE)
    if kind == "agentic":
        tiny_world.write_rows(world / "letters.jsonl", [{"prompt": f"{c}\n>", "response": c} for c in "abcd" * 3])
        from roll.core.configs.agentic import AgenticConfig

        data = {"file_name": str(world / "letters.jsonl"), "template": "none"}
        changes |= {"kind": AgenticConfig, "warm_start": {"data_args": data}}
    whole = run(world, tmp_path / "whole", **changes)
    assert whole.summary["status"] == "finished", whole.summary
    for step in (1, WARM, WARM + 1):
        (checkpoint,) = (whole.folder / "checkpoints").glob(f"*{step}")
        rest = run(world, tmp_path / f"from{step}", **changes, resume_from_checkpoint=str(checkpoint))
        assert rest.summary["resumed_from_step"] == step
        for name in ("actor/pg_loss", "actor/grad_norm"):
            values = [{row["step"]: row[name] for row in each.rows if name in row} for each in (whole, rest)]
            assert {k: v for k, v in values[0].items() if k > step} == {k: v for k, v in values[1].items() if k > step}, name
        uids = [[group["prompt_uid"] for group in each.groups if trained_after(group, step)] for each in (whole, rest)]
        assert uids[0] == uids[1]


KILLER = """
import os
import signal

from roll import Callback


class KillsOnce(Callback):
    def on_step(self, step, metrics):
        if step == int(os.environ.get("KILLED_IN", 0)):
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.parametrize("killed_in", [2, WARM + 1, WARM + 2], ids=["in the warm start", "at the seam", "after it"])
def test_a_run_that_was_killed_goes_on_with_its_command_and_loses_nothing(world, tmp_path, forks, killed_in):
    """The process is killed before the checkpoint of the step is written; that of the step before may be under way."""
    from roll.cli.verify import main as verify

    (tmp_path / "killer.py").write_text(KILLER)
    given = tiny_world.settings(world) | ALIKE | {"output_dir": str(tmp_path / "killed"), "max_steps": STEPS, "save_steps": 1}
    warm = {"data_args": {"file_name": str(world / "solved.jsonl"), "template": "none"}, "steps": WARM}
    given |= {"warm_start": warm, "eval_steps": WARM, "flow": {"callbacks": ["killer.KillsOnce"]}}
    (tmp_path / "warm.yaml").write_text(yaml.safe_dump(given | {"resume_from_checkpoint": "auto"}))
    paths = os.pathsep.join([str(tiny_world.WORKERS), str(tmp_path), *sys.path])
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    roll = [str(Path(sys.executable).with_name("roll")), "train", "rlvr", "--config_path", str(tmp_path), "--config_name", "warm"]
    for step, code in ((killed_in, -signal.SIGKILL), (0, 0)):
        with (tmp_path / "log.txt").open("wb") as output:
            process = forks.start([*roll, "--local"], tmp_path, environment | {"KILLED_IN": str(step)}, output)
            assert process.wait(150) == code, (tmp_path / "log.txt").read_text()
    folder = tmp_path / "killed" / "run"
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "finished" and summary["resumed_from_step"] in (killed_in - 1, killed_in - 2)
    assert verify([str(folder)]) == 0
    whole = run(world, tmp_path / "whole", **ALIKE)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = [{row["step"]: row["actor/pg_loss"] for row in each if "actor/pg_loss" in row} for each in (rows, whole.rows)]
    assert losses[0] == losses[1] and len(losses[0]) == STEPS


def test_the_gradient_of_a_warm_step_is_that_of_cross_entropy_whatever_the_temperature(world, tmp_path):
    made = config(world, tmp_path, actor_infer={"device_mapping": "1", "generating_args": {"temperature": 0.7}})
    prepared = prepare(made, LocalBackend().devices(2, None), one_process=True)
    groups = [complete(SampleGroup(i, 0, prepared.source.next())) for i in range(6)]
    batch, _ = RLVRRun.advantages(made)(token_batch(groups, 1.0), groups)
    trained = make_train_strategy(RankContext(), fsdp2_spec(world / "model", max_grad_norm=1e9))
    list(trained._gradients(batch, trained._policy_loss(RowLoss.of(made), totals_of(batch))))
    model = load_model(world / "model", torch.float64, "eager")
    total = 0.0
    for sample in (each for group in groups for each in group.samples):
        ids = [*sample.prompt.input_ids, *sample.response_ids]
        mask = [False] * len(sample.prompt.input_ids) + [
            bool(each) for each in sample.loss_mask or [1] * len(sample.response_ids)
        ]
        logits = model(torch.tensor([ids])).logits[0, :-1]
        losses = torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]), reduction="none")
        total = total + losses[torch.tensor(mask[1:])].sum()
    (total / totals_of(batch).tokens).backward()
    apart = whole = 0.0
    for (_, own), (_, plain) in zip(trained._model.named_parameters(), model.named_parameters(), strict=True):
        apart += float((own.grad.double() - plain.grad).square().sum())
        whole += float(plain.grad.square().sum())
    assert (apart / whole) ** 0.5 < 1e-5


def test_the_warm_start_has_a_learning_rate_of_its_own(world, tmp_path):
    made = run(world, tmp_path, **ALIKE, warm_start={"learning_rate": 5.0e-3}, max_steps=5)
    rates = [row["actor_train/lr"] if "actor_train/lr" in row else row["actor/lr"] for row in made.rows if "actor/pg_loss" in row]
    assert rates == pytest.approx([5e-3] * 3 + [1e-3] * 2)


def test_rows_that_teach_nothing_are_counted(world, tmp_path):
    useless = [
        {"messages": [{"role": "user", "content": "1+1="}]},
        {"prompt": "1+1=", "response": " "},
        {"prompt": "1+1=", "response": "2" * 60},
        {"prompt": "1+1=", "response": "2"},
    ]
    tiny_world.write_rows(tmp_path / "useless.jsonl", useless)
    data = {"file_name": str(tmp_path / "useless.jsonl"), "template": "none"}
    prepared = prepare(config(world, tmp_path, warm_start={"data_args": data}), LocalBackend().devices(2, None), one_process=True)
    (told,) = [line for line in (*prepared.warnings, *prepared.remarks) if "rows are left out" in line]
    assert told.startswith("warm_start.data_args.file_name: 3 of 4 rows are left out: ")
    assert all(f"1 {reason}" in told for reason in ("without last answer", "empty answer", "too long"))


CRITIC = {"device_mapping": "0", "training_args": {"per_device_train_batch_size": 16}}
REFUSED = {
    "max_steps": {"max_steps": WARM},
    "mode": {"mode": "train", "groups_database": "sqlite:///x"},
    "groups_database": {"groups_database": "sqlite:///x"},
    "adv_estimator": {"adv_estimator": "gae", "critic": CRITIC},
    "actor_log_prob": {"actor_log_prob": {"device_mapping": "0"}, "old_logprobs": "recompute"},
    "train_on_arrival": {"train_on_arrival": True},
    "max_reuse": {"max_reuse": 2},
    "weight_push_interval": {"weight_push_interval": 2},
    "total_epochs": {"total_epochs": 2.0},
}


@pytest.mark.parametrize("key", REFUSED)
def test_what_does_not_go_with_a_warm_start_is_refused_by_name(world, tmp_path, key):
    with pytest.raises(ConfigError) as refused:
        prepare(config(world, tmp_path, **REFUSED[key]), LocalBackend().devices(2, None), one_process=True)
    name = "warm_start.steps" if key == "max_steps" else key
    assert any(problem.key == name and "warm_start" in str(problem) for problem in refused.value.problems), refused.value


def test_a_warm_start_without_steps_or_rows_is_refused(world, tmp_path):
    with pytest.raises(ConfigError) as refused:
        config(world, tmp_path, warm_start={"steps": 0})
    assert {problem.key for problem in refused.value.problems} == {"warm_start.steps"}
    with pytest.raises(ConfigError) as refused:
        given = {"data_args": {"file_name": ""}}
        prepare(config(world, tmp_path, warm_start=given), LocalBackend().devices(2, None), one_process=True)
    assert {problem.key for problem in refused.value.problems} == {"warm_start.data_args.file_name"}
