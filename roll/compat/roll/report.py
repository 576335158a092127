"""Notes on a file of ROLL: keys that mean something else here (differences.py; below those of the tasks), and keys left out whose
default differs from ROLL's, where it matters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from roll.compat.roll.differences import LOSS, Difference, Written, agentic, where
from roll.compat.roll.keys_tasks import QUESTIONS
from roll.compat.roll.readings import DETECTION, MATH
from roll.compat.roll.rule import value_at
from roll.core.configs.agentic import AgenticConfig
from roll.core.configs.estimators import STEP_ESTIMATORS
from roll.core.configs.ppo import PPOConfig
from roll.core.configs.problems import Note

# Key, ROLL's default, why it matters.
DEFAULTS: tuple[tuple[str, Any, str], ...] = (
    ("actor_infer.generating_args.temperature", 0.95, "the policy that is sampled"),
    ("actor_infer.generating_args.top_p", 0.7, "here the whole distribution is sampled, the one that is trained"),
    ("actor_infer.generating_args.top_k", 50, "here the whole distribution is sampled, the one that is trained"),
    ("validation.generating_args.temperature", 0.95, "how validation samples"),
    ("validation.generating_args.top_p", 0.7, "how validation samples"),
    ("validation.generating_args.top_k", 50, "how validation samples"),
    ("adv_estimator", "gae", "ROLL trains a critic by default"),
    ("num_return_sequences_in_group", 1, "responses per prompt"),
    ("actor_train.training_args.learning_rate", 5e-5, "the learning rate"),
    ("critic.training_args.learning_rate", 5e-5, "the critic's learning rate"),
    ("actor_train.model_args.disable_gradient_checkpointing", False, "memory and time of the backward pass"),
    ("actor_train.model_args.dtype", "bf16", "auto means bf16 on an accelerator and fp32 on a CPU"),
    ("val_batch_size", 128, "how many episodes a validation has"),
    ("val_env_manager", "128 groups of SimpleSokoban", "whether there is a validation; eval_steps: 0 says that none is meant"),
    ("exp_name", "the start script's name", "where the run's files go"),
    ("reward_normalization.grouping", "batch", "which episodes are compared"),
    ("train_env_manager.tags", ["SimpleSokoban"], "which environments are played"),
)


def other_defaults(config: object, mapping: Mapping[str, object]) -> list[Note]:
    """Returns a note for each key of DEFAULTS that `config` has and `mapping`, the written one, has not."""
    return [
        Note(".".join(path), ours, f"the default here; ROLL's is {theirs!r}: {why}")
        for key, theirs, why in DEFAULTS
        if key != "val_batch_size" or _other_validation(config, theirs)
        for path, ours in _left_out(config, mapping, tuple(key.split(".")), ())
        if ours != theirs
    ]


def _other_validation(config: Any, episodes: int) -> bool:
    """RLVR evaluates every validation prompt, in ROLL, too, and without a val_env_manager nothing is evaluated."""
    manager = config.val_env_manager if config.multi_turn else None
    return manager is not None and config.episodes_of(manager) != episodes


def _left_out(config: Any, mapping: Any, rest: tuple[str, ...], done: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    name, *below = rest
    if name == "<name>":
        for key, block in config.items():
            yield from _left_out(block, (mapping or {}).get(key), tuple(below), (*done, key))
    elif hasattr(config, name):
        value, written = getattr(config, name), mapping.get(name) if isinstance(mapping, Mapping) else None
        if below and value is not None:
            yield from _left_out(value, written, tuple(below), (*done, name))
        elif not below and written is None:
            yield (*done, name), value


_GAMES = ("frozen_lake", "sokoban", "sokoban_native_env")


def _environments(config: PPOConfig, key: str, holds: Callable[[Any], bool]) -> list[str]:
    envs = config.custom_envs if isinstance(config, AgenticConfig) else {}
    return [f"custom_envs.{name}.{key}" for name, env in envs.items() if holds(env)]


def _of_tags(key: str, when: str, note: str, holds: Callable[[Any], bool]) -> Difference:
    return Difference(f"custom_envs.<name>.{key}", when, note, lambda config, written: _environments(config, key, holds))


def _rewarded_by(worker: str, config: PPOConfig, written: Written) -> list[str]:
    rewards = config.reward_configs
    return [f"rewards.{name}.worker_cls" for name, reward in rewards.items() if reward.worker_cls == worker]


def _remembers(manager: str, env: Any) -> bool:
    return str(env.env_manager_cls).endswith(manager) and "{history}" in env.agent_template


def _cut_by_game(env: Any) -> bool:
    most = env.env_config.get("max_steps")
    return env.env_type == "frozen_lake" and isinstance(most, int) and most < env.max_steps


def _own_reward(config: PPOConfig, written: Written) -> list[str]:
    by_turn = _environments(config, "env_manager_cls", lambda env: env.by_turn)
    return [] if config.adv_estimator in STEP_ESTIMATORS else by_turn


TASKS: tuple[Difference, ...] = (
    Difference("prompt_length", "RLVR", "ROLL also leaves out prompts of 5 tokens or fewer, in training and in validation; "
               "here only empty ones",
               lambda c, w: ["prompt_length"] if not agentic(c) and "prompt_length" in w else []),
    Difference("custom_envs.<name>.env_manager_cls", "by turn, without a step estimator", "a turn has the score of its whole "
               "episode, and an episode is compared once; in ROLL a turn has its own reward, and turns are compared",
               _own_reward),
    _of_tags("history_length", "StepEnvManager, with {history}", "{history} shows so many turns before this one; ROLL's shows "
             "one less, of those only the turns without a readable action, and none where the key is left out",
             partial(_remembers, ".StepEnvManager")),
    _of_tags("history_length", "StepConcatEnvManager, with {history}", "{history} shows so many turns before this one; ROLL's "
             "shows one less, and none where the key is left out", partial(_remembers, ".StepConcatEnvManager")),
    _of_tags("tool_wrapper", "given", "python_code runs in the sandbox of code rewards, whatever sandbox_type says; of several "
             "calls in a text the first counts, in ROLL the first tool that does not fail; why a tool has failed is told, and "
             "counted; only tool_instruction has ROLL's words", lambda env: env.tool_wrapper is not None),
    _of_tags("env_manager_cls", "AgentNativeStepEnvManager", "the environment is told the answer without special tokens, "
             "max_steps ends an episode whatever the environment says, and the chat template thinks as it does by itself: "
             "ROLL's is told enable_thinking: false (actor_train.data_args.chat_template_kwargs)",
             lambda env: env.keeps_conversation),
    Difference("batch_adjust_mode", "samples by turn", "every sample counts once, in as many optimiser steps as the episodes "
               "make batches, a begun one included; ROLL copies random samples, or leaves some out, until the samples make "
               "whole batches, and takes a step for each",
               lambda c, w: ["batch_adjust_mode"] * bool(_environments(c, "", lambda env: env.by_turn))),
    where("async_generation_ratio", "above 0", "a group that would be trained later than allowed is awaited; ROLL cancels it, "
          "which leaves out the slow ones (staleness_policy: drop)",
          lambda c: c.async_generation_ratio > 0 and c.staleness_policy == "wait"),
    Difference("rewards.<name>.worker_cls", MATH.rpartition(".")[2], "compares by math-verify, as ROLL does, but takes back "
               "what a strict reader would not accept, such as a remark or two values in the box",
               partial(_rewarded_by, MATH)),
    Difference("rewards.<name>.worker_cls", DETECTION.rpartition(".")[2], "the boxes that overlap most are compared first, where "
               "ROLL's code compares the last ones, so that right boxes in another order earn less; boxes without area, or with "
               "coordinates beyond a million, are none; apostrophes in labels are read; a row without boxes or weights, and a "
               "DET_IOU_THRESHOLD that is none of ROLL's, are errors, in ROLL 0 and average; dynamic goes by the version that "
               "wrote the answer", partial(_rewarded_by, DETECTION)),
    _of_tags("env_config.action_pattern", ", ".join(_GAMES), "of several answers in one text the last counts, as an agent may "
             "correct itself; in ROLL the first", lambda env: env.env_type in _GAMES),
    _of_tags("env_type", ", ".join(_GAMES), "the same game, with its rules told in other words, in the system prompt and as "
             "{suffix}, and its boards drawn by another generator (Sokoban: search_depth is read otherwise, min_pushes leaves "
             "out the easiest rooms)", lambda env: env.env_type in _GAMES),
    _of_tags("env_type", ", ".join(QUESTIONS), "a seed is a row, in validation, too, where ROLL's roll_math goes through the "
             "rows one after the other; the rules say how to write the answer; one that takes too long to compare is wrong "
             "after 10 s, in ROLL after 1 s", lambda env: env.env_type in QUESTIONS),
    _of_tags("env_config.max_steps", "frozen_lake, less than the tag's max_steps",
             "ends the episode; in ROLL the tag's max_steps alone does", _cut_by_game),
    where("val_env_manager", "given", "every evaluation plays the same episodes, and a run with the same seed the same; ROLL "
          "plays others each time", lambda c: agentic(c) and c.val_env_manager is not None),
)  # fmt: skip

DIFFERENCES: tuple[Difference, ...] = (*LOSS, *TASKS)


def differences_of(config: PPOConfig, written: Written) -> list[Note]:
    """Returns a note for each key of the file that means something else than in ROLL, with the value that counts here; of a key
    that is not here the written value."""
    return [Note(key, _value(config, written, key), each.note) for each in DIFFERENCES for key in each.keys(config, written)]


def _value(config: object, written: Written, key: str) -> object:
    path = tuple(key.split("."))
    for name in path:
        config = config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
    return value_at(written, path) if config is None else config
