"""Questions of a table, one a task, whose answers a rule compares: ROLL's `roll_math` and `roll_qa`. With tools around them
(`tool_wrapper`) an agent calculates, or searches, before it answers.

The table is a file of prompts, or a data set that `datasets` loads; a process reads it once. A seed is a row."""

from __future__ import annotations

import asyncio
import functools
import json
import random
import re
import string
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import NamedTuple

from roll.core.configs.arguments import DataArguments
from roll.core.configs.problems import ConfigError, Problem, did_you_mean
from roll.core.data.sample import Prompt, Sample
from roll.core.distributed.machine import usable_cores
from roll.core.errors import PromptFileError
from roll.envs.action_pattern import ANSWER_PATTERN, compiled, found_in
from roll.envs.environment import Reset, Step
from roll.graders.answers import answer_text, closing_brace
from roll.graders.rules import MathRuleRewardWorker
from roll.prompts.prompt_file import contents
from roll.prompts.tables import holds_rows

COMPARED_WITHIN_S = 10.0
"""An answer to a question of mathematics."""
BOX = "\\boxed{"
_TAGGED = compiled(ANSWER_PATTERN)
_ARTICLE = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


class Question(NamedTuple):
    text: str
    answers: list[str]
    """Any of them is right."""


class Questions:
    def __init__(self, table: list[Question], boxed: bool) -> None:
        self._table, self._boxed = table, boxed
        self._asked: Question | None = None
        self.instructions = f"Answer the question. Write the answer as {self._written('...')}, at the end."

    def _written(self, answer: str) -> str:
        return f"{BOX}{answer}}}" if self._boxed else f"<answer>{answer}</answer>"

    async def reset(self, seed: int) -> Reset:
        self._asked = random.Random(seed).choice(self._table)
        return self._asked.text, {"state_key": self._asked.text}

    async def step(self, action_text: str) -> Step:
        if self._asked is None:
            raise RuntimeError("step() outside an episode: call reset(seed) first")
        said = in_box(action_text) if self._boxed else found_in(_TAGGED, action_text)
        right, self._asked = said is not None and await self.is_right(said.strip(), self._asked.answers), None
        info = {"action_is_valid": said is not None, "action_is_effective": said is not None, "success": right}
        return "", float(right), True, False, info

    async def is_right(self, said: str, answers: list[str]) -> bool:
        raise NotImplementedError

    def close(self) -> None: ...

    def sample_action(self, rng: random.Random) -> str:
        """The answer to another question."""
        return self._written(rng.choice(rng.choice(self._table).answers))

    def oracle_action(self) -> str | None:
        return None if self._asked is None else self._written(self._asked.answers[0])


class MathQuestions(Questions):
    """The answer stands in the last box and is compared by math-verify, in processes that end with the event loop."""

    def __init__(
        self, dataset_name: str, split: str = "train", question_key: str = "problem", answer_key: str = "answer"
    ) -> None:
        """`dataset_name`: a file of prompts, or a data set of the hub, or its folder, of which `split` is read. `question_key`,
        `answer_key`: columns. Raises `ConfigError`."""
        super().__init__(questions(dataset_name, split, question_key, answer_key), boxed=True)

    async def is_right(self, said: str, answers: list[str]) -> bool:
        for answer in answers:
            prompt = Prompt("question", [], "", "", "", ground_truth=answer)
            judged = await (await grader()).result(Sample(prompt, 0, [], [], [], "stop", response_text=f"{BOX}{said}}}"))
            if judged.value is None:
                raise RuntimeError(f"the answer cannot be compared with {answer!r}: {judged.error}")
            if judged.value == 1.0:
                return True
        return False


class TextQuestions(Questions):
    """The answer stands in the last <answer>, or with `extract_boxed` in the last box, and is compared as SQuAD does: without
    capitals, punctuation and articles."""

    def __init__(
        self,
        dataset_name: str,
        split: str = "train",
        question_key: str = "question",
        answer_key: str = "answer",
        extract_boxed: bool = False,
    ) -> None:
        """As those of mathematics. Raises `ConfigError`."""
        super().__init__(questions(dataset_name, split, question_key, answer_key), extract_boxed)

    async def is_right(self, said: str, answers: list[str]) -> bool:
        return plain(said) in map(plain, answers)


def plain(text: str) -> str:
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def in_box(text: str) -> str | None:
    """Returns the content of the last box behind the thinking."""
    answer = answer_text(text)
    start = answer.rfind(BOX)
    inside = answer[start + len(BOX) :] if start >= 0 else ""
    end = closing_brace(inside, 0)
    return None if end is None else inside[:end]


def questions(name: str, split: str, question_key: str, answer_key: str) -> list[Question]:
    """Raises `ConfigError`."""
    path = Path(name).absolute()
    written = path.stat() if path.exists() else None
    return _read(name, str(path), written and (written.st_mtime_ns, written.st_size), split, question_key, answer_key)


@functools.lru_cache(maxsize=16)
def _read(
    name: str, path: str, written: tuple[int, int] | None, split: str, question_key: str, answer_key: str
) -> list[Question]:
    """`path`, `written`: a table of the same name may be another one."""
    data = DataArguments(file_name=name) if holds_rows(Path(name)) else DataArguments(path=name, split=split)
    found = []
    try:
        for where, row in contents(data, "dataset_name"):
            for key, column in (("question_key", question_key), ("answer_key", answer_key)):
                if column not in row:
                    names, fix = ", ".join(row) or "none", did_you_mean(column, row, f"one of {', '.join(row)}")
                    raise ConfigError([Problem(key, column, f"is no column of {where}; it has {names}", fix)])
            given = row[answer_key]
            answers = [_answer(each, answer_key, where) for each in (given if isinstance(given, list) else [given])]
            if not isinstance(row[question_key], str) or not answers:
                fix = "mend the row, or leave it out"
                raise ConfigError([Problem("dataset_name", name, f"{where}: a question is a text, and has an answer", fix)])
            found.append(Question(str(row[question_key]), answers))
    except PromptFileError as error:
        raise ConfigError([Problem("dataset_name", name, str(error).removeprefix("dataset_name: "), error.fix)]) from error
    if not found:
        raise ConfigError([Problem("dataset_name", name, "has no questions", "a data set with rows")])
    return found


def _answer(value: object, key: str, where: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        message = f"{where}: an answer is a text, a number, or a list of these, not {json.dumps(value)[:60]}"
        raise ConfigError([Problem("answer_key", key, message, "another column, or leave the row out")])
    return str(value)


_graders: dict[asyncio.AbstractEventLoop, tuple[MathRuleRewardWorker, AsyncGenerator[MathRuleRewardWorker]]] = {}
"""A grader for each event loop, whatever the number of environments: each of its processes holds SymPy."""


async def grader() -> MathRuleRewardWorker:
    loop = asyncio.get_running_loop()
    if loop not in _graders:
        living = _living(loop)
        _graders[loop] = await anext(living), living
    return _graders[loop][0]


async def _living(loop: asyncio.AbstractEventLoop) -> AsyncGenerator[MathRuleRewardWorker]:
    """An event loop that is shut down closes the generators that it has begun, and so the processes."""
    worker = MathRuleRewardWorker({"timeout_s": COMPARED_WITHIN_S, "max_concurrency": usable_cores()})
    try:
        yield worker
    finally:
        del _graders[loop]
        await worker.close()
