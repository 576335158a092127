"""Whole runs in this process: a tiny random Qwen2 with a character tokenizer, 64 training and 16 validation rows."""

import asyncio
import contextlib
import itertools
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file
from tiny_models import symbol_tokenizer, tiny_qwen2

from roll.cli.verify import read_run, violations
from roll.core.configs.rlvr import RLVRConfig
from roll.core.distributed.devices import Inventory
from roll.plan.rules.loading import load_config
from roll.platform.local_backend import LocalBackend
from roll.prepare.pipeline import archive_previous
from roll.prepare.rlvr_run import RLVRRun, prepare

HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)  # reward workers are named by dotted path, here and in the processes that are started from here
REWARDS = "integration_rewards"
CHARACTERS = "0123456789+-=abcdefghijklmnopqrst"
SPECIAL = ["<pad>", "<eos>"]
TWO_SLOTS = Inventory("cpu", nodes=1, per_node=2, cpus_per_node=2)
"""Two devices with one thread each, whatever this machine has."""


class Run(NamedTuple):
    summary: dict[str, Any]
    run_dir: Path

    def rows(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.run_dir / f"{name}.jsonl").read_text().splitlines()]

    def trained_samples(self) -> list[dict[str, Any]]:
        return [row for row in self.rows("samples") if row["status"] == "trained"]

    def steps(self) -> list[dict[str, Any]]:
        """Rows of metrics.jsonl that speak of a trained step (validations have rows of their own)."""
        return [row for row in self.rows("metrics") if "actor_train/optimiser_steps" in row]


def write_model(folder: Path) -> None:
    symbols = [*SPECIAL, *CHARACTERS]
    model = tiny_qwen2(len(symbols), max_position_embeddings=64, initializer_range=0.3, eos_token_id=1, pad_token_id=0)
    model.save_pretrained(folder)
    symbol_tokenizer(symbols).save_pretrained(folder)


def write_prompts(path: Path, count: int, offset: int) -> None:
    def row(i: int) -> dict[str, Any]:
        return {"id": str(i), "tag": "odd" if i % 2 else "even", "prompt": f"{i}+{7 * i % 10}=", "ground_truth": "a"}

    path.write_text("".join(json.dumps(row(i)) + "\n" for i in range(offset, offset + count)))


def put(mapping: dict[str, Any], path: str, value: Any) -> None:
    *blocks, name = path.split(".")
    for block in blocks:
        mapping = mapping.setdefault(block, {})
    mapping[name] = value


@pytest.fixture(scope="session")
def material(tmp_path_factory):
    folder = tmp_path_factory.mktemp("material")
    write_model(folder / "model")
    write_prompts(folder / "train.jsonl", 64, 0)
    write_prompts(folder / "validation.jsonl", 16, 100)
    return folder


@pytest.fixture
def make_config(material, tmp_path):
    def make(changes: dict[str, Any] | None = None, /, **top_level: Any) -> RLVRConfig:
        """The tests' base configuration with changes, whose keys may be dotted paths."""
        mapping: dict[str, Any] = {
            "exp_name": "run",
            "output_dir": str(tmp_path / "output"),
            "pretrain": str(material / "model"),
            "max_steps": 2,
            "save_steps": 1000,
            "eval_steps": 1000,
            "track_with": "none",
            "rollout_batch_size": 4,
            "num_return_sequences_in_group": 4,
            "prompt_length": 8,
            "response_length": 8,
            "max_running_requests": 16,
            "rpc_timeout": 60.0,
            "actor_train": {
                "device_mapping": "0",
                "training_args": {
                    "learning_rate": 0.003,
                    "lr_scheduler_type": "constant",
                    "per_device_train_batch_size": 16,
                },
                "data_args": {"file_name": str(material / "train.jsonl"), "template": "none"},
            },
            "actor_infer": {"device_mapping": "1"},
            "rewards": {"sums": {"worker_cls": f"{REWARDS}.Letters", "tag_included": ["odd", "even"], "max_concurrency": 64}},
        }
        for path, value in {**(changes or {}), **top_level}.items():
            put(mapping, path, value)
        return load_config(RLVRConfig, mapping)

    return make


@pytest.fixture
def with_validation(material):
    """Changes that add a validation."""
    return {
        "validation.data_args.file_name": str(material / "validation.jsonl"),
        "validation.data_args.template": "none",
        "eval_steps": 1,
    }


def start(config: RLVRConfig, backend: Any, inventory: Inventory = TWO_SLOTS) -> Run:
    prepared = prepare(config, inventory)
    if prepared.checkpoint is None:
        archive_previous(prepared.run_dir)
    summary = asyncio.run(RLVRRun(prepared.config, prepared, inventory, backend).run())
    return Run(summary, prepared.run_dir)


def run_local(config: RLVRConfig) -> Run:
    return start(config, LocalBackend())


def run_finished(config: RLVRConfig) -> Run:
    run = run_local(config)
    assert run.summary["status"] == "finished", run.summary["reason"]
    assert run.summary["steps"] == config.max_steps
    check_accounts(run, config)
    return run


def check_accounts(run: Run, config: RLVRConfig) -> None:
    """Checks a finished run: each admitted group has one terminal status, written down, and staleness is bounded."""
    assert list(violations(read_run(run.run_dir))) == []
    groups, staleness, rows = run.summary["groups"], run.summary["staleness"], run.rows("groups")
    statuses = [row for row in rows if row["status"] != "reused"]
    trained = [row for row in rows if row["status"] != "dropped"]
    assert groups["reused"] == len(rows) - len(statuses)
    assert groups["trained"] == len(trained) - groups["reused"]
    assert len(trained) == config.max_steps * config.rollout_batch_size
    assert groups["admitted"] == groups["trained"] + groups["buffered"] + groups["in_flight"] + sum(groups["dropped"].values())
    assert groups["buffered"] == groups["in_flight"] == 0, "what a finished run leaves behind is dropped by name"
    assert sorted(row["group_id"] for row in statuses) == list(range(groups["admitted"])), (
        "each group has exactly one terminal status"
    )
    assert len({row["prompt_uid"] for row in statuses}) == len(statuses), "a prompt of an epoch is served once"
    dropped = [row["reason"] for row in statuses if row["status"] == "dropped"]
    assert {reason: dropped.count(reason) for reason in set(dropped)} == groups["dropped"]
    assert all(0 <= row["lag"] <= staleness["bound"] for row in trained)
    assert all(row["lag"] is None for row in statuses if row["status"] == "dropped")
    assert staleness["max"] <= staleness["bound"]
    histogram = {int(lag): count for lag, count in staleness["histogram"].items()}
    assert sum(histogram.values()) == len(trained) * config.num_return_sequences_in_group
    assert max(histogram) == staleness["max"] == max(row["lag"] for row in trained)
    for sample in run.trained_samples():
        check_sample(sample)


def check_sample(sample: dict[str, Any]) -> None:
    """The version spans of a logged sample cover its response without gap or overlap, and do not go back in time."""
    spans = sample["versions"]
    assert [spans[0][0], spans[-1][1]] == [0, len(sample["response_ids"])]
    assert len(sample["behaviour_logprobs"]) == len(sample["response_ids"])
    assert all(one[1] == other[0] and one[2] < other[2] for one, other in itertools.pairwise(spans))
    assert all(start < stop for start, stop, *_ in spans)
    assert spans[-1][2] < sample["step"]


CARRIED = {
    "adv_estimator": "reinforce",
    "norm_mean_type": "running",
    "norm_std_type": "running",
    "add_token_level_kl": True,
    "init_kl_coef": 0.1,
    "target_kl": 0.001,
    "kl_horizon": 64,
    "reference.device_mapping": "0",
    "deterministic": True,
}
"""A configuration that carries more from step to step than the model: running reward moments, the KL coefficient."""


def weights(run: Run, step: int) -> dict[str, torch.Tensor]:
    """Those of a checkpoint's trainer."""
    return load_file(run.run_dir / "checkpoints" / f"step-{step}" / "trainer" / "model" / "model.safetensors")


@pytest.fixture(scope="session")
def lab():
    """Functions for test modules (which cannot import one another)."""
    return SimpleNamespace(
        run=run_finished,
        run_of=Run,
        run_local=run_local,
        start=start,
        check_accounts=check_accounts,
        weights=weights,
        carried=CARRIED,
        inventory=TWO_SLOTS,
        rewards=REWARDS,
    )


@pytest.fixture(autouse=True)
def _no_pictures(no_pictures): ...


@pytest.fixture(autouse=True)
def _torch_as_it_was():
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1)
    yield
    with contextlib.suppress(RuntimeError):
        torch.use_deterministic_algorithms(deterministic)
    torch.set_num_threads(threads)
