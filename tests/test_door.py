"""`import roll`: light, and enough for a script: train, evaluate, check, load_config."""

import ast
import json
import subprocess
import sys
from dataclasses import is_dataclass
from pathlib import Path
from typing import get_args, get_type_hints

import datasets
import pandas
import pyarrow
import pytest

import roll
from roll.prepare.default_devices import shared_out, with_default_devices
from roll.prompts.prompt_file import read_rows

ROOT = Path(__file__).parents[1]


def short(sample):
    return 1.0 / (1 + len(sample.response_ids))


def exact(sample):
    return float(sample.response_text == sample.prompt.ground_truth)


async def brief(sample):
    return float(len(sample.response_ids) < 3)


def python(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        "HOME": str(folder),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env=environment, capture_output=True, text=True, timeout=100
    )


def test_the_import_loads_nothing_but_the_door(tmp_path):
    program = "import sys; before = {*sys.modules}; import roll; print(sorted({*sys.modules} - before))"
    loaded = ast.literal_eval(python(program, tmp_path).stdout)
    assert {name for name in loaded if name.partition(".")[0] not in sys.stdlib_module_names} == {
        "roll",
        "roll.compat",
        "roll.compat.code",
        "roll.compat.code.names",  # which resolves ROLL's import paths when they are asked for
    }


def test_every_name_of_the_door_is_there_and_type_checkers_see_the_same():
    assert all(getattr(roll, name) is not None for name in roll.__all__)
    assert {*roll.__all__} <= {*dir(roll)}
    source = (ROOT / "roll/__init__.pyi").read_text()
    named = {name.asname for line in ast.parse(source).body if isinstance(line, ast.ImportFrom) for name in line.names}
    assert named == {*roll.__all__}  # a stub offers only what it imports `as` the same name
    assert named >= {
        "load_config",
        "check",
        "train",
        "RLVRPipeline",
        "AgenticPipeline",
        "AsyncTrainingFlow",
        "RewardWorker",
        "Sample",
    }
    with pytest.raises(AttributeError, match="no attribute 'tarin'"):
        roll.tarin  # noqa: B018


def blocks_of(cls: type) -> set[type]:
    """A configuration's class, and those of its blocks."""
    found, waiting = {cls}, [cls]
    while waiting:
        hints = [*get_type_hints(waiting.pop()).values()]
        while hints:
            hint = hints.pop()
            hints += get_args(hint)
            if is_dataclass(hint) and hint not in found:
                found.add(hint)
                waiting.append(hint)
    return found


def test_every_block_of_a_configuration_is_at_the_door():
    blocks = blocks_of(roll.RLVRConfig) | blocks_of(roll.AgenticConfig)
    assert len(blocks) > 20
    assert {cls.__name__ for cls in blocks} <= {*roll.__all__}


def rows(count: int = 12) -> list[dict[str, str]]:
    return [{"question": f"{n}+{n}=", "answer": str(2 * n), "tag": "any"} for n in range(10, 10 + count)]


def small(tmp_path: Path) -> dict[str, object]:
    return {"output_dir": str(tmp_path / "output"), "max_steps": 1, "rollout_batch_size": 2, "response_length": 4, "local": True}


def test_five_lines_train(embedded_task, tmp_path):
    model = str(embedded_task / "model")
    summary = roll.train(model=model, data=rows(), reward=short, exp_name="five", learning_rate=1e-4, **small(tmp_path))
    assert summary["status"] == "finished" and summary["steps"] == 1
    samples = [json.loads(line) for line in (tmp_path / "output/five/samples.jsonl").read_text().splitlines()]
    assert samples and all(sample["reward"] > 0 for sample in samples)
    assert {sample["ground_truth"] for sample in samples} <= {row["answer"] for row in rows()}


def test_rewards_are_summed_with_their_weights_and_each_is_a_metric(embedded_task, tmp_path):
    given = {"model": embedded_task / "model", "data": rows(), "validation": rows(2), "exp_name": "two"}
    summary = roll.train(reward=[exact, brief], reward_weights=[2, -1], eval_steps=1, **given, **small(tmp_path))
    assert summary["status"] == "finished" and [each["step"] for each in summary["validation"]] == [0, 1]
    samples = [json.loads(line) for line in (tmp_path / "output/two/samples.jsonl").read_text().splitlines()]
    assert all(sample["reward"] == 2 * sample["reward_parts"]["exact"] - sample["reward_parts"]["brief"] for sample in samples)


def test_a_data_set_is_rows(embedded_task, tmp_path):
    summary = roll.train(
        model=embedded_task / "model", data=datasets.Dataset.from_list(rows()), reward=short, exp_name="set", **small(tmp_path)
    )
    assert summary["status"] == "finished"


class Polars:
    """Polars' frame as far as rows go: it yields its columns."""

    columns = ("question", "answer", "tag")

    def __iter__(self):
        return iter([[row[name] for row in rows()] for name in self.columns])

    def to_dicts(self):
        return rows()

    def to_dict(self):
        return dict(zip(self.columns, self, strict=True))


@pytest.mark.parametrize(
    "table",
    [
        pandas.DataFrame(rows()),
        pyarrow.Table.from_pylist(rows()),
        pyarrow.RecordBatch.from_pylist(rows()),
        datasets.Dataset.from_list(rows()).with_format("numpy"),
        datasets.Dataset.from_list(rows()).to_iterable_dataset(),
        Polars(),
    ],
    ids=lambda table: f"{type(table).__module__.partition('.')[0]}.{type(table).__name__}",
)
def test_a_table_of_any_kind_is_its_rows(table, embedded_task, tmp_path):
    given = {"model": embedded_task / "model", "reward": exact, "output_dir": str(tmp_path)}
    config = roll.load_config(data=table, **given)
    found = [(row.prompt, row.ground_truth, row.extra) for row in read_rows(config.actor_train.data_args)]
    assert found == [(row["question"], row["answer"], {"tag": row["tag"]}) for row in rows()]


@pytest.mark.parametrize(
    "texts", [pandas.Series(["1+1=", "1+2="]), pyarrow.chunked_array([["1+1="], ["1+2="]])], ids=["pandas", "arrow"]
)
def test_a_column_of_texts_is_prompts(texts, embedded_task, tmp_path):
    config = roll.load_config(data=texts, model=embedded_task / "model", reward=short, output_dir=str(tmp_path))
    assert [row.prompt for row in read_rows(config.actor_train.data_args)] == ["1+1=", "1+2="]


def test_lengths_and_template_are_those_of_model_and_rows(embedded_task, tmp_path):
    long = [*rows(), {"question": "1" * 70, "answer": "1", "tag": "any"}]
    config = roll.load_config(model=embedded_task / "model", data=long, reward=short, output_dir=str(tmp_path))
    assert (config.prompt_length, config.actor_train.data_args.template) == (96, "native")
    assert config.prompt_length + config.response_length == 256, "as much as the model can attend to"
    again = roll.load_config(model=embedded_task / "model", data=long, reward=short, output_dir=str(tmp_path))
    assert again.actor_train.data_args == config.actor_train.data_args, "the same rows are the same file"
    changed = {"output_dir": str(tmp_path), "actor_train": {"pg_variant": "gspo"}, "prompt_length": 40}
    other = roll.load_config(model=embedded_task / "model", data=long, reward=short, **changed)
    assert (other.actor_train.pg_variant, other.prompt_length) == ("gspo", 40)
    assert other.actor_train.data_args == config.actor_train.data_args


@pytest.mark.parametrize("judge", ["answer", "reward_model"])
def test_conversations_in_a_column_prompt_are_rows_as_in_trl_and_verl(judge, embedded_task, tmp_path):
    def row(number: int) -> dict[str, object]:
        answer = {"answer": "2"} if judge == "answer" else {"reward_model": {"style": "rule", "ground_truth": "2"}}
        return {"prompt": [{"role": "user", "content": f"{number}+1="}], **answer}

    given = {"model": embedded_task / "model", "reward": exact, "output_dir": str(tmp_path)}
    config = roll.load_config(data=[row(n) for n in range(8)], validation=[{"question": "1+1=", "answer": "2"}], **given)
    asked = config.actor_train.data_args
    (first, *_), (held_out,) = (list(read_rows(data)) for data in (asked, config.validation.data_args))
    assert (first.messages, first.ground_truth) == ([{"role": "user", "content": "0+1="}], "2")
    assert (held_out.prompt, held_out.ground_truth) == ("1+1=", "2"), "of its own columns, whatever those of training are"
    assert roll.check(config).plan.exp_name == "rlvr"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"data": None}, "data = (missing)"),
        ({"data": []}, "has no rows"),
        ({"data": "prompts.jsonl"}, "is no list of rows"),
        ({"data": [{"text": "x"}]}, "has no column with a prompt: text"),
        ({"data": [{"prompt": object()}]}, "not JSON serializable"),
        ({"data": [["1+1=", "2"]]}, "does not yield rows"),
        ({"data": 7}, "is no list of rows; fix: a list of texts or mappings, or a table"),
        ({"data": datasets.DatasetDict(train=datasets.Dataset.from_list(rows()))}, "fix: one of its data sets, data['train']"),
        ({"data": {"question": ["1+1="], "answer": ["2"]}}, "fix: [dict(zip(data, row)) for row in zip(*data.values())]"),
        ({"data": [{"question": "1+1=", "answer": ["2", "two"]}]}, """'["2", "two"]': rewards for boxes"""),
        ({"data": [{"question": "1+1=2?", "answer": True}]}, 'fix: the text that a right response has, such as "true" or "True"'),
        ({"reward": "exact"}, "is no function"),
        ({"reward": [exact, exact]}, "functions of the same name"),
        ({"reward": [exact, brief], "reward_weights": [1]}, "has 1 weights for 2 rewards"),
        ({"model": "nowhere/at/all"}, "nowhere/at/all is not there"),
        ({"max_stepz": 3}, "did you mean max_steps"),
        ({"rollout_batch_size": -1}, "rollout_batch_size"),
    ],
)
def test_what_is_wrong_is_told_before_anything_starts(given, told, embedded_task, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(roll.ConfigError) as raised:
        roll.train(**{"model": embedded_task / "model", "data": rows(), "reward": exact, "local": True} | given)
    assert told in str(raised.value)


def test_a_script_with_a_mistake_ends_with_a_line_and_no_traceback(tmp_path):
    ended = python("import roll\nroll.train(model='nowhere', data=['1+1='], reward=len)", tmp_path)
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: model = 'nowhere': nowhere is not there") and "Traceback" not in ended.stderr
    assert "Traceback" in python("import roll\nroll.train\n1 / 0", tmp_path).stderr, "other errors are shown as always"


def test_a_file_is_loaded_checked_and_evaluated(embedded_task, tmp_path, monkeypatch):
    with pytest.raises(roll.ConfigError, match="there is no such file"):
        roll.load_config(tmp_path / "none.yaml")
    train = embedded_task / "train.jsonl"
    overrides = [f"pretrain={embedded_task / 'model'}", f"output_dir={tmp_path}", f"actor_train.data_args.file_name={train}"]
    overrides += [f"validation.data_args.file_name={embedded_task / 'validation.jsonl'}", "val_batch_size=4"]
    config = roll.load_config(ROOT / "examples/config/rlvr_config_async.yaml", overrides)
    assert isinstance(config, roll.RLVRConfig) and roll.check(config).plan.exp_name == "rlvr_embedded_async"
    assert roll.evaluate(config, local=True)["status"] == "finished"


def test_devices_that_nobody_names_are_shared_out():
    assert shared_out(8) == ([0, 1, 2, 3], [4, 5, 6, 7]) and shared_out(2) == ([0], [1]) and shared_out(1) == ([0], [0])
    config = roll.RLVRConfig()
    assert with_default_devices(config, 0).actor_infer.device_mapping == [1]
    given = roll.RLVRConfig(actor_train=roll.ActorTrainConfig(device_mapping="0"))
    assert with_default_devices(given, 0) is given, "half a wish is no wish for a default"


def test_keywords_are_laid_over_a_file_and_told_apart_from_it():
    file = ROOT / "examples/config/rlvr_config_async.yaml"
    config = roll.load_config(file, ["max_steps=3"], max_steps=4, actor_train={"pg_variant": "gspo"})
    assert (config.max_steps, config.actor_train.pg_variant) == (4, "gspo")
    assert config.actor_train.data_args == roll.load_config(file).actor_train.data_args
    with pytest.raises(roll.ConfigError, match=r"keywords: actor_train\.pg_varian"):
        roll.load_config(file, actor_train={"pg_varian": "gspo"})
    with pytest.raises(roll.ConfigError, match="about a YAML file"):
        roll.load_config(overrides=["max_steps=3"])
