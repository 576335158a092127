"""No key is dead, and configurations are pure values."""

import ast
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path

import pytest

from roll.core.configs.agentic import AgenticConfig
from roll.core.configs.arguments import STRATEGY_CONFIGS
from roll.core.configs.fields import walk
from roll.core.configs.rlvr import RLVRConfig

ROOT = Path(__file__).parents[2] / "roll"
CONFIGS = ROOT / "core" / "configs"
# Files that show or judge every key: reading a key there does not make it do anything.
LOOK_ONLY = (
    "plan/rules/*.py core/configs/losses.py core/configs/estimators.py core/configs/fields.py "
    "plan/*.py compat/roll/*.py cli/check.py prepare/check.py"
)
HANDED_ON = {"zero_optimization": "DeepSpeedConfig.zero_json hands the block on by asdict, to DeepSpeed itself"}
ONLY_CHECKED = {
    "lora_dropout": "must be 0 (docs_roll/backends.md)",
    **dict.fromkeys(
        (
            "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_clipping", "scheduler", "fp16",
            "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer",
        ),
        "a key of every DeepSpeed JSON that another key here sets: deepspeed_problems refuses a contradiction",
    ),
}  # fmt: skip


@cache
def attributes_read(path):
    return {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}


@pytest.mark.parametrize("cls", [RLVRConfig, AgenticConfig, *dict.fromkeys(STRATEGY_CONFIGS.values())])
def test_every_key_is_read_by_something(cls):
    looking = set()
    for pattern in LOOK_ONLY.split():
        found = set(ROOT.glob(pattern))
        assert found, f"{pattern} excludes nothing any more"
        looking |= found
    read = set().union(*(attributes_read(path) for path in ROOT.rglob("*.py") if path not in looking))
    dead = {
        path
        for path, item, _ in walk(cls)
        if item.name not in read | ONLY_CHECKED.keys() and not any(path.startswith(f"{block}.") for block in HANDED_ON)
    }
    assert dead == set()


def test_what_is_excused_is_a_key():
    known = {path for cls in (RLVRConfig, *STRATEGY_CONFIGS.values()) for path, _, _ in walk(cls)}
    names = {path.rpartition(".")[2] for path in known}
    assert set(ONLY_CHECKED) <= names and set(HANDED_ON) <= names


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.py")), ids=lambda path: path.name)
def test_a_configuration_module_reads_no_file_environment_clock_or_random_number(path):
    tree = ast.parse(path.read_text())
    imported = {alias.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {(node.module or "").split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported.isdisjoint({"os", "random", "time", "datetime", "socket", "subprocess", "tempfile", "torch", "numpy", "yaml"})
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert names.isdisjoint({"open", "eval", "exec", "Path", "input", "globals"})


@pytest.mark.parametrize("cls", [RLVRConfig, AgenticConfig, *dict.fromkeys(STRATEGY_CONFIGS.values())])
def test_configurations_are_frozen_and_do_nothing_when_made(cls):
    classes = {cls}
    for _, _, hint in walk(cls):
        classes |= {
            member for member in (hint, *getattr(hint, "__args__", ())) if isinstance(member, type) and is_dataclass(member)
        }
    for each in classes:
        assert each.__dataclass_params__.frozen, each
        assert not hasattr(each, "__post_init__"), each
        assert fields(each)
