"""`roll check`: the plan of a configuration, or all its problems. Nothing starts but, where programs earn rewards, one
in the sandbox, and nothing heavy is imported but for own stages, `--flow` and `--data`, and where the model's folder is here: its
first prompt is shown, and for that a tokenizer is opened and an environment begins."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from roll.cli.first_prompt import FirstPrompt, as_text, first_prompts
from roll.cli.found_here import missing_here
from roll.cli.options import OVERRIDES, Parser, complain, config_folder, fitted, pipeline_named
from roll.compat.roll.pipelines import AnyConfig
from roll.core.configs.ppo import AUDITS, PPOConfig
from roll.core.configs.problems import ConfigError, Problem
from roll.core.configs.redact import redact_at, redact_text, visible
from roll.core.configs.rlvr import RLVRConfig
from roll.core.configs.sizes import GIB, counted
from roll.core.distributed.machine import this_machine
from roll.plan.load_report import LoadReport
from roll.plan.rules.validation import check_config
from roll.plan.text import keys, whole
from roll.prepare.check import Checked, check, planned_devices


@dataclass(frozen=True, slots=True)
class CheckResult:
    report: LoadReport
    problems: list[Problem]
    checked: Checked | None = None
    """None where there are problems."""
    config: AnyConfig | None = None
    prompts: tuple[FirstPrompt, ...] = ()


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code: 0 if a run would start, 1 if something prevents that. Mere notes do not count."""
    given = list(arguments)
    as_json, compat, told = "--json" in given, "--compat" in given, ""
    try:
        options, answer = _check(given)
        told = "" if answer.problems else _told(options, answer)
    except ConfigError as error:
        answer, compat = CheckResult(LoadReport(), error.problems), False
    problems = answer.problems
    if told:
        print(told)
    elif as_json:
        found = {"ok": False, "problems": [_plain_problem(each) for each in problems], "report": _plain_report(answer.report)}
        print(json.dumps(found, indent=2, default=str))
    else:
        if compat:
            print("\n".join(keys(answer.report)))
        complain(problems)
        print(f"{counted(len(problems), 'problem')}; nothing was started", file=sys.stderr)
    return 1 if problems else 0


def _parser() -> Parser:
    parser = Parser(
        prog="roll check [rlvr|agentic]",
        description="What a configuration will do, before it runs. The pipeline need not be named where the file's keys tell it.",
        epilog=OVERRIDES,
        allow_abbrev=False,
    )
    parser.add_config_options("rlvr_config_async")
    parser.add_argument("--json", action="store_true", help="the same as data")
    parser.add_argument("--compat", action="store_true", help="report what is not known here, instead of refusing it")
    parser.add_argument(
        "--device_memory_gib", type=float, help="plan for accelerators with this much memory (default: those of this machine)"
    )
    parser.add_argument("--flow", action="store_true", help="the graph of its stages instead, as Mermaid")
    parser.add_argument("--data", action="store_true", help="its prompts instead: lengths, tags, what reference answers earn")
    parser.add_argument("--graded", type=int, default=1000, metavar="N", help="--data: judge the answers of N rows (1000)")
    return parser


def _check(arguments: Sequence[str]) -> tuple[argparse.Namespace, CheckResult]:
    """Raises `ConfigError`."""
    given = list(arguments)
    pipeline = pipeline_named(given)
    options, overrides = _parser().parse_with_overrides(given)
    size = options.device_memory_gib
    if size is not None and not (math.isfinite(size) and size > 0):
        raise ConfigError([Problem("--device_memory_gib", size, "must be a number > 0", "e.g. 80")])
    from roll.prepare.compose import load

    folder = config_folder(options.config_path)
    config, report = load(folder, options.config_name, overrides, compat=options.compat, pipeline=pipeline, fetch=options.data)
    machine = this_machine()
    problems = check_config(config, planned_devices(config, machine))
    problems += [] if problems else [*_stages(config), *_audits(config)]
    problems += [
        Problem(note.key, note.value, f"is not supported: {note.message}", "leave it out", note.where) for note in report.lacking
    ]
    if problems:
        return options, CheckResult(report, report.located(problems))
    checked = check(config, machine, None if size is None else int(size * GIB))
    if checked.misfits:
        return options, CheckResult(report, report.located([*checked.misfits]))
    checked = replace(
        checked,
        remarks=(
            *checked.remarks,
            *missing_here(config),
            *_sandbox_here(config),
            *_audited(config),
        ),
    )
    prompts = () if options.flow or options.data else tuple(first_prompts(config))
    return options, CheckResult(report, [], checked, config, prompts)


def _told(options: argparse.Namespace, answer: CheckResult) -> str:
    """Returns the text about a configuration without problems. Raises `ConfigError`."""
    checked, config, report = answer.checked, answer.config, answer.report
    assert checked is not None and config is not None
    try:
        if options.flow:
            return _graph(config, options.json)
        if options.data:
            return _prompts(config, options)
    except ConfigError as error:
        raise ConfigError(report.located(error.problems)) from error
    if options.json:
        prompts = [asdict(each) for each in answer.prompts]
        found = {"ok": True, "problems": [], **asdict(checked), "first_prompts": prompts, "report": _plain_report(report)}
        return json.dumps(found, indent=2, default=str)
    lines = [*fitted(whole(checked.plan, checked.machine, checked.remarks, report)), *as_text(answer.prompts)]
    return visible("\n".join(lines), keep="\n")


def _graph(config: AnyConfig, as_json: bool) -> str:
    """Raises `ConfigError`."""
    # Heavy imports come after the configuration. A stage of the user's own lies where the command is given.
    sys.path.append(os.getcwd())
    from roll.cli.flow import graph_of, mermaid
    from roll.prepare.training_flow import AsyncTrainingFlow

    graph = graph_of(AsyncTrainingFlow(config).pipeline.outline(), config)
    return json.dumps(asdict(graph), indent=2) if as_json else mermaid(graph).rstrip("\n")


def _prompts(config: AnyConfig, options: argparse.Namespace) -> str:
    """Raises `ConfigError`."""
    if not isinstance(config, RLVRConfig):
        fix = "roll env check looks at environments; a run on rows tells at its start which it leaves out"
        raise ConfigError(
            [Problem("config_name", options.config_name, f"is of the {config.kind} pipeline, which has no prompts", fix)]
        )
    sys.path.append(os.getcwd())
    from roll.cli.data import as_text as data_text
    from roll.cli.data import inspected

    found = inspected(config, options.graded)
    if options.json:
        return json.dumps(list(found), indent=2)
    return visible("\n".join(line for each in found for line in data_text(each)), keep="\n")


def _stages(config: AnyConfig) -> Iterator[Problem]:
    """Yields problems of the places of the user's own stages. Their code is not looked for: it may be on another machine."""
    if config.flow.stages:
        from roll.prepare.outline import in_words_of, misplaced
        from roll.prepare.training_flow import AsyncTrainingFlow

        kind = AsyncTrainingFlow(config).pipeline.kind
        yield from misplaced(kind, config, in_words_of(kind, config, config.flow.stages))


def _audits(config: AnyConfig) -> Iterator[Problem]:
    if config.audit == "required":
        sys.path.append(os.getcwd())
        from roll.envs.kept_audits import refusals

        yield from refusals(config)


def _audited(config: AnyConfig) -> Iterator[str]:
    """Heavy only where audits are kept."""
    if os.path.isdir(AUDITS):
        sys.path.append(os.getcwd())
        from roll.envs.kept_audits import remarks

        yield from remarks(config)


def _sandbox_here(config: PPOConfig) -> Iterator[str]:
    if config.reward_configs:
        from roll.cli.doctor import sandbox_here

        yield from sandbox_here(config)


def _plain_problem(problem: Problem) -> dict[str, Any]:
    value = problem.value
    plain = value if value is None or isinstance(value, (bool, int, float, str, list, dict)) else str(value)
    return dict(_open(asdict(problem) | {"value": plain}))


def _open(data: object) -> Any:
    """A problem or a note as data, without secrets."""
    if not isinstance(data, dict):
        return data
    return data | {"value": redact_at(data["key"], data["value"]), "message": redact_text(data["message"])}


def _plain_report(report: LoadReport) -> dict[str, Any]:
    told = {name: value for name, value in asdict(report).items() if name != "origins"}
    return {name: [_open(each) for each in value] if isinstance(value, list) else value for name, value in told.items()}
