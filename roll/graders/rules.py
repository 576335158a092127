"""Rewards by a rule: a final answer that is mathematically right (by math-verify), one text, one letter of a choice, and what an
environment pays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import ClassVar

from roll.core.data.sample import Sample
from roll.core.rewards.worker import Grade, RewardWorker
from roll.graders.answers import ANSWER_PARTS, boxed_choice, choice_of, conclusion, reference, right_choice
from roll.graders.pool import TimedPool
from roll.platform.interpreters import found

REWARDS = {
    # reward_type: (right and boxed, right, wrong but boxed, wrong)
    "loose": (1.0, 1.0, -1.0, -1.0),
    "soft": (1.0, 0.5, -0.5, -1.0),
    "strict": (1.0, -1.0, -1.0, -1.0),
}
BRIEF, LONG = 100, 400
"""Tokens: a response of up to `BRIEF` costs half the coefficient, one from `LONG` on nothing."""


class ExactMatchRewardWorker(RewardWorker):
    """1 for the right text: tasks whose answer has one spelling. Compares `response_text` with `ground_truth`, both without
    surrounding white space. Special tokens are already removed."""

    reads = frozenset()

    async def grade(self, sample: Sample) -> float:
        return float(sample.response_text.strip() == sample.prompt.ground_truth.strip())


class GeneralValRuleRewardWorker(RewardWorker):
    """1 for the right letter of a multiple-choice question, boxed or behind "answer is": for validation sets."""

    reads = frozenset()
    needs_box: ClassVar[bool] = False

    async def grade(self, sample: Sample) -> Grade:
        choice = choice_of(sample.response_text)
        right = choice.letter == right_choice(sample.prompt.ground_truth) and (choice.boxed or not self.needs_box)
        return float(right), {"format": choice.boxed}

    def solution(self, ground_truth: str) -> str:
        return boxed_choice(ground_truth)


class MultipleChoiceBoxedRuleRewardWorker(GeneralValRuleRewardWorker):
    """The letter counts in a box alone."""

    needs_box = True


class CrossThinkQARuleRewardWorker(GeneralValRuleRewardWorker):
    """Between -1 and 1 for the right letter and its form. `reward_args`: `reward_type` (a key of `REWARDS`; soft),
    `response_length_penalty_coef` (brief responses lose up to half of it; 0)."""

    reads = frozenset({"reward_type", "response_length_penalty_coef"})

    def __init__(self, config: Mapping[str, object]) -> None:
        super().__init__(config)
        kind = self.reward_args.get("reward_type") or "soft"
        if kind not in REWARDS:
            raise ValueError(f"reward_args.reward_type: {kind!r} is none of {', '.join(REWARDS)}")
        self._rewards = REWARDS[kind]
        self._coefficient = float(self.reward_args.get("response_length_penalty_coef") or 0)

    async def grade(self, sample: Sample) -> Grade:
        choice = choice_of(sample.response_text)
        right = choice.letter == right_choice(sample.prompt.ground_truth)
        reward = self._rewards[(0 if choice.boxed else 1) if right else (2 if choice.boxed else 3)]
        missing = min(max(LONG - len(sample.response_ids), 0) / (LONG - BRIEF), 1.0)
        return reward - 0.5 * self._coefficient * missing, {"right": right, "format": choice.boxed}


class MathRuleRewardWorker(RewardWorker):
    """Grades in `max_concurrency` child processes; an answer that takes longer than `timeout_s` to compare earns 0.

    `reward_args`: `answer_part`, where the answer is looked for, one of `ANSWER_PARTS`; without it `response`. `last_box`: true,
    and only the last box counts. `ignores_percent`: true, and 50\\% is 50."""

    reads = frozenset({"answer_part", "last_box", "ignores_percent"})
    keeps_time_limit: ClassVar[bool] = True

    def __init__(self, config: Mapping[str, object]) -> None:
        super().__init__(config)
        part = self.reward_args.get("answer_part", "response")
        if part not in ANSWER_PARTS:
            raise ValueError(f"reward_args.answer_part {part!r} is none of {', '.join(ANSWER_PARTS)}")
        self._answer = ANSWER_PARTS[part]
        self._options = {name: self.reward_args.get(name, False) for name in ("last_box", "ignores_percent")}
        if odd := [name for name, value in self._options.items() if not isinstance(value, bool)]:
            raise ValueError(f"reward_args.{odd[0]} is {self._options[odd[0]]!r}; it must be true or false")
        self._pool = TimedPool(self.max_concurrency, self.timeout_s, "roll.graders.math_grader:grade")

    async def start(self) -> None:
        await self._pool.start()

    async def close(self) -> None:
        await self._pool.close()

    async def grade(self, sample: Sample) -> float:
        """An answer that takes the whole limit is wrong if the judge, asked the ground truth itself, answers in time: then the
        answer is at fault. Else the judge has failed."""
        truth = reference(sample.prompt.ground_truth)
        answer = self._answer(sample.response_text, sample.prompt.text)
        item = {"response": answer, "ground_truth": truth, "limit_s": self.timeout_s, **self._options}
        try:
            return float(await self._pool.run(item))
        except TimeoutError:
            await self._pool.run(item | {"response": self.solution(truth)})
            return 0.0

    def solution(self, ground_truth: str) -> str:
        before = "\n\n" if self._answer is conclusion else ""
        return f"{before}\\boxed{{{reference(ground_truth)}}}"


class EnvironmentRewardWorker(RewardWorker):
    """An environment's reward for the response as its only action; prompts and ground truths are those of `roll env prompts`.

    `reward_args`: `env`, the environment, as `roll env check` takes it, or the `env_type` of a package, among whose environments
    each row then chooses; `env_config`; `python`, the environment's interpreter, by the name that `roll env add` gave it or by
    its path; without it this one."""

    reads = frozenset({"env", "env_config", "python"})
    keeps_time_limit: ClassVar[bool] = True

    def __init__(self, config: Mapping[str, object]) -> None:
        super().__init__(config)
        self._env, self._env_config = self.reward_args.get("env"), dict(self.reward_args.get("env_config") or {})
        if not isinstance(self._env, str):
            raise ValueError(f"reward_args.env {self._env!r} names no environment: reasoning-gym:leg_counting, for instance")
        named = self.reward_args.get("python")
        python = None if named is None else found(named)
        if named is not None and python is None:
            raise ValueError(f"reward_args.python {named!r} is no interpreter here: roll env add {named}")
        self._pool = TimedPool(self.max_concurrency, self.timeout_s, "roll.envs.elsewhere:answered", python)

    async def start(self) -> None:
        await self._pool.start()

    async def close(self) -> None:
        await self._pool.close()

    async def grade(self, sample: Sample) -> float:
        return float(await self._pool.run([self._env, self._env_config, sample.prompt.ground_truth, sample.response_text]))

    def solution(self, ground_truth: str) -> str | None:
        answer: str | None = json.loads(ground_truth)["answer"]
        return answer
