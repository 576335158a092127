"""`roll train`, `roll eval`, `roll demo` and the start scripts of ROLL: from the command line to a running pipeline."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from roll.cli.best_checkpoint import named_best
from roll.cli.options import (
    DEFAULT_FOLDER,
    INTERRUPTED,
    OVERRIDES,
    Parser,
    answering,
    config_folder,
    fitted,
    is_start_script,
    pipeline_named,
)
from roll.compat.roll.pipelines import AnyConfig, Pipeline
from roll.core.configs.problems import MISSING_VALUE, ConfigError, Problem
from roll.core.configs.redact import HIDDEN, redact, visible
from roll.core.distributed.machine import this_machine
from roll.plan.load_report import LoadReport
from roll.plan.text import condensed
from roll.platform.garbage import collection_paused, searching_young_objects, spare_what_is_there
from roll.platform.process_setup import set_defaults
from roll.prepare.packaged import embedded_model, missing_model
from roll.prompts.hub import asks_the_hub

if TYPE_CHECKING:
    from roll.core.flow.custom_stage import CustomStage

FEWEST_FILES = {"one process": 32, "Ray": 256}
"""With fewer open files a model may not be loaded (16 do not do, 20 do), and Ray waits half a minute and then blames something
else."""
EXIT_CODES = {"finished": 0, "failed": 1, "stopped": 3, "interrupted": INTERRUPTED}
DEFAULT_CONFIG = {
    "rlvr": "rlvr_config_async", "agentic": "agent_val_frozen_lake_async", "sft": "sft_config", "dpo": "dpo_config",
}  # fmt: skip
DESCRIPTIONS = {
    "rlvr": "Reinforcement learning with verifiable rewards.",
    "agentic": "Reinforcement learning of agents in environments.",
    "sft": "Supervised fine-tuning on rows of messages.",
    "dpo": "Preference optimisation on pairs of answers.",
}


class _Formatter(logging.Formatter):
    """Escapes messages, which may quote a model, an environment or a foreign package."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record), keep="\n\t")


def parser_of(pipelines: Sequence[str], prog: str) -> Parser:
    """Returns the parser of one pipeline's options; for a help text, of several."""
    parser = Parser(
        prog=prog, description=" ".join(DESCRIPTIONS[each] for each in pipelines), epilog=OVERRIDES, allow_abbrev=False
    )
    parser.add_config_options(" or ".join(DEFAULT_CONFIG[each] for each in pipelines))
    parser.add_argument("--local", action="store_true", help="one process, no Ray: for debuggers and single machines")
    parser.add_argument("--compat", action="store_true", help="report what is not known here, instead of refusing it")
    parser.add_argument("-m", "--multirun", action="store_true", help="a run of each combination: -m key=a,b other=range(0,3)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="-m: runs side by side (default: 1)")
    parser.add_argument("--cfg", choices=["job"], help="print the composed configuration, and start nothing")
    parser.add_argument("--info", action="store_true", help="print what the configuration is composed of, and start nothing")
    return parser


def parse(arguments: Sequence[str], pipeline: str, prog: str) -> tuple[argparse.Namespace, list[str]]:
    """Raises `ConfigError`."""
    return parser_of([pipeline], prog).parse_with_overrides(arguments)


@answering
def main(arguments: Sequence[str], prog: str = "") -> int:
    """The first argument may be the pipeline; the default is `rlvr`. `prog`: how the user called this, unless it
    was `roll train` or a start script.

    Returns the exit code: 0 finished, 1 failed, 2 bad configuration, 3 stopped by an alarm, 130 interrupted."""
    given = list(arguments)
    prog = prog or (f"python {sys.argv[0]}" if is_start_script(sys.argv[0]) else "roll train")
    named = pipeline_named(given)
    if named is None and prog == "roll train" and {"-h", "--help"} & set(given):
        parser_of(list(DEFAULT_CONFIG), f"roll train {'|'.join(DEFAULT_CONFIG)}").print_help()
        return 0
    pipeline = named or "rlvr"
    return _train(pipeline, given, prog if prog.endswith(".py") else f"{prog} {pipeline}")


def _train(pipeline: Pipeline, arguments: Sequence[str], prog: str) -> int:
    """Raises `ConfigError`."""
    options, overrides = parse(arguments, pipeline, prog)
    if options.cfg or options.info:
        return _told(options, overrides)
    prepare_process()
    if options.multirun:
        return _multirun(pipeline, options, overrides, prog)
    return run(*_loaded(pipeline, options, overrides, prog), options.local)


def _loaded(pipeline: Pipeline, options: argparse.Namespace, overrides: Sequence[str], prog: str) -> tuple[AnyConfig, LoadReport]:
    """Raises `ConfigError`."""
    from roll.prepare.compose import load_to_start

    folder = config_folder(options.config_path)
    config, report = load_to_start(folder, options.config_name, overrides, compat=options.compat, pipeline=pipeline)
    given = config.kind
    if given != pipeline:
        before, _, after = prog.rpartition(pipeline)
        fix = f"{before}{given}{after}"
        raise ConfigError([Problem("config_name", options.config_name, f"is the configuration of the {given} pipeline", fix)])
    return config, report


def _told(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Prints the answers to Hydra's options: `--cfg job`, secrets hidden, and `--info`. Raises `ConfigError`."""
    from roll.prepare.compose import compose
    from roll.prepare.yaml_files import files

    folder, name = config_folder(options.config_path), options.config_name
    if options.cfg:
        lines = [yaml.safe_dump(redact(compose(folder, name, overrides)), sort_keys=False, allow_unicode=True).rstrip("\n")]
    else:
        read = [f"  {folder / file}" for file in files(folder, name.removesuffix(".yaml"))]
        lines = ["files, the first one last:", *read, "overrides:", *(f"  {each}" for each in overrides or ["none"])]
    print(visible("\n".join(lines), keep="\n"))
    return 0


def _multirun(pipeline: Pipeline, options: argparse.Namespace, overrides: Sequence[str], prog: str) -> int:
    """Raises `ConfigError` with the problems of all combinations, before the first run."""
    from roll.cli.sweep import combinations, multirun
    from roll.prepare.check import contradictions

    if options.jobs < 1:
        raise ConfigError([Problem("--jobs", options.jobs, "must be at least 1")])
    made, problems = combinations(overrides), dict[str, Problem]()
    configs = []
    for each in made:
        try:
            config, report = _loaded(pipeline, options, each.overrides, prog)
            found = report.located([*contradictions(config, this_machine()), *missing_model(config.pretrain)])
            configs.append(config)
        except ConfigError as error:
            found = error.problems
        problems |= {str(problem): problem for problem in found}
    if problems:
        raise ConfigError([*problems.values()])
    name = options.config_name if "exp_name" in made[0].values else configs[0].exp_name
    folder = Path(configs[0].output_dir) / name
    flags = [flag for flag in ("--local", "--compat") if getattr(options, flag[2:])]
    place = ["--config_path", str(config_folder(options.config_path)), "--config_name", options.config_name]
    first = [sys.executable, "-m", "roll.cli.main", "train", pipeline, *place, *flags]
    return multirun(
        made, folder, options.jobs, lambda one: [*first, *one.overrides, f"output_dir={folder}", f"exp_name={one.name}"]
    )


def prepare_process() -> None:
    """Sets the process up before a configuration is loaded."""
    # A reward or an environment of the user's own lies where the command is given; it never hides what is installed.
    sys.path.append(os.getcwd())
    set_defaults(this_machine())
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


def run(config: AnyConfig, report: LoadReport, local: bool, stages: Sequence[CustomStage] = ()) -> int:
    """Returns the exit code. `stages`: besides those of the configuration. Raises `ConfigError`."""
    from roll.prepare.check import contradictions

    print(visible(f"reads {report.file}"))
    if report.summary:
        print(report.summary)
    for note in report.told:
        print(f"  ! {note}")
    if not asks_the_hub(config):  # nothing is fetched that was not asked for
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # The devices of a cluster are known when the run has joined it.
    joins = not local and os.environ.get("RAY_ADDRESS", "local") != "local"
    if problems := (not joins and contradictions(config, this_machine())) or missing_model(config.pretrain):
        raise ConfigError(report.located(problems))
    try:
        return _run(config, local, stages)
    except ConfigError as error:
        raise ConfigError(report.located(error.problems)) from error


def _run(config: AnyConfig, local: bool, stages: Sequence[CustomStage]) -> int:
    """Raises `ConfigError`."""
    if problem := too_few_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0], local):
        raise ConfigError([problem])
    from roll.core.record.run_lock import lock_run
    from roll.prepare.check import check

    with closing(lock_run(config)) as lock:
        # Heavy imports come after the configuration and the lock: a typo and a run that is there already are answered first.
        with collection_paused():
            from roll.prepare.training_flow import AsyncTrainingFlow
        spare_what_is_there()
        searched = nullcontext() if local else searching_young_objects()
        with searched, AsyncTrainingFlow(config, local=local, stages=stages).pipeline.ready(lock) as ready:
            checked = check(ready.prepared.config, this_machine())
            known = {*ready.prepared.warnings, *ready.prepared.remarks}
            remarks = [line for line in checked.remarks if line not in known]
            print(visible("\n".join(fitted(condensed(checked.plan, remarks))), keep="\n"))
            summary = ready.to_the_end()
    if summary["status"] == "failed":
        print(f"error: {visible(summary['reason'])}", file=sys.stderr)
    return EXIT_CODES[summary["status"]]


def too_few_files(limit: int, local: bool) -> Problem | None:
    """Returns a problem before a start that would fail for want of open files."""
    kind = "one process" if local else "Ray"
    least = FEWEST_FILES[kind]
    if limit == resource.RLIM_INFINITY or limit >= least:
        return None
    message = f"is too few open files: a run with {kind} needs {least} at least"
    return Problem("ulimit -n", limit, message, "ulimit -n 4096")


OWN = "config"
"""The name of the configuration that a run leaves in its folder."""


@answering
def evaluate(arguments: Sequence[str]) -> int:
    """Returns the exit code, that of a run: 1 also if nothing is known of a model on a set."""
    description = "Evaluates models on validation sets; the results are in <output_dir>/<exp_name>/bench."
    parser = Parser(prog="roll eval", description=description, epilog=OVERRIDES, allow_abbrev=False)
    parser.add_argument(
        "--checkpoint", action="append", default=[], metavar="FOLDER",
        help="a run (all its checkpoints), a checkpoint, best or pretrain; or several of them (default: bench_checkpoints)",
    )  # fmt: skip
    parser.add_argument("--config_path", help=f"folder of the YAML files (default: {DEFAULT_FOLDER})")
    parser.add_argument("--config_name", help="name of the YAML file (default: the configuration of the checkpoint's own run)")
    parser.add_argument("--local", action="store_true", help="one process, no Ray")
    parser.add_argument("--json", action="store_true", help="print one JSON object; all else goes to standard error")
    return _evaluate(*parser.parse_with_overrides(arguments))


def _evaluate(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Raises `ConfigError`."""
    prepare_process()
    from roll.core.record.run_identity import started_in
    from roll.prepare.compose import load_to_start

    if options.config_name is None and options.config_path is not None:
        there = sorted(path.stem for path in config_folder(options.config_path).glob("*.yaml"))
        message = f"is not given, and {options.config_path} is a folder of them"
        raise ConfigError([Problem("--config_name", MISSING_VALUE, message, ", ".join(there) or "it has none")])
    if options.config_name is None:
        options.checkpoint = [str(named_best(each)) for each in options.checkpoint]
        folder, name = _own_configuration(options.checkpoint), OWN
        if (started := started_in(folder)) not in (None, Path.cwd()):
            what = f"relative paths of {folder / OWN}.yaml were meant from {started}, where the run was started, not from here"
            print(f"note: {visible(what)}", file=sys.stderr)
    else:
        folder, name = config_folder(options.config_path), options.config_name
    config, report = load_to_start(folder, name, overrides)
    named = options.checkpoint or config.bench_checkpoints
    bench = replace(config, mode="bench", bench_checkpoints=named, resume_from_checkpoint=False)
    from roll.core.record.live_files import SUMMARY

    with contextlib.redirect_stdout(sys.stderr) if options.json else nullcontext():
        code = run(bench, report, options.local)
    if options.json:
        print((Path(bench.run_dir) / SUMMARY).read_text())
    return code


def _own_configuration(checkpoints: Sequence[str]) -> Path:
    """Returns the folder of the first checkpoint's run. Raises `ConfigError`."""
    for path in map(Path, checkpoints):
        for folder in (path, path.absolute().parent.parent):
            written = folder / f"{OWN}.yaml"
            if written.is_file():
                if HIDDEN in written.read_text():
                    message = f"{written} hides secrets of the run: give the configuration that it was started with"
                    raise ConfigError([Problem("--config_name", MISSING_VALUE, message, "e.g. --config_name my_run")])
                return folder.resolve()
    message = "is not given, and there is no checkpoint in the folder of its run"
    raise ConfigError([Problem("--config_name", MISSING_VALUE, message, "name the configuration that has the validation sets")])


@answering
def demo(arguments: Sequence[str]) -> int:
    """Makes the embedded model where it is missing, then trains it. Options, overrides and exit code are those of `roll train`;
    1 also says that the model cannot be made."""
    given = list(arguments)
    pipeline = given.pop(0) if given and given[0] in DEFAULT_CONFIG else "rlvr"
    try:
        _make_model(pipeline, given)
    except subprocess.CalledProcessError as error:
        print(f"error: the embedded model could not be made: {error}", file=sys.stderr)
        return EXIT_CODES["failed"]
    return main([pipeline, *given], prog="roll demo")


def _make_model(pipeline: str, arguments: Sequence[str]) -> None:
    """Raises `ConfigError` and `subprocess.CalledProcessError`."""
    options, overrides = parse(arguments, pipeline, f"roll demo {pipeline}")
    from roll.prepare.compose import load_to_start

    if options.multirun:
        from roll.cli.sweep import combinations

        overrides = list(combinations(overrides)[0].overrides)
    folder = config_folder(options.config_path)
    config, _ = load_to_start(folder, options.config_name, overrides, compat=options.compat)
    wanted = embedded_model(config.pretrain)
    if wanted is not None and not wanted.is_made:
        wanted.make()
