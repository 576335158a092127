"""Scripted environments, and the production coordinators around them: episodes take the turns and the seconds of a table.

An environment's actions follow from the answers that it gets alone: an answer of a scripted engine is one number, again and
again, and that number is the text of it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from roll.core.configs.agentic import AgenticConfig, EnvConfig
from roll.core.configs.dotted_path import dotted_path
from roll.core.configs.problems import Problem
from roll.core.data.episode import PolicyAnswer
from roll.core.data.seeding import derive_seed
from roll.core.explorer.group_play import GroupTask
from roll.envs.environment import Info
from roll.envs.environment_worker import EnvironmentWorker
from roll.envs.episode_managers import TrajEnvManager
from roll.envs.turn_managers import StepEnvManager
from roll.simulate.costs import Costs


class Numbers:
    """A tokenizer whose words are the numbers of their tokens."""

    chat_template = None

    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        return {"input_ids": [int(word) for word in text.split()]}

    def decode(self, token_ids: Sequence[int], **_: bool) -> str:
        """Returns the one number of an answer, whose tokens are all alike."""
        return str(token_ids[0]) if len(token_ids) else ""


class ScriptedEnvironment:
    """Its observations begin as no other's do."""

    instructions = ""

    def __init__(self, costs: Costs, first: int, following: int) -> None:
        """`first`, `following`: tokens of an observation."""
        self._costs = costs
        self._first, self._following = first, following
        self._left = 0
        self._right = 0.0

    async def reset(self, seed: int) -> tuple[str, Info]:
        self._left = -1
        self._right = self._costs.pass_rate.draw(seed)  # the episodes of a group have one seed
        await asyncio.sleep(self._costs.environment_s.draw(seed))
        return " ".join([str(seed)] * self._first), {}

    async def step(self, action_text: str) -> tuple[str, float, bool, bool, Info]:
        if self._left < 0:
            self._left = max(1, round(self._costs.turns.draw(derive_seed("turns", action_text))))
        self._left -= 1
        await asyncio.sleep(self._costs.environment_s.draw(derive_seed("environment", action_text)))
        over = self._left == 0
        right = over and random.Random(derive_seed("reward", action_text)).random() < self._right
        return " ".join([action_text] * self._following), float(right), over, False, {"success": right}

    def close(self) -> None: ...


class ScriptedEnvironmentWorker(EnvironmentWorker):
    """The production coordinator around scripted environments. Its contexts are counted in grains, its requests in tokens."""

    def __init__(self, costs: Costs, grain: int, *, config: AgenticConfig, context: int, **others: Any) -> None:
        self._grain = grain
        others["turns"] = None  # nothing of a simulation is worth a file
        super().__init__(config=_scripted(config, costs, grain), context=max(2, context // grain), **others)

    def tokenizer(self, folder: str) -> Numbers:
        return Numbers()

    async def _ask(
        self, task: GroupTask, episode: str, context: Sequence[int], turn: int, most: int, stop: tuple[str, ...]
    ) -> PolicyAnswer:
        return await super()._ask(task, episode, context, turn, most * self._grain, stop)


def unscripted(config: AgenticConfig) -> Iterator[Problem]:
    """Yields a problem for each part that cannot be simulated."""
    for tag, env in config.custom_envs.items():
        if env.program is not None:
            yield Problem(f"custom_envs.{tag}.env_type", env.env_type, "programs take real time", "an environment")
        elif not env.env_manager_cls.startswith("roll."):
            key, message = f"custom_envs.{tag}.env_manager_cls", "nobody knows what a manager of your own asks for"
            yield Problem(key, env.env_manager_cls, message, "TrajEnvManager or StepEnvManager")


def _scripted(config: AgenticConfig, costs: Costs, grain: int) -> AgenticConfig:
    """With scripted environments, whose observations are shown as they are."""

    def scripted(tag: str, env: EnvConfig) -> EnvConfig:
        first = max(1, round(costs.prompt_tokens / grain))
        following = first if env.by_turn else round(costs.observation_tokens / grain)
        return replace(
            env,
            env_type=f"{__name__}.{ScriptedEnvironment.__name__}",
            env_config={"costs": costs, "first": first, "following": following},
            env_manager_cls=dotted_path(StepEnvManager if env.by_turn else TrajEnvManager),
            python=None,
            execution="inline",
            agent_system_template="",
            agent_template="{observation}",
            success_at=None,
            tool_wrapper=None,
            max_tokens_per_step=max(1, config.answer_tokens(tag) // grain),
        )

    data = replace(config.actor_train.data_args, template="none")
    envs = {tag: scripted(tag, env) for tag, env in config.custom_envs.items()}
    return replace(config, custom_envs=envs, actor_train=replace(config.actor_train, data_args=data))
