"""`roll env audit`: rewards of players that cannot do the task, in an environment, by a reward on its prompts, in a whole run."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from roll.cli.options import OVERRIDES, Parser, answering, config_folder, keys_and_values, that_generates
from roll.core.configs.agentic import AgenticConfig, EnvConfig
from roll.core.configs.arguments import DataArguments
from roll.core.configs.problems import ConfigError, Problem
from roll.core.configs.redact import visible
from roll.core.configs.worker import RewardConfig
from roll.core.data.sample import Prompt
from roll.core.errors import PromptFileError
from roll.core.rewards.worker import worker_class
from roll.envs.audit import AuditReport, as_mapping, as_text, audit_env, audit_reward
from roll.envs.kept_audits import chosen_prompts, keep, prompts, subjects
from roll.envs.packages import interpreter, shorthand
from roll.plan.rules.loading import load_config
from roll.prepare.fitting import usual_columns
from roll.prompts.prompt_file import contents, read_rows

LONGEST_EPISODE = 200
"""Turns, where no tag says it."""


@answering
def audit(arguments: Sequence[str]) -> int:
    """Returns the exit code: 0 no reward pays for nonsense, 1 one does, 2 it cannot be tried."""
    parser = Parser(
        prog="roll env audit",
        description="What players earn that cannot do the task: who write nothing, repeat what they see, list all answers, ...",
        epilog=OVERRIDES,
        allow_abbrev=False,
    )
    parser.add_argument(
        "target",
        nargs="?",
        help="an environment, also package:id, or with --prompts a reward; with --config_name a tag or domain of that run",
    )
    parser.add_argument(
        "--config", nargs="*", default=[], metavar="KEY=VALUE", help="env_config, or reward_args; values are YAML"
    )
    parser.add_argument("--python", help="interpreter that the environment is in, by its name (roll env list) or path")
    parser.add_argument("--prompts", metavar="FILE", help="prompts with reference answers, for a reward")
    parser.add_argument("--config_path", help="folder of the YAML files of --config_name")
    parser.add_argument("--config_name", help="a run: all its environments, or rewards, are audited")
    parser.add_argument("--tasks", type=int, default=40, help="of each target (default: 40)")
    parser.add_argument("--seed", type=int, default=0, help="from which tasks and chance are derived (default: 0)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options, overrides = parser.parse_with_overrides(arguments)
    if options.tasks < 2:
        raise ConfigError([Problem("--tasks", options.tasks, "must be >= 2")])
    if overrides and not options.config_name:
        raise ConfigError([Problem("command line", overrides[0], "belongs to no configuration", "--config KEY=VALUE")])
    sys.path.insert(0, os.getcwd())  # a user's own code lies where the command is given
    reports = list(_reports(vars(options), overrides))
    if options.json:
        print(json.dumps({"ok": all(each.ok for each in reports), "targets": [as_mapping(each) for each in reports]}))
    else:
        print(visible("\n".join(line for each in reports for line in (*as_text(each), "")), keep="\n\t").rstrip())
    return 0 if all(each.ok for each in reports) else 1


def _reports(options: Mapping[str, Any], overrides: Sequence[str]) -> Iterator[AuditReport]:
    """Raises `ConfigError`."""
    target, given = options["target"], keys_and_values(options["config"])
    if options["config_name"]:
        yield from _of_run(options, overrides)
    elif not target:
        fix = "e.g. frozen_lake, or my_rewards.reward --prompts prompts.jsonl, or --config_name my_run"
        raise ConfigError([Problem("target", "", "is needed, or --config_name", fix)])
    elif options["prompts"]:
        reward = load_config(RewardConfig, {"worker_cls": target, "reward_args": given})
        rows = read_rows(_file(options["prompts"]), "--prompts", only_tag=target)
        yield _reward(target, reward, chosen_prompts(rows, target, {}, options["tasks"]), options)
    else:
        env_type, env_config = shorthand(target, given)
        env = EnvConfig(env_type=env_type, env_config=env_config, python=options["python"], max_steps=LONGEST_EPISODE)
        yield _env(target, env, "--python", options)


def _of_run(options: Mapping[str, Any], overrides: Sequence[str]) -> Iterator[AuditReport]:
    """Raises `ConfigError`."""
    from roll.prepare.compose import load

    loaded, _ = load(config_folder(options["config_path"]), options["config_name"], overrides)
    config = that_generates(loaded, options["config_name"])
    target, known = options["target"], subjects(config)
    if target is not None and target not in known:
        raise ConfigError([Problem("target", target, "is neither tag nor domain of this run", f"one of {', '.join(known)}")])
    chosen = {name: subject for name, subject in known.items() if target in (None, name)}
    for name, subject in chosen.items():
        if subject.refused:
            print(f"{name}: not audited: {subject.refused}", file=sys.stderr)
    names = [name for name, subject in chosen.items() if not subject.refused]
    if not names:
        raise ConfigError([Problem("--config_name", options["config_name"], "has nothing that can be audited here")])
    for name in names:
        if isinstance(config, AgenticConfig):
            report = _env(name, config.custom_envs[name], f"custom_envs.{name}.python", options)
        else:
            report = _reward(name, config.rewards[name], prompts(config, name, options["tasks"]), options)
        try:
            keep(chosen[name], report)
        except OSError as error:
            print(f"{name}: its audit is not kept: {error}", file=sys.stderr)
        yield report


def _env(name: str, env: EnvConfig, key: str, options: Mapping[str, Any]) -> AuditReport:
    """`key`: the key that names its interpreter. Raises `ConfigError`."""
    python, tasks, seed = interpreter(env.env_type, env.python, key), options["tasks"], options["seed"]
    return audit_env(name, env.env_type, env.env_config, tasks, seed, env.max_steps, env.success_at, python)


def _reward(name: str, reward: RewardConfig, prompts: Sequence[Prompt], options: Mapping[str, Any]) -> AuditReport:
    """Raises `ConfigError`."""
    try:
        worker = worker_class(reward.worker_cls)(asdict(reward))
        return asyncio.run(audit_reward(name, worker, prompts, options["seed"], reward.success_at))
    except (ValueError, OSError, RuntimeError, ImportError) as error:
        raise ConfigError([Problem("worker_cls", str(reward.worker_cls), f"cannot be tried: {error}")]) from error


def _file(name: str) -> DataArguments:
    """Raises `ConfigError`."""
    try:
        _, first = next(contents(DataArguments(file_name=name), "--prompts"), ("", {}))
    except PromptFileError as error:
        raise ConfigError([Problem("--prompts", name, str(error), error.fix)]) from error
    columns = usual_columns(first, "--prompts", name)
    return load_config(DataArguments, {"file_name": name, **columns})
