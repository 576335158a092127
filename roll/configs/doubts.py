"""What a configuration may say and hardly mean: a run starts with it all the same, and is told."""

from __future__ import annotations

from collections.abc import Iterator

from roll.configs.agentic import AgenticConfig
from roll.configs.ppo import PPOConfig
from roll.configs.problems import Note
from roll.configs.rlvr import RLVRConfig
from roll.configs.worker import TrainedConfig

HIGHEST_RATE = 0.01
"""Thirty times what the tiny embedded models, 10,000 times what pretrained ones are trained with."""
USUAL_RATES = "1.0e-6 is usual where all weights of a pretrained model are trained, 1.0e-5 to 1.0e-4 for LoRA"


def doubts(config: PPOConfig) -> Iterator[Note]:
    if config.trains:
        yield from _learning_rates(config)
    if config.has_engines and isinstance(config, RLVRConfig):  # an agent's answer may be one token: a move
        yield from _response_length(config)
    yield from _validation(config)


def _learning_rates(config: PPOConfig) -> Iterator[Note]:
    for name, role in config.roles().items():
        if isinstance(role, TrainedConfig) and (rate := role.training_args.learning_rate) > HIGHEST_RATE:
            message = f"is far above what a policy gradient stands, and the first steps may ruin the model: {USUAL_RATES}"
            yield Note(f"{name}.training_args.learning_rate", rate, message)


def _response_length(config: RLVRConfig) -> Iterator[Note]:
    message = "every answer is cut off behind its first token: none can say more, nor end by itself"
    generating = config.actor_infer.generating_args.max_new_tokens
    if config.lengths().response == 1:
        key = "sequence_length" if config.response_length is None else "response_length"
        yield Note(key, getattr(config, key), message)
    elif generating == 1:
        yield Note("actor_infer.generating_args.max_new_tokens", generating, message)


def _validation(config: PPOConfig) -> Iterator[Note]:
    if config.eval_steps is not None and not config.validation_sampling:
        block = "val_env_manager" if isinstance(config, AgenticConfig) else "validation: {data_args: {file_name: ...}}"
        yield Note("eval_steps", config.eval_steps, f"does nothing: there is no validation set; add {block}, or remove the key")
