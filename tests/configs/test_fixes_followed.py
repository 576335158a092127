"""A fix is followed by a program, as it is written, until nothing is wrong any more: the one for this cause, not for another."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from roll.core.configs.agentic import AgenticConfig
from roll.core.configs.arguments import STRATEGY_CONFIGS
from roll.core.configs.fields import walk
from roll.core.configs.problems import ConfigError, Problem
from roll.core.configs.rlvr import RLVRConfig
from roll.core.distributed.machine import Machine
from roll.plan.rules.validation import check_config
from roll.prepare.check import planned_devices
from roll.prepare.compose import load

EXAMPLES = Path(__file__).parents[2] / "examples"
ROUNDS = 4
MACHINE = Machine(cpus=2, memory=1 << 34, accelerators=())
OPTIONS = {
    f"{name}.strategy_args.strategy_config.{path}"
    for name in ("actor_train", "actor_infer")
    for each in STRATEGY_CONFIGS.values()
    for path, _, _ in walk(each)
}
KNOWN = OPTIONS | {path for kind in (RLVRConfig, AgenticConfig) for path, _, _ in walk(kind)}
PATTERNS = [re.compile(re.escape(path).replace("<name>", r"[^.]+")) for path in sorted(KNOWN)]
NUMBER, VALUE = r"-?[\d.]*\d", r"[a-z_]+(?:,[a-z_]+)+|\[[^\]]*\]|\{.*\}|\"[^\"]*\"|[\w./-]*\w"
BEFORE = re.compile(
    r"(?:e\.g\. |at most |at least |write |such as |name each once: |devices of its own, e\.g\. |a \w+ > 0, e\.g\. )"
)


def problems(config: str, overrides: list[str]) -> list[Problem]:
    folder, _, name = config.partition("/")
    try:
        loaded, report = load(EXAMPLES / folder, name, overrides)
    except ConfigError as error:
        return error.problems
    return report.located(check_config(loaded, planned_devices(loaded, MACHINE)))


def place_of(name: str, key: str) -> str | None:
    """The key that a fix means by `name`: beside the one that is wrong, in a block around it, or anywhere."""
    block = key.rpartition(".")[0]
    while block:
        if any(pattern.fullmatch(f"{block}.{name}") for pattern in PATTERNS):
            return f"{block}.{name}"
        block = block.rpartition(".")[0]
    if any(pattern.fullmatch(name) for pattern in PATTERNS):
        return name
    return next((path for path in sorted(KNOWN) if path.startswith("actor_train.") and path.endswith(f".{name}")), None)


def written(value: object) -> str:
    return json.dumps(value).replace('"', "")


def followed(problem: Problem) -> list[str] | None:
    """The overrides that the fix asks for, its first way that can be followed; None: it leaves more to the reader than a program
    knows."""
    ways = re.split(r",? or |; (?:or )?", problem.fix)
    return next((way for way in (followed_way(problem, each) for each in ways) if way), None)


def followed_way(problem: Problem, fix: str) -> list[str]:
    key = problem.key
    if moved := re.match(r"(?:here it is|it belongs to) (?:the top level: )?([\w.]+)(?:: (\w+)$)?", fix):
        return [f"++{moved[1]}={moved[2] or written(problem.value)}"]
    if meant := re.match(r"did you mean ([\w.]+)\?", fix):
        if problem.message == "unknown key" or not isinstance(problem.value, str):
            return [f"~{key}", f"++{'.'.join([*key.split('.')[:-1], meant[1]])}={written(problem.value)}"]
        return [f"++{key}={meant[1]}"]
    if fix.startswith(("remove it", "remove one of", "keep one of")):
        return [f"~{key}"]
    if below := re.match(rf"less than ({NUMBER})", fix):
        return [f"++{key}={float(below[1]) - 0.5}"]
    fix, found = BEFORE.sub("", fix, count=1), []
    if own := re.match(rf"({VALUE})(?=,| and | with | for | \(|$|: \d+ devices)", fix):
        found = [f"++{key}={own[1]!r}" if re.match(r"\w+,", own[1]) else f"++{key}={own[1]}"]
    for name, said, number in re.findall(rf"([a-z_][\w.]*)(?:: ({VALUE})| ({NUMBER})\b)", fix):
        place = key if name == key.rpartition(".")[2] else place_of(name, key)
        found += [f"++{place}={said or number}"] if place else []
    return found


def cases() -> Iterator[tuple[str, str]]:
    for part in (Path(__file__).parent / "broken.txt").read_text().split("\n[")[1:]:
        name, *lines = part.split("\n")
        yield from ((f"config/{name.rstrip(']')}", line) for line in lines if line)


@pytest.mark.parametrize(("config", "broken"), [*cases()])
def test_who_follows_the_fixes_has_a_configuration_without_problems(config, broken):
    overrides = broken.split(" | ")
    found = problems(config, overrides)
    assert found, "nothing is wrong"
    for _ in range(ROUNDS):
        asked = next((each for each in map(followed, found) if each is not None), None)
        assert asked is not None, [str(problem) for problem in found]
        wrong = {problem.key for problem in found if problem.message.startswith("unknown key")}
        said = {each.lstrip("+~").partition("=")[0] for each in asked}
        kept = [each for each in overrides if each.lstrip("+~").partition("=")[0] not in wrong | said]
        given = {each.lstrip("+").partition("=")[0] for each in overrides}
        overrides = kept + [each for each in asked if each[0] != "~" or each[1:] not in given]
        found = problems(config, overrides)
        if not found:
            return
    raise AssertionError([str(problem) for problem in found])


def test_variables_of_the_chat_template_are_for_episodes_too():
    given = ["++actor_train.data_args.chat_template_kwargs={enable_thinking: false}", "++actor_train.data_args.template=native"]
    assert problems("config/agent_val_frozen_lake_async", given) == []
