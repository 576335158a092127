"""Somebody who types what the documentation prints, in a checkout of their own with models, runs and a configuration."""

import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from dataclasses import replace
from enum import Enum
from pathlib import Path
from unittest.mock import patch

from made_models import script
from printed import ROOT, Command, blocks
from run_files import make_run

from roll.cli.main import main
from roll.platform.local_backend import LocalBackend
from roll.prepare.compose import compose
from roll.prepare.pipeline import Pipeline


class Until(Enum):
    OPTIONS = "its options are read"
    FIRST_WORKER = "everything is read and checked, and a worker would start, without Ray"
    CHECK = "`roll check` has read its configuration"


class Reached(Exception):
    """As far as a command is to be started."""


class UnknownProgram(Exception):
    """Nobody has said how it is started here."""


def make_checkout(home: Path, embedded: Path, lakes: Path) -> Path:
    """`embedded`, `lakes`: what the makers of the embedded models make, quickly. Of prompts there are few, to be read soon."""
    shutil.copytree(ROOT / "examples", home / "examples", ignore=shutil.ignore_patterns("cache*", "__pycache__", "output"))
    for name in ("benchmarks", "roll", "tests", "tools"):
        (home / name).symlink_to(ROOT / name)
    (home / "examples/embedded/cache_frozen_lake").symlink_to(lakes)
    quick_shop_agent(home / "examples/embedded/cache_shop_agent")
    # Without a chat template: the demos need none, and each start would try it in a process of its own.
    cache = home / "examples/embedded/cache"
    shutil.copytree(embedded / "model", cache / "model", ignore=shutil.ignore_patterns("chat_template.jinja"))
    for name in ("train.jsonl", "validation.jsonl"):
        rows = (embedded / name).read_text().splitlines(keepends=True)[:200]
        (cache / name).write_text("".join(rows))
        (home / name).write_text("".join(rows).replace('"tag": "arithmetic"', '"tag": "math"'))
    (home / "my_configs").mkdir()
    own = next(text for page, text in blocks("yaml") if page == ROOT / "README.md")
    (home / "my_configs/my_run.yaml").write_text(re.sub(r"pretrain: \S+", f"pretrain: {embedded / 'model'}", own))
    for name in ("my_run", "a", "b", "rlvr_embedded_async"):
        make_run(home / "output" / name, steps=40)
    played = make_run(home / "output/agentic_embedded_async", **compose(ROOT / "examples/config", "agent_val_frozen_lake_async"))
    (played / "checkpoints/step-60/trainer").mkdir(parents=True)
    (played / "checkpoints/step-60/trainer/model").symlink_to(lakes / "model")
    return home


def quick_lakes(out: Path) -> Path:
    """The embedded agent for frozen lakes, taught for a moment only."""
    maker = script("embedded", "make_frozen_lake")
    made: Path = maker.make(out, settings=replace(maker.SETTINGS, episodes=60, learn_steps=2, batch_size=4))
    return made


def quick_shop_agent(out: Path) -> Path:
    """The embedded agent that calls a tool, as quickly."""
    maker = script("embedded", "make_shop_agent")
    made: Path = maker.make(out, settings=maker.Settings(episodes=40, learn_steps=2, batch_size=4))
    return made


def type_(command: Command, home: Path, until: Until | None) -> int:
    """In this process. Returns the exit code, 0 where the command went as far as it should. Raises `UnknownProgram`."""
    words = shlex.split(re.sub(r" [|>] .*|^([A-Z_]+=\S+ )+", "", command.meant))
    with _as_found(home), chdir(home / command.folder):
        _write_modules(command)
        try:
            code = _start(words, home, until)
        except SystemExit as ended:
            code = int(ended.code or 0)
        except Reached:
            return 0
    assert until in (None, Until.CHECK) or code or "--help" in words, f"`{command.line}` ended before this: {until}"
    return code


def _start(words: list[str], home: Path, until: Until | None) -> int:
    if until is Until.CHECK:
        return max(main(["check", *options]) for options in _options(words, home))
    with _stopped(until):
        program, *rest = [*words, f"output_dir={home}/typed"] if until is Until.FIRST_WORKER else words
        if program == "roll":
            return main(rest)
        if program != "python":
            raise UnknownProgram(program)
        sys.argv[:] = rest
        sys.path.insert(0, str(Path(rest[0]).parent.resolve()))
        runpy.run_path(rest[0], run_name="__main__")
        return 0


@contextmanager
def _stopped(until: Until | None) -> Iterator[None]:
    """What is not to go on raises `Reached`."""

    def parse(parser: ArgumentParser, *arguments: object) -> None:
        read(parser, *arguments)
        raise Reached

    def made(pipeline: object, *_: object) -> None:
        raise Reached

    read = ArgumentParser.parse_args
    if until is Until.OPTIONS:
        with patch.object(ArgumentParser, "parse_args", parse):
            yield
    elif until is Until.FIRST_WORKER:
        with patch.object(Pipeline, "_backend", lambda *_: LocalBackend()), patch.object(Pipeline, "_made", made):
            yield
    else:
        yield


def _options(words: list[str], home: Path) -> list[list[str]]:
    """Those of the runs that a command starts. A script is run, with a `python` that only says how it was called."""
    if words[0] != "bash":
        return [[word for word in words[2:] if word not in ("rlvr", "agentic")]]
    programs, calls = home / "programs", home / "calls.txt"
    programs.mkdir(exist_ok=True)
    (programs / "python").write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >> {calls}\n')
    (programs / "python").chmod(0o755)
    calls.write_text("")
    words[1:2] = [str(home / words[1])]
    subprocess.run(words, env={"PATH": f"{programs}:{os.environ['PATH']}"}, check=True, timeout=60)
    called = [line.split() for line in calls.read_text().splitlines()]
    assert called and all(Path(call[0]).is_file() for call in called), called
    return [call[1:] for call in called]


def _write_modules(command: Command) -> None:
    """Those of the reader's own that a command names, from the page that prints it."""
    for module, name in re.findall(r"\b(my_\w+)\.(\w+)", command.line):
        for page, text in blocks("python"):
            if page == ROOT / command.page and re.search(rf"^(class|def) {name}\b", text, re.MULTILINE):
                Path(f"{module}.py").write_text(text)


@contextmanager
def _as_found(home: Path) -> Iterator[None]:
    """What a command does to the process is undone."""
    path, arguments, modules = [*sys.path], [*sys.argv], {*sys.modules}
    with patch.dict(os.environ):
        try:
            yield
        finally:
            sys.path[:], sys.argv[:] = path, arguments
            for name in {*sys.modules} - modules:
                file = getattr(sys.modules[name], "__file__", None) or ""
                if file.startswith((str(home), str(ROOT / "examples"), str(ROOT / "benchmarks"))):
                    del sys.modules[name]
