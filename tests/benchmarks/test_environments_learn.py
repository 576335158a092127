"""What environments_learn.py teaches, and where its figures are shown. What the environments do is for `make test-envs`."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "benchmarks"), str(ROOT / "examples" / "embedded")]

import environments  # noqa: E402
import taught_formats  # noqa: E402
from environments_learn import PLAIN, TASKS, commonest, game, scores  # noqa: E402
from taught_formats import FIRST_SEED, Lesson, lessons, make_tokenizer  # noqa: E402

LAKE = next(task for task in TASKS if task.row == "frozen_lake")
QUESTIONS = next(task for task in TASKS if task.row == "reasoning-gym:leg_counting")


def test_the_page_has_what_was_trained():
    page = environments.PAGE.read_text()
    assert environments.with_learnt(page) == page, "python benchmarks/environments.py --write"


def test_every_trained_environment_stands_in_the_table():
    names = re.findall(r"^\| `(.*?)` \|", environments.PAGE.read_text(), re.MULTILINE)
    assert {task.row for task in TASKS} <= {*names} and len({task.row for task in TASKS}) == len(TASKS)


def test_questions_that_are_validated_are_in_no_lesson(monkeypatch):
    """A family asks the same under several seeds."""

    def questions(task, seeds):
        return [Lesson(f"{seed % 7}?", str(seed % 7)) for seed in seeds]

    monkeypatch.setattr(taught_formats, "questions", questions)
    validated = [3, 12]
    taught = lessons(replace(QUESTIONS, lessons=200, right=1.0), validated)
    assert {lesson.seen for lesson in taught} == {f"{left}?" for left in range(7)} - {"3?", "5?"}
    assert all(lesson.seen == f"{lesson.said}?" for lesson in taught)
    others = lessons(replace(QUESTIONS, lessons=700, right=0.0), validated)
    assert 0.1 < sum(lesson.seen == f"{lesson.said}?" for lesson in others) / len(others) < 0.3, "answers to any question"


@pytest.mark.parametrize("right", [0.0, 1.0])
def test_moves_are_those_of_the_oracle_in_the_part_that_is_said(right):
    """A fixed lake whose goal is to the right of all: from its first square a good player goes Right or Down alone."""
    config = {"size": 2, "p": 1.0, "random_places": False, "action_pattern": "(.*)"}
    lake = game("frozen_lake", LAKE.moves, 3, env_config=config, right=right, lessons=60)
    said = {lesson.said for lesson in lessons(lake, [])}
    assert said <= {"Right", "Down"} if right else said == {*LAKE.moves}


def test_texts_are_read_back_from_their_tokens():
    taught = [Lesson(f"How many legs have {i} ducks?\n+----+  |", f"\\boxed{{{i}}}") for i in range(20)]
    tokenizer = make_tokenizer(taught, ())
    for text in (each for lesson in taught for each in lesson):
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text
    assert len(tokenizer("ducks", add_special_tokens=False)["input_ids"]) == 1
    for text in ("skcud", "ducksducks", "a duck"):
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text, "by characters"


def test_a_line_of_instructions_is_one_token():
    taught = [Lesson(f"Return True or False, and nothing else:\n{i} > 1", str(i > 1)) for i in range(20)]
    ids = make_tokenizer(taught, ())(taught[7].seen, add_special_tokens=False)["input_ids"]
    assert len(ids) == 1 + len("\n7 > 1")


def test_a_score_is_of_an_episode_however_many_turns_are_written_down():
    rows = [{"step": step, "prompt_uid": "a", "reward": reward} for step, reward in ((0, 1.0), (0, 1.0), (9, 2.0), (9, None))]
    assert scores(rows) == {0: {"a": 1.0}, 9: {"a": 2.0}}


def test_who_always_goes_up_never_falls_off_the_cliff_and_is_no_sign_of_learning():
    cliff = game("gymnasium:CliffWalking-v1", "0123", 5, env_config=PLAIN)
    assert commonest(cliff, [1, 2, 3]) == -5.0
    assert commonest(game("gymnasium:CliffWalking-v1", "1", 5, env_config=PLAIN), [1]) == -500.0, "into the cliff"
    gained = {"gain": [300.0, 10.0], "after": [-6.0, 1.0], "commonest": -5.0}
    assert environments.verdict(gained) == environments.CONSTANT
    assert environments.verdict(gained | {"after": [-1.0, 1.0]}) == environments.LEARNED


def test_lessons_have_seeds_that_no_lesson_shares_with_a_run():
    assert FIRST_SEED + max(task.lessons for task in TASKS) < 2**31
