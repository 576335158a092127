"""Modules that another interpreter imports once for all programs: looked for there, before anything starts."""

import os
import sys

from hosts import REPO

from roll.core.configs.program import ProgramConfig
from roll.envs.program.check import installed_problems


def told(folder, *preload):
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec {sys._base_executable} "$@"\n')
    python.chmod(0o755)
    program = ProgramConfig(command=[str(python), "-c", "1"], reward="posted", python=str(python), preload=list(preload))
    return [(problem.key, problem.message) for problem in installed_problems(program, "program")]


def test_an_interpreter_without_this_project_is_taken_although_pythonpath_names_its_checkout(tmp_path, monkeypatch):
    """A starter gets this project's package in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(REPO))
    assert told(tmp_path, "urllib.request") == []


def test_a_module_that_only_this_processs_path_has_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    (tmp_path / "mine_alone.py").touch()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(REPO), str(tmp_path)]))
    ((key, message),) = told(tmp_path, "json", "mine_alone")
    assert key == "program.python" and "finds mine_alone by PYTHONPATH alone" in message
    monkeypatch.setenv("PYTHONPATH", str(REPO))
    assert told(tmp_path, "mine_alone") == [("program.preload", f"cannot be imported by {tmp_path / 'python'}")]
