"""What `pip install .` brings is enough for every command of the README's first screen, up to the page over a run.

No environment is made: in each process that a command starts, Ray's included, whatever the plain installation does not bring is
hidden from imports.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from sysconfig import get_path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from reader import quick_lakes, quick_shop_agent

ROOT = Path(__file__).parents[2]
OF_EVERY_ENVIRONMENT = {"pip", "setuptools", "roll"}
HIDES = """\
import importlib.machinery
HIDDEN = frozenset({names!r})
find = importlib.machinery.PathFinder.find_spec
def find_spec(name, path=None, target=None):
    found = find(name, path, target)
    # What a package brings inside itself (Ray its psutil) is no installed package.
    is_installed = found is not None and (found.origin or "").startswith({site!r} + "/" + name.partition(".")[0])
    return None if name in HIDDEN and is_installed else found
importlib.machinery.PathFinder.find_spec = staticmethod(find_spec)
"""
pytestmark = [pytest.mark.slow, pytest.mark.ray]


def plain_requirements() -> list[Requirement]:
    lines = (line.split("#")[0].strip() for line in (ROOT / "requirements/base.txt").read_text().splitlines())
    return [Requirement(line) for line in lines if line]


def brought(wanted: list[Requirement]) -> set[str]:
    """The distributions that pip installs for these, of those that are installed here."""
    done, rest = set[tuple[str, str]](), [(each.name, extra) for each in wanted for extra in ("", *each.extras)]
    while rest:
        name, extra = rest.pop()
        if (canonicalize_name(name), extra) in done:
            continue
        done.add((canonicalize_name(name), extra))
        try:
            needs = [Requirement(line) for line in requires(name) or []]
        except PackageNotFoundError:
            continue
        met = [each for each in needs if each.marker is None or each.marker.evaluate({"extra": extra})]
        rest += [(each.name, more) for each in met for more in ("", *each.extras)]
    return {name for name, _ in done}


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> dict[str, str]:
    """The environment of a process that finds only what the plain installation brings."""
    kept = brought(plain_requirements()) | OF_EVERY_ENVIRONMENT
    modules = packages_distributions()
    hidden = {name for name, of in modules.items() if not kept & {canonicalize_name(each) for each in of}}
    assert {"deepspeed", "peft", "megatron", "pytest"} <= hidden, "extras are hidden"
    folder = tmp_path_factory.mktemp("plain")
    (folder / "sitecustomize.py").write_text(HIDES.format(names=sorted(hidden), site=get_path("purelib")))
    paths = os.pathsep.join((str(folder), str(ROOT)))
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


@pytest.fixture(scope="module")
def home(tmp_path_factory, embedded_task) -> Path:
    """An empty folder but for the embedded models, which take minutes."""
    folder = tmp_path_factory.mktemp("home")
    for name, made in (("cache", embedded_task), ("cache_frozen_lake", quick_lakes(folder / "lakes"))):
        shutil.copytree(made, folder / "examples/embedded" / name)
    quick_shop_agent(folder / "examples/embedded/cache_shop_agent")
    shutil.copytree(ROOT / "examples/agent_program", folder / "examples/agent_program")
    return folder


def roll(plain: dict[str, str], folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "roll.cli.main", *arguments]
    done = subprocess.run(command, cwd=folder, env=plain, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_doctor_starts_ray(plain, home):
    told = json.loads(roll(plain, home, "doctor", "--json"))
    assert {each["name"]: each["state"] for each in told["findings"]}["ray starts"] == "ok"


def test_the_demo_runs_on_ray_and_the_page_that_its_end_names_opens(plain, home):
    small = ("max_steps=1", "rollout_batch_size=4", "actor_train.training_args.per_device_train_batch_size=32", "eval_steps=0")
    told = roll(plain, home, "demo", *small)
    assert "roll ui output/rlvr_embedded_async" in told
    command = [sys.executable, "-m", "roll.cli.main", "ui", "output/rlvr_embedded_async", "--no-open"]
    with subprocess.Popen(command, cwd=home, env=plain, stdout=subprocess.PIPE, text=True) as page:
        assert page.stdout is not None and page.stdout.readline().startswith("http://127.0.0.1:")
        page.send_signal(signal.SIGINT)


def test_the_demo_of_agents_plays_its_environment(plain, home):
    roll(plain, home, "demo", "agentic", "--local", "max_steps=1", "eval_steps=0")


def test_an_agent_with_a_client_of_its_own_is_trained(plain, home):
    """Its interpreter finds no more than the run's."""
    own = f"custom_envs.Shop.program.environment.PYTHONPATH={plain['PYTHONPATH'].partition(os.pathsep)[0]}"
    small = ("max_steps=1", "eval_steps=0", "rollout_batch_size=8", "train_env_manager.group_filter_cls=null", own)
    train = "actor_train.training_args.per_device_train_batch_size=8"
    roll(plain, home, "train", "agentic", "--config_name", "agent_program_async", "--local", *small, train)


def test_init_makes_a_folder_that_trains(plain, home):
    shutil.copytree(home / "examples/embedded/cache", home / "my_run/embedded/cache")
    roll(plain, home, "init", "my_run")
    roll(plain, home / "my_run", "train", "rlvr", "--config_path", ".", "--config_name", "my_run", "--local", "max_steps=1")
