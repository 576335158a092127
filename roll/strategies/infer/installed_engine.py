"""Checks that the configured engine is installed, in a version that this project knows, and has the configured arguments. Reads
files, imports nothing of the engine and no torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial

from roll.configs.arguments import CACHE_BYTES, CACHE_GIB, StrategyArguments
from roll.configs.problems import MISSING_VALUE, Problem
from roll.strategies.infer.sglang import arguments as sglang_arguments
from roll.strategies.infer.vllm import arguments as vllm_arguments


def engine_problems(key: str, chosen: StrategyArguments) -> list[Problem]:
    """`chosen`: the `strategy_args` of that key. Nothing is said of arguments whose engine is not found."""
    given = chosen.strategy_config
    python, named = given.get("python"), f"{key}.strategy_config.python"
    if chosen.strategy_name == "vllm":
        where, what = (f"{key}.strategy_name", "vllm") if python is None else (named, python)
        missing = _complaint(where, what, lambda: vllm_arguments.check_installed(python), vllm_arguments.INSTALL)
        check = partial(vllm_arguments.check_argument, python)
        if (space := os.environ.get(CACHE_GIB, "0")) and not space.isdecimal():  # which vLLM does not name
            missing.append(Problem(CACHE_GIB, space, "is no whole number of GiB", "e.g. 4, or unset it"))
    elif chosen.strategy_name == "sglang":
        what, python = given.get("python", MISSING_VALUE), sglang_arguments.interpreter(python)
        missing = _complaint(named, what, lambda: sglang_arguments.check_interpreter(python), sglang_arguments.INSTALL)
        check = partial(sglang_arguments.check_argument, python)
    else:
        return []
    return missing or [
        problem
        for name, value in given.items()
        for problem in _complaint(f"{key}.strategy_config.{name}", value, partial(check, name, value), "correct or remove it")
    ]


def engine_remarks(key: str, chosen: StrategyArguments, accelerators: bool) -> Iterator[str]:
    """What is taken here in the place of what the `strategy_args` of that key leave open, or say for other machines."""
    given = chosen.strategy_config
    if chosen.strategy_name == "vllm" and not accelerators:
        for name, taken in vllm_arguments.for_a_cpu(given).items():
            why = f"on a CPU vLLM keeps tokens in blocks of a multiple of {vllm_arguments.CPU_BLOCK_TOKENS}"
            yield f"{key}.strategy_config.{name} = {given[name]}: read as {taken}: {why}"
        if (name := "gpu_memory_utilization") in given:
            yield f"{key}.strategy_config.{name} = {given[name]}: not read on a CPU: {CACHE_BYTES} says how large the KV cache is"
    if chosen.strategy_name == "sglang" and "python" not in given and (found := sglang_arguments.interpreter(None)):
        yield f"{key}: SGLang runs from {found}"


def _complaint(key: str, value: object, check: Callable[[], object], fix: str) -> list[Problem]:
    try:
        check()
    except ValueError as error:
        return [Problem(key, value, str(error), fix)]
    return []
