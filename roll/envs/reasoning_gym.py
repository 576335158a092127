"""Task families of `reasoning-gym` (github.com/open-thought/reasoning-gym): one question, one answer, which the family scores
itself. A seed is a task, in every process."""

from __future__ import annotations

import random
from typing import Any

from roll.core.configs.problems import ConfigError, Problem
from roll.core.errors import boundary
from roll.envs.action_pattern import ANSWER_PATTERN, compiled, found_in
from roll.envs.environment import Reset, Step
from roll.envs.packages import importing

SEEDS = 2**31
"""Families hand their seeds to generators that take no larger ones."""
DRAWN = 64
"""Answers among which a random one is drawn."""


def _package() -> Any:
    """Raises `ConfigError`."""
    with importing("reasoning_gym"):
        import reasoning_gym
    return reasoning_gym


def env_ids() -> list[str]:
    return sorted(_package().factory.DATASETS)


class ReasoningGym:
    thread_safe = False  # some families draw from the global generators

    def __init__(self, env_id: str, action_pattern: str = ANSWER_PATTERN, **config: object) -> None:
        """`env_id`: the family. `action_pattern`: regular expression, whose first group is the answer; its last match counts.
        Other keys are the family's own configuration. Raises `ConfigError`."""
        self._package, self._family, self._config = _package(), env_id, config
        if env_id not in self._package.factory.DATASETS:
            raise ConfigError([Problem("env_id", env_id, "is no family of reasoning-gym", "roll env list reasoning-gym")])
        self._pattern = compiled(action_pattern)
        self._form = "<answer>{}</answer>" if found_in(self._pattern, "<answer>x</answer>") == "x" else "{}"
        self.instructions = (
            f"Answer the question. Write the answer as {self._form.format('...')}, and nothing else in that place."
        )
        with boundary(
            lambda why: ConfigError([Problem("env_id", env_id, why, "roll env list reasoning-gym")]), "it cannot be made"
        ):
            self._tasks(0, 1)
        self._entry: Any = None
        self._answers: list[str] = []

    def _tasks(self, seed: int, count: int) -> Any:
        return self._package.create_dataset(self._family, seed=seed % SEEDS, size=count, **self._config)

    def reset(self, seed: int) -> Reset:
        outside = random.getstate()
        random.seed(seed)
        try:
            self._scorer = self._tasks(seed, 1)
            self._entry = self._scorer[0]
        finally:
            random.setstate(outside)
        return self._entry["question"], {"state_key": self._entry["question"]}

    def step(self, action_text: str) -> Step:
        found = found_in(self._pattern, action_text)
        score = 0.0 if found is None else float(self._scorer.score_answer(answer=found.strip(), entry=self._entry))
        info = {"action_is_valid": found is not None, "action_is_effective": found is not None, "success": score >= 1.0}
        return "", score, True, False, info

    def close(self) -> None: ...

    def sample_action(self, rng: random.Random) -> str:
        """The answer of another task of the family."""
        if not self._answers:
            found = [entry["answer"] for entry in self._tasks(SEEDS - DRAWN - 1, DRAWN)]
            self._answers = [str(answer) for answer in found if answer is not None] or ["0", "1"]
        return self._form.format(rng.choice(self._answers))

    def oracle_action(self) -> str | None:
        """None where a family has no reference answer."""
        answer = self._entry["answer"]
        return None if answer is None else self._form.format(answer)
