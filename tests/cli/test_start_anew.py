"""`roll init` and `roll demo`: a folder that trains as it is, and a demo that makes its model only where it is missing."""

import asyncio
import csv
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml
from tiny_models import symbol_tokenizer, tiny_qwen2

from roll.cli.main import main
from roll.prepare import packaged

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


def roll(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "roll.cli.main", *arguments]
    return subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=150)


def summary(folder: Path) -> dict[str, object]:
    return dict(json.loads((folder / "summary.json").read_text()))


def init(embedded_task: Path, home: Path, name: str = "mine") -> Path:
    """`roll init`, where the embedded model is there already."""
    (home / name / "embedded").mkdir(parents=True)
    (home / name / "embedded" / "cache").symlink_to(embedded_task)
    made = roll("init", name, folder=home)
    assert made.returncode == 0, made.stderr
    return home / name


@pytest.mark.slow
def test_what_init_makes_is_checked_and_trained_as_it_is(embedded_task, forks, tmp_path):
    folder = init(embedded_task, tmp_path)
    assert {"mine.yaml", "reward.py", "prompts.jsonl", "validation.jsonl", "embedded"} == {path.name for path in folder.iterdir()}
    rows = [json.loads(line) for line in (folder / "prompts.jsonl").read_text().splitlines()]
    sums = [(sum(map(int, row["prompt"].rstrip("=").split("+"))), int(row["ground_truth"])) for row in rows]
    assert all(right == said for right, said in sums), "the data say what a sum is"
    named = ("--config_path", ".", "--config_name", "mine")
    checked = roll("check", *named, folder=folder)
    assert checked.returncode == 0 and checked.stdout.startswith("mine: rlvr"), checked.stderr
    train = ["-m", "roll.cli.main", "train", "rlvr", *named, "--local", "max_steps=2"]
    forks.run(train, folder, environment(), tmp_path / "log.txt")
    assert summary(folder / "output" / "mine")["status"] == "finished"
    rows = [json.loads(line) for line in (folder / "output/mine/samples.jsonl").read_text().splitlines()]
    assert rows and all(row["reward"] is not None for row in rows), "the reward of reward.py has judged"


@pytest.mark.slow
@pytest.mark.ray
def test_a_file_gets_no_colours_also_from_workers(embedded_task, forks, tmp_path):
    init(embedded_task, tmp_path)
    reward = tmp_path / "mine" / "reward.py"
    reward.write_text(reward.read_text().replace("        said, right", "        print('graded here')\n        said, right"))
    named = ("--config_path", ".", "--config_name", "mine")
    small = ("max_steps=1", "rollout_batch_size=4", "actor_train.training_args.per_device_train_batch_size=32", "eval_steps=1")
    train = ["-m", "roll.cli.main", "train", "rlvr", *named, *small]
    told = forks.run(train, tmp_path / "mine", environment(), tmp_path / "log.txt")
    assert any("graded here" in line and "pid=" in line for line in told.splitlines()), told
    assert "\x1b" not in told
    assert [line.split()[1] for line in told.splitlines() if line.startswith("step ")][-1] == "1/1"


def test_init_refuses_a_name_a_full_folder_and_a_model_that_is_none(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    for arguments, told in (
        (["a b"], "is not a valid name for a run"),
        (["full"], "exists already and is not empty"),
        (["new", "--model", "nowhere"], "nowhere is not there"),
    ):
        assert main(["init", *arguments]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert told in line and "fix:" in line
    assert [path.name for path in tmp_path.rglob("*")] == ["full", "thesis.tex"]


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory) -> Path:
    """A model that was not made for additions: its tokenizer reads any text, and has a chat template."""
    folder = tmp_path_factory.mktemp("chat")
    characters = [chr(code) for code in range(32, 127)] + ["\n"]
    tokenizer = symbol_tokenizer(["<pad>", "<eos>", "<unk>", *characters], unk_token="<unk>")
    tokenizer.chat_template = "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}"
    tokenizer.save_pretrained(folder)
    tiny_qwen2(99, num_hidden_layers=1, max_position_embeddings=1024, pad_token_id=0, eos_token_id=1).save_pretrained(folder)
    return folder


def settings_of(folder: Path) -> dict[str, Any]:
    return dict(yaml.safe_load((folder / f"{folder.name}.yaml").read_text()))


def test_init_fits_the_model_that_is_named(chat_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "mine", "--model", str(chat_model)]) == 0
    made, rows = settings_of(tmp_path / "mine"), (tmp_path / "mine/prompts.jsonl").read_text().splitlines()
    first = json.loads(rows[0])
    assert "What is" in first["prompt"] and first["prompt"].endswith(".")
    training = made["actor_train"]
    assert training["data_args"]["template"] == made["validation"]["data_args"]["template"] == "native"
    assert training["training_args"]["learning_rate"] == 1e-6
    longest = max(len("user: " + json.loads(row)["prompt"] + "\n") for row in rows)
    assert longest <= made["prompt_length"] <= longest + 32 and made["response_length"] == 256
    assert main(["check", "--config_path", "mine", "--config_name", "mine"]) == 0
    worker = reward_of(tmp_path / "mine").AnswerRewardWorker({"timeout_s": 1, "max_concurrency": 1, "reward_args": {}})
    said = {"It is 132.": "132", "1,320": "1320", "12 + 3 = 16": "15", "Paris": "paris", "": "7", "no": "\n#### 4"}
    assert [grade(worker, each, right) for each, right in said.items()] == [1, 1, 0, 1, 0, 0]


@pytest.mark.parametrize("kind", ["question", "messages"])
def test_init_takes_rows_of_the_user_s(kind, chat_model, tmp_path, monkeypatch):
    asked = {"question": "How many?", "messages": [{"role": "user", "content": "How many?"}]}[kind]
    rows = [{kind: asked, "answer": f"{n} of them\n#### {n}", "tag": "maths" if n % 2 else "logic"} for n in range(40)]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "reward", raising=False)  # that of another test in this process
    assert main(["init", "mine", "--model", str(chat_model), "--task", "jsonl", "own.jsonl"]) == 0
    written = [(tmp_path / "mine" / name).read_text().splitlines() for name in ("prompts.jsonl", "validation.jsonl")]
    assert [len(lines) for lines in written] == [36, 4]
    assert sorted(json.loads(line)["answer"] for lines in written for line in lines) == sorted(row["answer"] for row in rows)
    monkeypatch.chdir(tmp_path / "mine")
    assert main(["check", "--config_path", ".", "--config_name", "mine"]) == 0
    assert main(["check", "--data", "--config_path", ".", "--config_name", "mine"]) == 0


@pytest.mark.parametrize("name", ["own.csv", "own.jsonl"])
def test_init_reads_a_file_as_a_run_does(name, chat_model, tmp_path, monkeypatch):
    separators = "a\x85b\u2028c"  # which Python's text takes for ends of lines, and JSON does not
    rows = [{"question": f"{n}{separators}", "answer": str(n)} for n in range(20)]
    with open(tmp_path / name, "w", encoding="utf-8-sig", newline="") as file:
        if name == "own.csv":
            (writer := csv.DictWriter(file, ["question", "answer"])).writeheader()
            writer.writerows(rows)
        else:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    monkeypatch.chdir(tmp_path)
    assert main(["init", "mine", "--model", str(chat_model), "--task", "jsonl", name]) == 0
    written = [json.loads(line) for line in (tmp_path / "mine/prompts.jsonl").read_text().splitlines()]
    assert len(written) == 18 and all(row in rows for row in written)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"text": "x"}\n{"text": "y"}\n', "has no column with a prompt: text; fix: call it one of prompt, question,"),
        ('{"prompt": "x"}\n{"prompt": "y"}\n', "has no column with a reference answer: prompt; fix: call it one of ground_truth"),
        ("{}\n", "has 1 rows"),
        ("nonsense\n", "own.jsonl:1: not valid JSON"),
    ],
)
def test_init_says_what_rows_lack(text, told, chat_model, tmp_path, monkeypatch, capsys):
    (tmp_path / "own.jsonl").write_text(text)
    monkeypatch.chdir(tmp_path)
    assert main(["init", "mine", "--model", str(chat_model), "--task", "jsonl", "own.jsonl"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line and not (tmp_path / "mine").exists()


@pytest.mark.slow
@pytest.mark.parametrize("own_model", [False, True])
def test_init_makes_an_environment_that_trains(own_model, chat_model, embedded_task, forks, tmp_path):
    (tmp_path / "mine/embedded").mkdir(parents=True)
    (tmp_path / "mine/embedded/cache").symlink_to(embedded_task)
    made = roll("init", "mine", "--task", "agent", *(("--model", str(chat_model)) if own_model else ()), folder=tmp_path)
    assert made.returncode == 0 and "roll train agentic" in made.stdout, made.stderr
    named = ("--config_path", ".", "--config_name", "mine")
    train = ["-m", "roll.cli.main", "train", "agentic", *named, "--local", "max_steps=1"]
    forks.run(train, tmp_path / "mine", environment(), tmp_path / "log.txt")
    assert summary(tmp_path / "mine/output/mine")["status"] == "finished"


def test_init_makes_the_embedded_model_in_the_folder(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(packaged.EmbeddedModel, "make", lambda self: asked.append(self))
    monkeypatch.chdir(tmp_path)
    assert main(["init", "mine"]) == 0
    (model,) = asked
    assert model.folder == Path("mine/embedded/cache") and model.script.is_file()
    assert 'pretrain: "embedded/cache/model"' in (tmp_path / "mine" / "mine.yaml").read_text()


@pytest.mark.slow
def test_the_demo_trains_the_model_that_is_there(embedded_task, forks, tmp_path):
    (tmp_path / "examples" / "embedded").mkdir(parents=True)
    (tmp_path / "examples" / "embedded" / "cache").symlink_to(embedded_task)
    demo = ["-m", "roll.cli.main", "demo", "--local", "max_steps=2", "eval_steps=2"]
    assert "making the embedded model" not in forks.run(demo, tmp_path, environment(), tmp_path / "log.txt")
    assert summary(tmp_path / "output" / "rlvr_embedded_async")["steps"] == 2


@pytest.mark.parametrize(
    ("arguments", "script", "folder"),
    [
        ([], "make_embedded.py", "examples/embedded/cache"),
        (["rlvr", "max_steps=3"], "make_embedded.py", "examples/embedded/cache"),
        (["agentic"], "make_frozen_lake.py", "examples/embedded/cache_frozen_lake"),
        (["agentic", "--config_name", "agent_val_sokoban"], "make_sokoban.py", "examples/embedded/cache_sokoban"),
    ],
)
def test_the_demo_makes_the_model_that_its_configuration_names(arguments, script, folder, tmp_path, monkeypatch, capsys):
    """With a maker that fails: nothing is trained then."""
    made = []

    def fail(command: list[str], **_: object) -> None:
        made.append(Path(command[1]).name)
        raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(packaged.subprocess, "run", fail)
    monkeypatch.chdir(tmp_path)
    assert main(["demo", *arguments]) == 1
    out, err = capsys.readouterr()
    assert made == [script]
    assert f"making the embedded model in {folder} (" in out and "could not be made" in err


def reward_of(folder: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("reward", folder / "reward.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def grade(worker: Any, said: str, right: str) -> float:
    return float(asyncio.run(worker.grade(SimpleNamespace(response_text=said, prompt=SimpleNamespace(ground_truth=right)))))


def test_the_reward_of_init_judges_as_it_says():
    module = reward_of(ROOT / "roll" / "cli" / "starter")
    worker = module.DigitsRewardWorker({"timeout_s": 1, "max_concurrency": 1, "reward_args": {"length_penalty": 0.1}})
    assert [grade(worker, said, "231") for said in ("231", "230", "2310", "")] == pytest.approx([1, 2 / 3, 0.9, 0])
