"""Audits of a run's environments and rewards are kept in `roll-audits`, a folder where commands are given, a file each; so a run
can ask for them (`audit: required`) and none is done twice.

A file is named by what was audited, as the configuration has it. Its audit counts while that is made of the same: versions of
packages, the text of this package and of the user's own modules, the prompts."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import date
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from roll.core.configs.agentic import AgenticConfig
from roll.core.configs.derived import derive
from roll.core.configs.dotted_path import dotted_path
from roll.core.configs.ppo import AUDITS, PPOConfig
from roll.core.configs.problems import ConfigError, Problem
from roll.core.configs.worker import RewardConfig
from roll.core.data.sample import Prompt
from roll.core.data.untrusted import read_regular
from roll.core.errors import PromptFileError
from roll.envs.audit import CONSTANT_PAYS, AuditReport, as_mapping
from roll.envs.elsewhere import asked
from roll.envs.packages import KNOWN, interpreter
from roll.graders.references import spread
from roll.prompts.prompt_file import PromptRow, read_rows

FIX = f"roll env audit --config_name of this run, in this folder; it writes {AUDITS}"
LARGEST = 1 << 20


@dataclass(frozen=True, slots=True)
class Subject:
    """An environment or a reward of a run."""

    key: str
    code: str
    """Its `env_type`, or dotted path."""
    settings: Mapping[str, object]
    """All that the configuration says of it."""
    made_of: Callable[[int], Mapping[str, str]]
    """From a number of tasks to its parts, by name."""
    refused: str = ""
    """The reason why it cannot be audited; empty if it can."""

    @property
    def file(self) -> Path:
        return Path(AUDITS) / f"{_digest([json.dumps(self.settings, sort_keys=True, default=str)])}.json"


def subjects(config: PPOConfig) -> dict[str, Subject]:
    """Returns the subjects by tag, or by domain; none of a run on rows."""
    if isinstance(config, AgenticConfig):
        return {tag: _environment(config, tag) for tag in config.custom_envs}
    return {domain: _reward(config, domain, reward) for domain, reward in config.reward_configs.items()}


def _environment(config: AgenticConfig, tag: str) -> Subject:
    env, key = config.custom_envs[tag], f"custom_envs.{tag}"
    settings = {name: getattr(env, name) for name in ("env_type", "env_config", "max_steps", "success_at")}
    paths = (env.env_type, str(env.env_config.get("env_id", "")).rpartition(":")[0])
    refused = "" if env.program is None else "it is a program, which asks for answers itself"

    def made_of(tasks: int) -> Mapping[str, str]:
        return _code(interpreter(env.env_type, env.python, f"{key}.python"), paths)

    return Subject(key, env.env_type, settings, made_of, refused)


def _reward(config: PPOConfig, domain: str, reward: RewardConfig) -> Subject:
    code = reward.worker_cls if isinstance(reward.worker_cls, str) else dotted_path(reward.worker_cls)
    settings = {
        **{name: getattr(reward, name) for name in ("reward_args", "success_at")},
        **{"worker_cls": code, "shaping": asdict(reward.shaping), "domain": domain},
    }

    def made_of(tasks: int) -> Mapping[str, str]:
        asked_of = [f"{each.text}\0{each.ground_truth}\0{each.row}" for each in prompts(config, domain, tasks)]
        return {**_code(None, (code,)), "the prompts": _digest(asked_of)}

    refused = "the model that judges is on a run's devices" if reward.models else ""
    return Subject(f"rewards.{domain}", code, settings, made_of, refused)


def prompts(config: PPOConfig, domain: str, tasks: int) -> list[Prompt]:
    """Returns so many prompts of the domain, evenly spread. Raises `ConfigError`."""
    return chosen_prompts(read_rows(config.actor_train.data_args, only_tag=domain), domain, derive(config).tag_to_domain, tasks)


def chosen_prompts(rows: Iterator[PromptRow], domain: str, domains: Mapping[str, str], tasks: int) -> list[Prompt]:
    """`domains`: of each tag; empty: all rows are the domain's. Raises `ConfigError`."""
    try:
        mine = [row for row in rows if not domains or domains.get(row.tag) == domain]
    except PromptFileError as error:
        raise ConfigError([Problem("data_args", domain, str(error), error.fix)]) from error
    if not mine:
        raise ConfigError(
            [Problem(f"rewards.{domain}", domain, "has no prompts", "a domain that rows of data_args have as their tag")]
        )
    return [_prompt(mine[place], domain) for place in spread(len(mine), tasks)]


def _prompt(row: PromptRow, domain: str) -> Prompt:
    text = row.prompt if row.prompt is not None else str((row.messages or [{}])[-1].get("content", ""))
    return Prompt(row.id, [], text, row.tag, domain, row.ground_truth, dict(row.extra), list(row.messages or []))


@cache
def _code(python: str | None, paths: Sequence[str]) -> Mapping[str, str]:
    """Raises `ConfigError`."""
    found: Mapping[str, str] = asked(python, code_at, paths)
    return found


def code_at(paths: Sequence[str]) -> dict[str, str]:
    """Returns versions and digests of the code behind these dotted paths of environments and rewards in this interpreter."""
    found = {}
    for package in ("gymnasium", *KNOWN):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    modules = {"roll", *(re.split("[.:]", path)[0] for path in paths if "." in path or ":" in path)}
    return found | {module: _text_of(module) for module in sorted(modules - {""})}


def _text_of(module: str) -> str:
    """A digest of the Python files of a package; of a module that is one file, of all that lie beside it."""
    spec = None if module == "__main__" else find_spec(module)
    if spec is None or (spec.origin is None and not spec.submodule_search_locations):
        return "not there"
    if spec.submodule_search_locations:
        files = [path for root in spec.submodule_search_locations for path in Path(root).glob("**/*.py")]
    else:
        files = [*Path(str(spec.origin)).parent.glob("*.py")]
    return _digest([f"{path.name}\0{path.read_text('utf-8', 'replace')}" for path in sorted(files)])


def _digest(texts: Sequence[str]) -> str:
    found = hashlib.sha256()
    for text in texts:
        found.update(f"{len(text)}:{text}".encode("utf-8", "replace"))
    return found.hexdigest()[:16]


def keep(subject: Subject, report: AuditReport) -> None:
    """Raises `OSError`."""
    subject.file.parent.mkdir(exist_ok=True)
    made_of = subject.made_of(report.tasks)
    kept = {"settings": subject.settings, "made_of": made_of, "date": str(date.today()), "report": as_mapping(report)}
    written = subject.file.with_suffix(f".{os.getpid()}")
    written.write_text(json.dumps(kept, indent=1, default=str), encoding="utf-8")
    written.replace(subject.file)


@dataclass(frozen=True, slots=True)
class KeptAudit:
    tasks: int
    problems: Sequence[str]
    notes: Sequence[str]
    changed: Sequence[str]
    """Parts that have changed since the audit."""
    earned: Mapping[str, float]
    """Mean rewards by the kind of player."""
    exploits: Mapping[str, str]
    """Texts of players that earn too much, by kind."""


def kept(subject: Subject) -> KeptAudit | None:
    """Returns None if there is no audit that can be read. Raises `ConfigError`."""
    try:
        told = json.loads(read_regular(subject.file, LARGEST))
        report, then = told["report"], dict(told["made_of"])
        tasks, problems, notes = int(report["tasks"]), list(map(str, report["problems"])), list(map(str, report["notes"]))
        exploits = {str(kind): str(text) for kind, text in dict(report.get("exploits", {})).items()}
        earned = {str(kind): float(line["mean"]) for kind, line in dict(report["players"]).items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    now = subject.made_of(tasks)
    changed = [name for name in {**then, **now} if then.get(name) != now.get(name)]
    return KeptAudit(tasks, problems, notes, changed, earned, exploits)


def refusals(config: PPOConfig) -> Iterator[Problem]:
    """Yields problems for which a run that requires audits does not start. Raises `ConfigError`."""
    without = []
    for name, subject in subjects(config).items() if config.explores else ():
        found = None if subject.refused else kept(subject)
        if subject.refused:
            yield Problem(subject.key, subject.code, f"cannot be audited: {subject.refused}", "audit: optional")
        elif found is None:
            without.append(name)
        elif found.changed:
            yield Problem("audit", config.audit, f"{name} was audited before {', '.join(found.changed)} changed", FIX)
        elif found.problems:
            yield Problem(subject.key, subject.code, f"its audit: {found.problems[0]}", "mend what pays, or audit: optional")
    if without:
        yield Problem("audit", config.audit, f"there is no audit of {', '.join(without)}", FIX)


def shown(config: PPOConfig) -> dict[str, Mapping[str, object]]:
    """The audits that are kept, by tag or by domain, for the page of the run. Raises `ConfigError`."""
    found = {name: None if each.refused else kept(each) for name, each in subjects(config).items()}
    return {name: asdict(each) for name, each in found.items() if each is not None}


def remarks(config: PPOConfig) -> Iterator[str]:
    """Yields the findings of kept audits. Raises `ConfigError`."""
    for name, subject in subjects(config).items() if Path(AUDITS).is_dir() else ():
        found: Any = None if subject.refused else kept(subject)
        if found is not None and found.changed:
            yield f"{name} was audited before {', '.join(found.changed)} changed: {FIX}"
        elif found is not None:
            told = [*found.problems, *(note for note in found.notes if note.startswith(CONSTANT_PAYS))]
            yield from (f"the audit of {name} found: {each}" for each in told)
