"""Rules of validation sets, and of runs that only evaluate (`mode: bench`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from roll.configs.base import PRETRAIN
from roll.configs.ppo import MAIN_SET, PPOConfig
from roll.configs.problems import MISSING_VALUE, Problem

RESERVED = ("train", MAIN_SET)
"""What the tasks of training and of the first set are called."""


def evaluation_problems(config: PPOConfig) -> Iterator[Problem]:
    checkpoints = config.bench_checkpoints
    if config.mode != "bench":
        if checkpoints != [PRETRAIN]:
            yield Problem("bench_checkpoints", checkpoints, f"has no effect with mode: {config.mode}", "mode: bench")
        return
    if not config.validation_sampling:
        fix = "validation_sets: {<name>: ...}"
        yield Problem("validation_sets", MISSING_VALUE, "mode: bench evaluates validation sets, and there is none", fix)
    if not checkpoints:
        yield Problem("bench_checkpoints", [], "names no model", "pretrain, or folders of runs and checkpoints")
    if config.resume_from_checkpoint not in (False, "auto"):
        message = "an evaluation begins anew, of the models that bench_checkpoints names"
        yield Problem("resume_from_checkpoint", config.resume_from_checkpoint, message, "false")


def set_name_problems(names: Iterable[str]) -> Iterator[Problem]:
    """`names`: of `validation_sets`."""
    for name in names:
        if name in RESERVED:
            yield Problem(f"validation_sets.{name}", name, "is the name of other tasks", "another name")
        elif not name or not name.isprintable() or {"/", "."} & {*name}:
            yield Problem("validation_sets", name, "is no name of a set", 'no "/", no ".", not empty')
