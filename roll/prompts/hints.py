"""Hints: facts of a row that the policy is not told, in the prompt of the teacher that scores the policy's answers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from roll.core.configs.engines import ENGINES
from roll.core.configs.ppo import PPOConfig
from roll.core.configs.problems import Problem
from roll.core.configs.worker import TEACHERS
from roll.core.errors import PromptFileError
from roll.core.weights.folder_files import CONFIG, beyond_context, read_json
from roll.prompts.chat_template import conversation
from roll.prompts.prompt_file import PromptRow

_PLACES = re.compile(r"\{(prompt|hint)\}")


@dataclass(frozen=True, slots=True)
class Hint:
    """A hint for a teacher."""

    role: str
    column: str
    template: str
    of_truth: bool
    """The column is that of the ground truth."""

    def given(self, row: PromptRow) -> PromptRow:
        """Returns the row as the teacher gets it: its prompt, or the last message of its user, with the hint. Raises
        `PromptFileError` if it has none."""
        hint = row.ground_truth if self.of_truth else row.extra.get(self.column)
        if not isinstance(hint, str | int | float) or isinstance(hint, bool) or not str(hint).strip():
            found = "has no" if hint is None else f"has {hint!r:.60} as its"
            message = f"{row.where}: the row {found} {self.column!r}, the hint of {self.role} (hint_key)"
            raise PromptFileError(message, "a text in each row of its tags, or tag_included for those rows that have one")
        if row.messages is None:
            return replace(row, prompt=self._told(row.prompt or "", str(hint)))
        messages = [dict(each) for each in conversation(row)]
        last = max((i for i, each in enumerate(messages) if each["role"] == "user"), default=None)
        if last is None:
            raise PromptFileError(f"{row.where}: no message is the user's, where the hint of {self.role} would stand")
        messages[last]["content"] = self._told(str(messages[last]["content"]), str(hint))
        prompt = None if row.prompt is None else self._told(row.prompt, str(hint))
        return replace(row, messages=messages, prompt=prompt)

    def _told(self, prompt: str, hint: str) -> str:
        return _PLACES.sub(lambda place: prompt if place[1] == "prompt" else hint, self.template)


def hints_of(config: PPOConfig, truth: str) -> Mapping[str, Hint]:
    """Returns the hint of each tag whose teacher is told one. `truth`: the column of the ground truth."""
    found = dict[str, Hint]()
    for tag in config.tag_to_domain:
        role = config.teacher_of(tag) or ""
        teacher = config.teachers.get(role.removeprefix(TEACHERS))
        if teacher is not None and teacher.hint_key is not None:
            found[tag] = Hint(role, teacher.hint_key, teacher.hint_template, teacher.hint_key == truth)
    return found


def beyond_engines(config: PPOConfig, tokens: int) -> list[Problem]:
    """Returns the problems where a teacher's engine takes shorter texts. `tokens`: as of `beyond_teachers`."""
    roles, longest = config.roles(), config.lengths().sequence
    told = [name for name, teacher in config.teachers.items() if teacher.hint_key is not None]
    engines = [name for name in told if (role := roles.get(f"{TEACHERS}{name}")) and role.strategy_args.strategy_name in ENGINES]
    message = f"prompt, hint and response may have {tokens:,} tokens, and its engine takes texts of sequence_length {longest:,}"
    fix = f"sequence_length: {tokens}, or strategy_name: fsdp2_infer"
    over = engines if tokens > longest else []
    return [Problem(f"{TEACHERS}{name}.hint_key", config.teachers[name].hint_key, message, fix) for name in over]


def beyond_teachers(config: PPOConfig, tokens: int) -> list[str]:
    """Returns warnings about teachers that were made for shorter texts. `tokens`: of the longest prompt with a hint and the
    longest response."""
    said = []
    for name, teacher in config.teachers.items():
        folder = Path(config.model_folder(config.actor_train if teacher.live else teacher)) / CONFIG
        if teacher.hint_key is not None and folder.is_file() and (beyond := beyond_context(read_json(folder), tokens)):
            said.append(f"teachers.{name}.hint_key: prompt, hint and response may have {tokens:,} tokens, {beyond}")
    return said
