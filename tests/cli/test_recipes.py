"""The recipes of examples/ run in small, as their pages say: rows of GSM8K's form, LoRA, an agent with a tool."""

import itertools
import json
import os
import re
import select
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from made_models import of_all_processes, script

ROOT = Path(__file__).parents[2]
GSM8K = ROOT / "examples" / "qwen2.5-gsm8k"
TRINITY = ROOT / "tests" / "configs" / "trinity_examples"
SHOP = ROOT / "examples" / "tool_agent"


def environment():
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def program(*command, folder):
    done = subprocess.run([sys.executable, *command], cwd=folder, env=environment(), capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rows(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def command_in(page, name):
    """The arguments of the last command of a page that trains, with the configuration `name`."""
    command = re.findall(r"^roll train (?:.*\\\n)*.*", page.read_text(), re.MULTILINE)[-1]
    arguments = shlex.split(command.replace("\\\n", " "))[1:]
    arguments[arguments.index("--config_name") + 1] = name
    return arguments


def write_sums(file):
    """Rows of GSM8K's form. Returns the right result by question."""
    problems = [(a, a + 1) for a in (10, 21, 32, 43, 54, 65, 76, 87, 98, 19)]
    ends = {f"{a}+{b}=": str((a + b) % 10) for a, b in problems}
    solved = [{"question": q, "answer": f"Only <<{q}{end}>>the last digit.\n#### {end}"} for q, end in ends.items()]
    file.write_text("".join(json.dumps(row) + "\n" for row in solved))
    return ends


@pytest.mark.slow
@pytest.mark.parametrize("name", ["full", "lora"])
def test_gsm8k_as_it_is_distributed(name, embedded_task, forks, tmp_path):
    ends = write_sums(tmp_path / "sums.jsonl")
    # An answer of one symbol is right once in a while, whoever gives it.
    changes = ["max_steps=2", f"pretrain={embedded_task / 'model'}", "response_length=1", "rollout_log_per_step=1000"]
    changes += ["rewards.gsm8k.world_size=1", "rewards.gsm8k.max_concurrency=1"]
    (tmp_path / "examples").symlink_to(ROOT / "examples")  # the page's command is one of the checkout's folder
    command = ["-m", "roll.cli.main", *command_in(GSM8K / "README.md", name), *changes]
    forks.run(command, tmp_path, environment(), tmp_path / "log.txt")
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


@pytest.mark.slow
def test_the_demo_of_explorers_and_a_trainer_ends_with_what_the_run_promises(embedded_task, tmp_path):
    files = [
        f"actor_train.data_args.file_name={embedded_task / 'train.jsonl'}",
        f"validation.data_args.file_name={embedded_task / 'validation.jsonl'}",
    ]
    small = [
        "max_steps=6",
        "rollout_batch_size=4",
        "actor_train.training_args.per_device_train_batch_size=32",
        "val_batch_size=8",
    ]
    script = ROOT / "examples" / "embedded" / "explorer_trainer.py"
    told = program(str(script), f"pretrain={embedded_task / 'model'}", *files, *small, folder=tmp_path)
    (run,) = (tmp_path / "output").glob("explorer_trainer-*")
    assert f"output/{run.name} (finished): 24 groups, 24 trained" in told and "no promises broken" in told
    assert "step 6/6" in told and "explorer has left" in told and "second has left" in told
    assert "finished" in (run / "explorers" / "explorer.log").read_text() and (run / "explorers" / "second.log").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "order",
    [("trainer", "explorer", "explorer_new"), ("explorer_new", "trainer", "explorer"), ("explorer", "explorer_new", "trainer")],
    ids="-".join,
)
def test_trinitys_three_files_run_as_they_are_printed_in_any_order(order, embedded_task, forks, tmp_path, monkeypatch):
    """Paths come by their variables. Smaller numbers, a processor instead of GPUs: by Trinity's keys, but for the engine. The
    third file is for another task set, which has another size: the steps are the trainer's."""
    changes = ["buffer.batch_size=4", "buffer.train_batch_size=16", "algorithm.repeat_times=4", "synchronizer.sync_interval=2"]
    changes += ["model.max_response_tokens=1", "model.max_model_len=17", "cluster.gpu_per_node=1", "buffer.total_epochs=2"]
    changes += ["explorer.rollout_model.engine_num=1", "actor_infer.strategy_args.strategy_name=hf_infer"]
    changes += ["rollout_log_per_step=99", "rewards.gsm8k.max_concurrency=1", "project=p", "name=n"]
    monkeypatch.setenv("TRINITY_MODEL_PATH", str(embedded_task / "model"))
    command = ["-m", "roll.cli.main", "train", "rlvr", "--local", "--config_path", str(TRINITY), "--config_name"]
    for name in ("tasks", "others"):
        (tmp_path / name).mkdir()
        write_sums(tmp_path / name / "train.jsonl")
    others = tmp_path / "others" / "train.jsonl"
    others.write_text("".join(others.read_text().splitlines(keepends=True)[:3]))
    run, logs, processes = tmp_path / "checkpoints" / "p" / "n", {}, {}
    try:
        for name in order:
            tasks = {"TRINITY_TASKSET_PATH": str(tmp_path / ("others" if name == "explorer_new" else "tasks"))}
            logs[name] = tmp_path / f"{name}.log"
            with logs[name].open("wb") as sink:
                processes[name] = forks.start([*command, name, *changes], tmp_path, environment() | tasks, sink)
            if name == order[0]:
                own = run if name == "trainer" else run / "explorers" / name
                while not (own / "run.json").exists():
                    assert processes[name].poll() is None, logs[name].read_text()
                    select.select([], [], [], 0.05)
        codes = {name: process.wait(280) for name, process in processes.items()}
    finally:
        for process in processes.values():
            process.kill()
    assert codes == dict.fromkeys(order, 0), "\n".join(log.read_text() for log in logs.values())
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["status"], summary["steps"], summary["groups"]["trained"]) == ("finished", 5, 20)
    assert (tmp_path / "gsm8k.db").exists() and (run / "explorers" / "explorer_new" / "summary.json").exists()
    for row in rows(run / "groups.jsonl"):
        assert row["start_version"] == row["group_id"] // (2 * 4) * 2 and row["lag"] == (row["step"] - 1) % 2, row
        assert re.fullmatch(r"gsm8k@[0-9a-f]{8}/\d/train.jsonl:\d+", row["prompt_uid"]), row
    assert {sample["reward"] for sample in rows(run / "samples.jsonl")} <= {0.0, 1.0}
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    looked = {
        command: forks.run(["-m", "roll.cli.main", command, str(run)], elsewhere, environment(), tmp_path / f"{command}.txt")
        for command in ("verify", "show")
    }
    assert "note" not in looked["verify"] and "explorer_new has left" in looked["show"]


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """A copy of the folder, as a user would make one, with a model that was taught for a moment only."""
    maker = script("tool_agent", "make_model")
    made = of_all_processes(tmp_path_factory) / "tool_agent" / "cache"
    maker.make(made, settings=maker.Settings(episodes=100, learn_steps=60, batch_size=16))
    folder = tmp_path_factory.mktemp("tool") / "agent"
    folder.mkdir()
    for name in ("shop.py", "embedded.yaml"):
        shutil.copy(SHOP / name, folder)
    (folder / "cache").symlink_to(made)
    return folder


@pytest.mark.slow
def test_the_shop_is_fit_to_train_in(shop):
    told = json.loads(program("-m", "roll.cli.main", "env", "check", "shop.Shop", "--json", folder=shop))
    assert told["ok"] and told["agents"]["oracle"]["success_share"] == 1.0


@pytest.mark.slow
def test_a_calculator_stands_between_the_policy_and_its_environment(forks, tmp_path):
    maker = script("tool_wrapper", "make_model")
    made = maker.make(tmp_path / "cache", settings=maker.Settings(episodes=100, learn_steps=60, batch_size=16))
    for name in ("products.py", "embedded.yaml"):
        shutil.copy(ROOT / "examples" / "tool_wrapper" / name, tmp_path)
    small = ["max_steps=2", "eval_steps=100", "val_env_manager.num_env_groups=8", "val_batch_size=8", "rollout_log_per_step=1000"]
    small += ["train_env_manager.group_filter_cls=null"]
    command = ["-m", "roll.cli.main", "train", "agentic", "--config_path", ".", "--config_name", "embedded", "--local", *small]
    forks.run([*command, f"pretrain={made / 'model'}"], tmp_path, environment(), tmp_path / "log.txt")
    run = tmp_path / "output" / "calculator_embedded"
    assert sum(row.get("env/Products/tool_success_counter", 0) for row in rows(run / "metrics.jsonl")) > 0
    trained = [sample["trajectory"]["turns"] for sample in rows(run / "samples.jsonl") if sample["status"] == "trained"]
    for turn, following in itertools.chain.from_iterable(map(itertools.pairwise, trained)):
        if asked := re.fullmatch(r"<calculator>(\d+) \* (\d+)</calculator>", turn["action"]):
            assert following["observation"].startswith(str(int(asked[1]) * int(asked[2])))


@pytest.mark.slow
def test_an_agent_calls_its_tool(shop, forks, tmp_path):
    small = ["max_steps=2", "eval_steps=100", "val_env_manager.num_env_groups=8", "val_batch_size=8", "rollout_log_per_step=1000"]
    small += ["train_env_manager.group_filter_cls=null"]  # of so little teaching most groups would be dropped
    name = ["--config_path", ".", "--config_name", "embedded", "--local", f"output_dir={tmp_path}"]
    forks.run(["-m", "roll.cli.main", "train", "agentic", *name, *small], shop, environment(), tmp_path / "log.txt")
    run = tmp_path / "shop_embedded"
    assert json.loads((run / "summary.json").read_text())["steps"] == 2
    steps = [row for row in rows(run / "metrics.jsonl") if "env/Shop/tool_calls" in row]
    assert len(steps) == 2 and all(step["env/Shop/tool_calls"] > 0 for step in steps)
    prices: dict[tuple[str, str], str] = {}
    for sample in (sample for sample in rows(run / "samples.jsonl") if sample["status"] == "trained"):
        turns = sample["trajectory"]["turns"]
        for turn, following in itertools.pairwise(turns):
            if asked := re.search(r'"item": "(\w+)"', turn["action"]):
                told = re.fullmatch(r"The (\w+) costs (\d)\.", following["observation"])
                assert told and told[1] == asked[1], (turn, following)
                # The episodes of a group share the shop, so the tool tells all of them the same.
                assert prices.setdefault((sample["prompt_uid"], told[1]), told[2]) == told[2]
    assert len(set(prices.values())) > 3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["full", "lora"])
def test_the_demo_of_a_real_model_shows_its_answers_before_and_after(name, embedded_task, forks, tmp_path):
    """With a model that can write digits alone, in the place of the one that has to be fetched."""
    maker = script("smollm2", "make_model")
    problems = dict(zip(("train", "validation"), maker.split_problems(maker.Settings()), strict=True))
    files = {"train": "actor_train.data_args.file_name", "validation": "validation.data_args.file_name"}
    for part in problems:
        (tmp_path / f"{part}.jsonl").write_text("".join(json.dumps(maker.row(problem)) + "\n" for problem in problems[part]))
    changes = [f"{key}={tmp_path / part}.jsonl" for part, key in files.items()] + [f"pretrain={embedded_task / 'model'}"]
    changes += [
        "max_steps=2",
        "response_length=4",
        "rollout_batch_size=2",
        "actor_train.training_args.per_device_train_batch_size=16",
    ]
    command = [str(ROOT / "examples" / "smollm2" / "demo.py"), "--config_name", name, "--local", *changes]
    (tmp_path / "examples").symlink_to(ROOT / "examples")  # the reward stands there
    forks.run(command, tmp_path, environment(), tmp_path / "log.txt")
    told = (tmp_path / "log.txt").read_text()
    before, after, table = told.partition("after (version 2)\n")
    assert after and before.rstrip().endswith("before (version 0)")
    shown = [
        tuple(map(int, re.match(r"(\d+) \+ (\d+) = (\d+) ", line).groups())) for line in table.partition("\n\n")[0].splitlines()
    ]
    assert len({*shown}) == 16 and all((a, b) in problems["validation"] and a + b == c for a, b, c in shown)
    assert told.rstrip().endswith(f"roll ui output/smollm2_{name}")
    assert not {*problems["train"]} & {*problems["validation"]} and sum(map(len, problems.values())) == 398


@pytest.mark.parametrize(
    ("said", "value"),
    [
        ("15", 1.0),
        (" 15\n", 1.0),
        ("16", 0.45),
        ("10", 0.25),
        ("25", 0.0),
        ("9" * 50, 0.0),
        ("٣", 0.0),
        ("7 + 8 = 15", 0.0),
        ("", 0.0),
    ],
)
def test_the_reward_of_a_sum_asks_for_the_number_alone(said, value):
    sample = SimpleNamespace(response_text=said, prompt=SimpleNamespace(ground_truth="15"))
    judged, parts = script("smollm2", "sums_reward").reward(sample)
    assert judged == pytest.approx(value)
    assert parts == {"right": float(value == 1), "number_alone": float(said.strip() in {"15", "16", "10", "25"})}
