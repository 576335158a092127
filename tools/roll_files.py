"""Which files of ROLL's would start here: `python tools/roll_files.py FOLDER`.

A line for each YAML file below the folder that is a run of an RLVR or agentic pipeline: whether it loads, whether it would start
where its models, data, packages and devices are, how many differences are told, and what keeps it from starting. The exit code
is 1 if a file ended in anything but an answer.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from roll.compat.roll.pipelines import OTHER_PIPELINE
from roll.core.configs.agentic import AgenticConfig
from roll.core.configs.backend_arguments import MegatronConfig
from roll.core.configs.ppo import PPOConfig
from roll.core.configs.problems import ConfigError, Problem
from roll.core.distributed.machine import Machine
from roll.envs.registry import BUILT_IN, config_problems, env_class
from roll.plan.load_report import LoadReport
from roll.plan.rules.validation import check_config
from roll.prepare.check import planned_devices
from roll.prepare.compose import load
from roll.strategies.train.megatron.supported import DENSE, MIXTURES

ROLES = ("actor_train", "actor_infer", "student_train", "student", "sft_train")
"""A file with none of them is a part that others include."""
_FAMILIES = {"qwen3-next": "qwen3_next", "qwen3.5": "qwen3_5"}
"""The model_type of models that no Megatron role trains, by a part of their names: their folders are not there to be read."""
_VARIABLE = re.compile(r"\$\{oc\.env:\s*(\w+)\s*\}")
_A_NODE = Machine(cpus=128, memory=1 << 40, accelerators=(80 << 30,) * 8)


@dataclass(frozen=True, slots=True)
class Answer:
    name: str
    pipeline: str
    """Empty for a file of another pipeline."""
    loads: bool
    problems: list[Problem]
    """Why it does not load, else why it would not start."""
    told: int = 0
    """Differences that the report of `roll check --compat` names."""
    crash: str = ""

    @property
    def starts(self) -> bool:
        return self.loads and not self.problems

    def lines(self) -> Iterator[str]:
        state = "starts" if self.starts else "loads" if self.loads else "refused"
        yield f"{state:8} {self.told:4} told  {self.name}{f'  CRASH {self.crash}' if self.crash else ''}"
        yield from (f"    {problem}" for problem in self.problems)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args(arguments).folder
    answers = [answer(path, folder) for path in sorted(folder.rglob("*.yaml")) if _is_run(path)]
    ours, others = [each for each in answers if each.pipeline or each.crash], [each for each in answers if not each.pipeline]
    for each in answers:
        print("\n".join(each.lines()))
    print("\nfiles kept from starting, by key:")
    for (key, message), count in _reasons(ours).most_common():
        print(f"{count:5}  {key}: {message}")
    loads, starts = sum(each.loads for each in ours), sum(each.starts for each in ours)
    print(f"\n{len(ours)} files of RLVR and agentic text pipelines: {loads} load, {starts} would start; {len(others)} of others")
    return int(any(each.crash for each in answers))


def answer(path: Path, root: Path) -> Answer:
    name = str(path.relative_to(root))
    for variable in _VARIABLE.findall(path.read_text()):
        os.environ.setdefault(variable, "given")
    try:
        config, report = load(path.parent, path.stem, compat=True)
        problems = [*check_config(config, planned_devices(config, _A_NODE)), *_models(config)]
        if isinstance(config, AgenticConfig):
            problems += _environments(config)
    except ConfigError as error:
        other = any(OTHER_PIPELINE in problem.message for problem in error.problems)
        return Answer(name, "" if other else "unknown", False, error.problems)
    except Exception as error:  # boundary: the tool is here to find these
        return Answer(name, "", False, [], crash=f"{type(error).__name__}: {error}")
    problems = report.located(problems) + [
        Problem(note.key, note.value, note.message, where=note.where) for note in report.lacking
    ]
    return Answer(name, "agentic" if isinstance(config, AgenticConfig) else "rlvr", True, problems, _told(report))


def _told(report: LoadReport) -> int:
    return sum(map(len, (report.aliased, report.without_effect, report.lacking, report.unknown, report.defaults)))


def _models(config: PPOConfig) -> Iterator[Problem]:
    """What the Megatron back end says of a model once its folder is there."""
    for name, role in config.configured_roles().items():
        kind = next((kind for part, kind in _FAMILIES.items() if part in config.model_folder(role).lower()), None)
        if kind is not None and kind not in DENSE + MIXTURES and isinstance(role.strategy_args.options, MegatronConfig):
            yield Problem(f"{name}.model_args", config.model_folder(role), f"the Megatron back end does not support {kind}")


def _environments(config: AgenticConfig) -> Iterator[Problem]:
    """What the built-in environments say of their keys."""
    for tag, env in config.custom_envs.items():
        if env.env_type in BUILT_IN:
            yield from config_problems(env_class(env.env_type), env.env_config, f"custom_envs.{tag}.env_config")


def _is_run(path: Path) -> bool:
    return any(re.match(rf"({'|'.join(ROLES)})\s*:", line) for line in path.read_text(errors="replace").splitlines())


def _reasons(answers: Sequence[Answer]) -> Counter[tuple[str, str]]:
    """Of how many files a key and its message keep the start; names of the user's own are not told apart."""
    return Counter(reason for each in answers for reason in {(_plain(p.key), _plain(p.message)) for p in each.problems})


def _plain(text: str) -> str:
    return re.sub(r"\d+", "N", re.sub(r"(custom_envs|rewards)\.\w+", r"\1.<name>", text))


if __name__ == "__main__":
    sys.exit(main())
