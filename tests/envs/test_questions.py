"""Questions of a table: which row a seed is, what counts as an answer, what is compared how, and tables that cannot be used."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from roll.core.configs.problems import ConfigError
from roll.envs import questions
from roll.envs.environment import Step
from roll.envs.registry import make_env


def table(folder: Path, *rows: dict[str, object], name: str = "rows.jsonl") -> str:
    file = folder / name
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return str(file)


def answered(env: Any, *texts: str) -> list[Step]:
    async def all_of_them() -> list[Step]:
        steps = []
        for text in texts:
            await env.reset(0)
            steps.append(await env.step(text))
        return steps

    return asyncio.run(all_of_them())


def judged(steps: list[Step]) -> list[tuple[float, bool]]:
    assert all(terminated and not truncated for _, _, terminated, truncated, _ in steps)
    assert all(info["success"] == (reward == 1.0) for _, reward, _, _, info in steps)
    return [(reward, info["action_is_valid"]) for _, reward, _, _, info in steps]


@pytest.mark.parametrize(
    ("text", "reward", "valid"),
    [
        ("It is \\boxed{\\frac{3}{4}}.", 1, True),
        ("\\boxed{0.75}", 1, True),
        ("\\boxed{1}, no, \\boxed{6/8}", 1, True),  # the last box counts
        ("\\boxed{3/4}, no, \\boxed{1}", 0, True),
        ("3/4", 0, False),  # ROLL's reads boxes alone
        ("<think>\\boxed{3/4}</think> I do not know", 0, False),
        ("\\boxed{3/4", 0, False),
        ("\\boxed{}", 0, True),
        ("\\boxed{9^{9^{9^{9^9}}}}", 0, True),  # which nobody waits for
        ("", 0, False),
    ],
)
def test_an_answer_to_a_question_of_mathematics_is_its_value_in_the_last_box(text, reward, valid, tmp_path):
    env = make_env("roll_math", {"dataset_name": table(tmp_path, {"problem": "1/2 + 1/4?", "answer": "3/4"})})
    assert judged(answered(env, text)) == [(reward, valid)]


def test_numbers_worked_solutions_and_lists_of_answers_are_references(tmp_path):
    rows = [{"q": "?", "a": a} for a in (42, "6 * 7 is it. #### 42", ["7", "42.0"])]
    for row in rows:
        env = make_env("roll_math", {"dataset_name": table(tmp_path, row), "question_key": "q", "answer_key": "a"})
        assert judged(answered(env, "\\boxed{42}", "\\boxed{41}")) == [(1, True), (0, True)]


@pytest.mark.parametrize(
    ("text", "reward", "valid"),
    [
        ("<answer>the Eiffel-Tower!</answer>", 1, True),
        ("<answer>London</answer> or <answer> EIFFELTOWER </answer>", 1, True),
        ("<answer>tower of Eiffel</answer>", 0, True),
        ("the Eiffel-Tower", 0, False),
        ("\\boxed{Eiffel-Tower}", 0, False),
    ],
)
def test_an_answer_in_words_is_compared_without_capitals_punctuation_and_articles(text, reward, valid, tmp_path):
    env = make_env("roll_qa", {"dataset_name": table(tmp_path, {"question": "Where?", "answer": ["Paris", "The Eiffel-Tower"]})})
    assert judged(answered(env, text)) == [(reward, valid)]


def test_answers_in_words_may_stand_in_a_box(tmp_path):
    file = table(tmp_path, {"question": "Where?", "answer": "Paris"})
    env = make_env("roll_qa", {"dataset_name": file, "extract_boxed": True})
    assert judged(answered(env, "\\boxed{paris}", "<answer>Paris</answer>")) == [(1, True), (0, False)]
    assert "\\boxed{" in env.instructions and "<answer>" in make_env("roll_qa", {"dataset_name": file}).instructions


def test_a_seed_is_a_row_in_every_environment_and_every_row_is_asked(tmp_path):
    file = table(tmp_path, *({"question": f"q{i}", "answer": str(i)} for i in range(5)))

    def asked() -> list[str]:
        env: Any = make_env("roll_qa", {"dataset_name": file})

        async def texts() -> list[str]:
            return [(await env.reset(seed))[0] for seed in range(60)]

        return asyncio.run(texts())

    first = asked()
    assert first == asked() and {*first} == {f"q{i}" for i in range(5)}


def test_tables_of_other_forms_and_folders_that_datasets_loads(tmp_path):
    csv = tmp_path / "rows.csv"
    csv.write_text("question,answer\nWhere?,Paris\n")
    folder = tmp_path / "set"
    folder.mkdir()
    table(folder, {"question": "Where?", "answer": "Paris"}, name="test.jsonl")
    for config in ({"dataset_name": str(csv)}, {"dataset_name": str(folder), "split": "test"}):
        assert judged(answered(make_env("roll_qa", config), "<answer>Paris</answer>")) == [(1, True)]


@pytest.mark.parametrize(
    ("rows", "config", "message"),
    [
        (
            [{"question": "?", "solution": "1"}],
            {},
            "env_config.answer_key = 'answer': is no column of rows.jsonl:1; it has question, s",
        ),
        (
            [{"text": "?", "answer": "1"}],
            {},
            "env_config.question_key = 'question': is no column of rows.jsonl:1; it has text, ans",
        ),
        ([{"question": "?", "answer": None}], {}, "rows.jsonl:1: an answer is a text, a number, or a list of these, not null"),
        ([{"question": "?", "answer": [True]}], {}, "not true"),
        ([{"question": "?", "answer": []}], {}, "rows.jsonl:1: a question is a text, and has an answer"),
        ([{"question": 1, "answer": "1"}], {}, "rows.jsonl:1: a question is a text, and has an answer"),
        ([], {}, "env_config.dataset_name = 'rows.jsonl': has no questions"),
        ([], {"dataset_name": "/no/such.jsonl"}, "dataset_name = '/no/such.jsonl': cannot read /no/such.jsonl: No such file"),
        ([], {"dataset_nam": "x"}, "env_config.dataset_nam = 'x': TextQuestions has no such key; fix: did you mean dataset"),
    ],
)
def test_a_table_that_cannot_be_used_is_one_error_with_key_value_and_row(rows, config, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table(tmp_path, *rows)
    with pytest.raises(ConfigError) as error:
        make_env("roll_qa", {"dataset_name": "rows.jsonl", **config})
    assert message in str(error.value)
    assert len(error.value.problems) == 1


def test_a_data_set_that_is_not_there_is_told_as_the_key(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"env_config.dataset_name = './nothing': cannot read ./nothing:train: "):
        make_env("roll_math", {"dataset_name": "./nothing"})


def test_a_reference_that_is_no_mathematics_is_a_failure_and_no_reward(tmp_path):
    env = make_env("roll_math", {"dataset_name": table(tmp_path, {"problem": "?", "answer": "$$"})})
    with pytest.raises(RuntimeError, match=r"cannot be compared with '\$\$': .*is not a mathematical expression"):
        answered(env, "\\boxed{1}")


def test_the_environments_of_an_event_loop_share_the_processes_which_end_with_it(tmp_path):
    file = table(tmp_path, {"problem": "?", "answer": "1"})

    async def twenty() -> tuple[list[float], list[int]]:
        async def one() -> float:
            env: Any = make_env("roll_math", {"dataset_name": file})
            await env.reset(0)
            return float((await env.step("\\boxed{1}"))[1])

        rewards = list(await asyncio.gather(*(one() for _ in range(20))))
        worker = await questions.grader()
        assert 1 <= len(worker._pool.pids) <= worker.max_concurrency
        return rewards, worker._pool.pids

    for _ in range(2):  # a second loop has processes of its own
        rewards, pids = asyncio.run(twenty())
        assert rewards == [1.0] * 20 and not questions._graders
        assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
