"""`roll check` finds names of a user's module in its source: nothing of it runs."""

import importlib

import pytest

from roll.cli.own_names import objection

SOURCE = """
import math as maths
from os.path import join
LIMIT, (low, high) = 3, (1, 2)
if LIMIT > 2:
    def reward_of_length(sample): return 1.0
else:
    reward_of_length = None
try:
    import json
except ImportError:
    class Fallback: pass
for each in (1, 2): pass
with open(__file__) as file: text = (walrus := file.read())
def install():
    global made_later
    inner = 1
raise SystemExit("imported")
"""


@pytest.fixture
def has(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()

    def has(path, **sources):
        for name, text in sources.items():
            file = tmp_path / f"{name}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return objection(path, str(tmp_path)).replace(str(tmp_path), "")

    return has


@pytest.mark.parametrize(
    "name",
    [
        *("maths", "join", "LIMIT", "low", "high", "reward_of_length", "json", "Fallback", "each", "file", "text"),
        *("walrus", "install", "made_later"),
    ],
)
def test_what_an_import_binds_is_there(has, name):
    assert has(f"own_rewards.{name}", own_rewards=SOURCE) == has(f"own_rewards:{name}") == ""


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("reward_of_lenght", "/own_rewards.py has no reward_of_lenght; did you mean reward_of_length?"),
        ("inner", "/own_rewards.py has no inner; it has reward_of_length, Fallback, install"),
    ],
)
def test_a_name_that_no_import_binds_is_told_with_near_ones(has, name, told):
    assert has(f"own_rewards.{name}", own_rewards=SOURCE) == told


@pytest.mark.parametrize(
    "source",
    [
        "from os.path import *",
        "def __getattr__(name): return len",
        "globals().update(a=1)",
        "import sys\nsys.modules[__name__].a = 1",
    ],
)
def test_a_module_that_may_have_more_than_it_says_is_left_to_the_start(has, source):
    assert has("own_more.absent", own_more=source) == ""


def test_a_file_that_is_not_python_is_told_with_its_line(has):
    told = has("own_broken.reward", own_broken="x = 1\ndef reward(sample:\n    return 1.0\n")
    assert told.startswith("/own_broken.py is not Python: ") and told.endswith(" in line 2")


def test_a_package_has_what_its_init_binds_and_no_modules(has):
    files = {"own_package/__init__": "from .reward import reward", "own_package/reward": "def reward(sample): ..."}
    assert has("own_package.reward", **files) == has("own_package.reward.reward") == ""
    assert has("own_package.reward.rewards") == "/own_package/reward.py has no rewards; did you mean reward?"
    assert has("own_package.judge", **{"own_package/judge": ""}) == (
        "own_package.judge is a module: name a class or a function of it, own_package.judge.<name>"
    )
    assert has("own_folder.absent", **{"own_folder/here": ""}) == "/own_folder has no absent"
    assert has("own_folder.absent.reward").startswith("there is no module own_folder.absent in ")


@pytest.mark.parametrize("path", ["math.sqrtt", "os.path.joinn", "json.loads", "pytest.raisess", "zlib.crc"])
def test_modules_without_a_source_and_installed_ones_never_raise(has, path):
    assert "there is no module" not in has(path)
