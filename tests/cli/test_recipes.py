"""The recipes of examples/ run in small, as their pages say: rows of GSM8K's form, LoRA, an agent with a tool."""

import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GSM8K = ROOT / "examples" / "qwen2.5-gsm8k"
SHOP = ROOT / "examples" / "tool_agent"


def program(*command, folder):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rows(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture(scope="module")
def embedded(tmp_path_factory):
    """The embedded model, taught for a moment only: its answers are any symbols."""
    made = tmp_path_factory.mktemp("embedded") / "cache"
    source = (
        "import sys; from pathlib import Path; from make_embedded import Settings, make\n"
        "make(Path(sys.argv[1]), settings=Settings(learn_steps=3, misprint_steps=1))\n"
    )
    program("-c", source, str(made), folder=ROOT / "examples" / "embedded")
    return made / "model"


def command_in(page, name):
    """The arguments of the last command of a page that trains, with the configuration `name`."""
    command = re.findall(r"^roll train (?:.*\\\n)*.*", page.read_text(), re.MULTILINE)[-1]
    arguments = shlex.split(command.replace("\\\n", " "))[1:]
    arguments[arguments.index("--config_name") + 1] = name
    return arguments


@pytest.mark.slow
@pytest.mark.parametrize("name", ["full", "lora"])
def test_gsm8k_as_it_is_distributed(name, embedded, tmp_path):
    problems = [(a, a + 1) for a in (10, 21, 32, 43, 54, 65, 76, 87, 98, 19)]
    ends = {f"{a}+{b}=": str((a + b) % 10) for a, b in problems}
    solved = [{"question": q, "answer": f"Only <<{q}{end}>>the last digit.\n#### {end}"} for q, end in ends.items()]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in solved))
    # An answer of one symbol is right once in a while, whoever gives it.
    changes = ["max_steps=2", f"pretrain={embedded}", "response_length=1", "rollout_log_per_step=1000"]
    changes += ["rewards.gsm8k.world_size=1", "rewards.gsm8k.max_concurrency=1"]
    program("-m", "roll.cli.main", *command_in(GSM8K / "README.md", name), *changes, folder=tmp_path)
    (run,) = (tmp_path / "output").glob("qwen*")
    assert ("lora" in run.name) == (name == "lora")
    assert json.loads((run / "summary.json").read_text())["steps"] == 2
    assert (run / "checkpoints" / "step-2" / "trainer" / "adapter").exists() == (name == "lora")
    samples = rows(run / "samples.jsonl")
    assert len(samples) == 2 * 8 * 8
    assert {sample["tag"] for sample in samples} == {"gsm8k"}
    assert {sample["reward"] for sample in samples} == {0.0, 1.0}
    for sample in samples:
        assert re.fullmatch(r"gsm8k/\d+/sums.jsonl:\d+", sample["prompt_uid"]) and sample["ground_truth"].startswith("Only <<")
        assert sample["reward"] == float(sample["response"] == ends[sample["prompt"]]), sample


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """A copy of the folder, as a user would make one, with a model that was taught for a moment only."""
    folder = tmp_path_factory.mktemp("tool") / "agent"
    folder.mkdir()
    for name in ("shop.py", "embedded.yaml"):
        shutil.copy(SHOP / name, folder)
    source = (
        "import sys; from pathlib import Path; from make_model import Settings, make\n"
        "make(Path(sys.argv[1]), settings=Settings(episodes=100, learn_steps=60, batch_size=16))\n"
    )
    program("-c", source, str(folder / "cache"), folder=SHOP)
    return folder


def test_the_shop_is_fit_to_train_in(shop):
    told = json.loads(program("-m", "roll.cli.main", "env-check", "shop.Shop", "--json", folder=shop))
    assert told["ok"] and told["agents"]["oracle"]["success_share"] == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("where", ["local", pytest.param("ray", marks=pytest.mark.ray)])
def test_an_agent_calls_its_tool(where, shop, tmp_path):
    small = ["max_steps=2", "eval_steps=100", "val_env_manager.num_env_groups=8", "val_batch_size=8", "rollout_log_per_step=1000"]
    local = ["--local"] if where == "local" else []
    name = ["--config_path", ".", "--config_name", "embedded", *local, f"output_dir={tmp_path}"]
    program("-m", "roll.cli.main", "train", "agentic", *name, *small, folder=shop)
    run = tmp_path / "shop_embedded"
    assert json.loads((run / "summary.json").read_text())["steps"] == 2
    steps = [row for row in rows(run / "metrics.jsonl") if "env/Shop/tool_calls" in row]
    assert len(steps) == 2 and all(step["env/Shop/tool_calls"] > 0 for step in steps)
    prices: dict[tuple[str, str], str] = {}
    for sample in (sample for sample in rows(run / "samples.jsonl") if sample["fate"] == "trained"):
        turns = sample["trajectory"]["turns"]
        for turn, following in itertools.pairwise(turns):
            if asked := re.search(r'"item": "(\w+)"', turn["action"]):
                told = re.fullmatch(r"The (\w+) costs (\d)\.", following["observation"])
                assert told and told[1] == asked[1], (turn, following)
                # The episodes of a group share the shop, so the tool tells all of them the same.
                assert prices.setdefault((sample["prompt_uid"], told[1]), told[2]) == told[2]
    assert len(set(prices.values())) > 3
