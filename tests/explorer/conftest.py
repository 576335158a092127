"""Whole agentic runs: a tiny random Qwen2 with a character tokenizer in small environments."""

import asyncio
import contextlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from tiny_models import symbol_tokenizer, tiny_qwen2
from transformers import PreTrainedTokenizerFast

from roll.cli.verify import read_run, violations
from roll.core.configs.agentic import AgenticConfig
from roll.core.distributed.devices import Inventory
from roll.plan.rules.loading import load_config
from roll.platform.local_backend import LocalBackend
from roll.prepare.agentic_run import AgenticRun, prepare

# Environments are named by dotted path, here and in the processes that are started from here.
sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[2] / "benchmarks")]
WORLDS = "agentic_worlds"
SPECIAL = ["<pad>", "<eos>", "<im_start>", "<im_end>"]
CHARACTERS = "abcdefgh01234=\n> usertinmlo"
CHAT_TEMPLATE = (
    "{% for message in messages %}<im_start>{{ message['role'] }}\n{{ message['content'] }}<im_end>\n{% endfor %}"
    "{% if add_generation_prompt %}<im_start>assistant\n{% endif %}"
)
TWO_SLOTS = Inventory("cpu", nodes=1, per_node=2, cpus_per_node=2)


class Run(NamedTuple):
    summary: dict[str, Any]
    run_dir: Path

    def rows(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.run_dir / f"{name}.jsonl").read_text().splitlines()]

    def trained_samples(self) -> list[dict[str, Any]]:
        return [row for row in self.rows("samples") if row["status"] == "trained"]

    def steps(self) -> list[dict[str, Any]]:
        return [row for row in self.rows("metrics") if "actor_train/optimiser_steps" in row]


SYMBOLS = [*SPECIAL, *dict.fromkeys(CHARACTERS)]


def make_tokenizer(chat_template: str | None = None) -> PreTrainedTokenizerFast:
    return symbol_tokenizer(SYMBOLS, "<[a-z_]+>|[\\s\\S]", chat_template=chat_template, model_max_length=256)


@pytest.fixture(scope="session")
def tokenizer():
    return make_tokenizer


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("agentic-model")
    model = tiny_qwen2(len(SYMBOLS), max_position_embeddings=256, initializer_range=0.3, eos_token_id=1, pad_token_id=0)
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def put(mapping: dict[str, Any], path: str, value: Any) -> None:
    *blocks, name = path.split(".")
    for block in blocks:
        mapping = mapping.setdefault(block, {})
    mapping[name] = value


@pytest.fixture
def make_config(model_folder, tmp_path):
    def make(changes: dict[str, Any] | None = None, /, env_type: str = "Letters", **top_level: Any) -> AgenticConfig:
        """The tests' base configuration with changes, whose keys may be dotted paths."""
        mapping: dict[str, Any] = {
            "exp_name": "run",
            "output_dir": str(tmp_path / "output"),
            "pretrain": str(model_folder),
            "max_steps": 2,
            "save_steps": 1000,
            "eval_steps": 1000,
            "track_with": "none",
            "rollout_batch_size": 8,
            "sequence_length": 48,
            "max_tokens_per_step": 4,
            "max_running_requests": 16,
            "rpc_timeout": 60.0,
            "actor_train": {
                "device_mapping": "0",
                "training_args": {
                    "learning_rate": 0.003,
                    "lr_scheduler_type": "constant",
                    "per_device_train_batch_size": 8,
                },
                "data_args": {"template": "none"},
            },
            "actor_infer": {"device_mapping": "1"},
            "custom_envs": {"letters": {"env_type": f"{WORLDS}.{env_type}", "max_steps": 5, "agent_system_template": ""}},
            "train_env_manager": {"num_env_groups": 4, "group_size": 2},
        }
        for path, value in {**(changes or {}), **top_level}.items():
            put(mapping, path, value)
        return load_config(AgenticConfig, mapping)

    return make


AGENT = """
import json, os, urllib.request

def ask(messages):
    body = json.dumps({"model": "m", "messages": messages}).encode()
    headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]

begin = [{"role": "user", "content": "ab"[int(os.environ["ROLL_SEED"]) % 2]}]
first = ask(begin)
ask([*begin, first, {"role": "user", "content": "more"}])
ask([*begin, first, {"role": "user", "content": "end"}])
"""


@pytest.fixture
def of_programs(make_config, model_folder, tokenizer, tmp_path):
    """A configuration whose agent makes three calls, in two branches; its reward is the share of a letter."""
    folder = tmp_path / "native"
    folder.mkdir()
    for file in model_folder.iterdir():
        (folder / file.name).symlink_to(file)
    for file in tokenizer(CHAT_TEMPLATE).save_pretrained(tmp_path / "words"):
        name = file.rsplit("/", 1)[-1]
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(file)
    given = tmp_path / "agent"
    given.mkdir()
    (given / "agent.py").write_text(AGENT)
    program = {"command": ["python", "agent.py"], "folder": str(given), "reward": f"{WORLDS}.letters_said"}

    def make(changes=None, **top_level):
        base = {
            "pretrain": str(folder),
            "custom_envs": {"letters": {"env_type": "program", "program": program, "max_env_step_concurrent": 4}},
            "actor_train.data_args.template": "native",
            "sequence_length": 160,
            "rollout_log_per_step": 64,
        }
        return make_config({**base, **(changes or {})}, **top_level)

    return make


def start(config: AgenticConfig, backend: Any, inventory: Inventory = TWO_SLOTS) -> Run:
    prepared = prepare(config, inventory)
    summary = asyncio.run(AgenticRun(config, prepared, inventory, backend).run())
    return Run(summary, prepared.run_dir)


def run_finished(config: AgenticConfig) -> Run:
    run = start(config, LocalBackend())
    assert run.summary["status"] == "finished", run.summary["reason"]
    assert run.summary["steps"] == config.max_steps
    assert list(violations(read_run(run.run_dir))) == []
    return run


@pytest.fixture(scope="session")
def lab():
    """Functions for test modules (which cannot import one another)."""
    return SimpleNamespace(
        run=run_finished, start=start, inventory=TWO_SLOTS, worlds=WORLDS, chat_template=CHAT_TEMPLATE, agent=AGENT
    )


@pytest.fixture(autouse=True)
def _no_pictures(no_pictures): ...


@pytest.fixture(autouse=True)
def _torch_as_it_was():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    with contextlib.suppress(RuntimeError):
        torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)
