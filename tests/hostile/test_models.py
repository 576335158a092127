"""A model folder from a stranger is refused in one line, before a worker starts, and its code never runs."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import shutil
import sys
from functools import partial
from pathlib import Path

import pytest
from hostile_models import CASES, with_code
from tiny_models import numbered_tokenizer, tiny_qwen2

from roll.core.configs.problems import Collector, ConfigError
from roll.strategies.model_folder import load_config, load_model, open_model, open_tokenizer
from roll.strategies.train.value_head import load_value_model

HARMLESS = {
    "code under a known name of a model",
    "code in the tokenizer",
    "socket among the files",
    "template that counts in one call",
}
"""Folders with something strange that nobody uses."""


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good") / "model"
    tiny_qwen2(30).save_pretrained(folder)
    numbered_tokenizer(30).save_pretrained(folder)
    return folder


@pytest.fixture
def copied(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "model"))


@pytest.fixture(autouse=True)
def yes_on_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks whether code may run is told that it may."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 20))


def complaint(folder: Path) -> str:
    """What a run says of the folder: one line, empty if it may start."""
    collect = Collector()
    collect("pretrain", str(folder), partial(open_model, str(folder)), "name another")
    try:
        collect.raise_if_any()
    except ConfigError as error:
        (line,) = str(error).splitlines()
        return line
    return ""


def test_a_good_folder_may_start(copied: Path) -> None:
    assert complaint(copied) == ""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", sorted(set(CASES) - HARMLESS))
def test_refused_in_one_line(copied: Path, name: str) -> None:
    change, says = CASES[name]
    change(copied)
    line = complaint(copied)
    assert line.startswith("pretrain = ") and says in line and "Traceback" not in line, line
    assert not (copied / "ran").exists()


@pytest.mark.parametrize("name", sorted(HARMLESS))
def test_what_nobody_uses_does_no_harm(copied: Path, name: str) -> None:
    CASES[name][0](copied)
    assert complaint(copied) == ""
    assert not (copied / "ran").exists()


@pytest.mark.parametrize("case", ["code in the configuration", "code in the tokenizer"])
def test_no_loader_runs_the_folders_code(copied: Path, case: str) -> None:
    """Each by itself, as workers call them without the driver's checks."""
    import torch

    from roll.strategies.infer.hf.strategy import HFInferStrategy
    from roll.strategies.train.megatron.supported import ParallelLayout, check_folder

    CASES[case][0](copied)
    loaders = (
        lambda: open_tokenizer(str(copied)),
        lambda: load_config(copied),
        lambda: load_model(copied, torch.float32, "sdpa"),
        lambda: load_value_model(copied, torch.float32, "sdpa"),
        lambda: HFInferStrategy(str(copied), max_running_requests=1, max_length=8),
        lambda: check_folder(copied, ParallelLayout(), False, "cpu"),
    )
    for load in loaders:
        with contextlib.suppress(ValueError, OSError):
            made = load()
            if isinstance(made, HFInferStrategy):
                asyncio.run(made.close())
        assert not (copied / "ran").exists()


def test_the_module_would_have_left_its_mark(tmp_path: Path) -> None:
    """The test above is not blind."""
    with_code(tmp_path)
    with pytest.raises(SystemExit):
        exec(compile((tmp_path / "modeling_evil.py").read_text(), "evil", "exec"), {})
    assert (tmp_path / "ran").exists()


def test_loading_refuses_what_is_not_there(copied: Path) -> None:
    """Also without the driver's check: no model is filled at random."""
    import torch

    CASES["one tensor is missing"][0](copied)
    with pytest.raises(ValueError, match=r"not complete: model.layers.0.mlp.up_proj.weight is missing"):
        load_model(copied, torch.float32, "sdpa")


def test_tied_weights_and_a_critics_missing_head_are_no_gaps(good: Path, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    from roll.core.weights.folder_files import WEIGHTS
    from roll.strategies.train.tensor_files import FilesOf
    from roll.strategies.train.value_head import write_value_model

    assert "lm_head.weight" not in load_file(good / WEIGHTS), "the model's head is its embedding"
    untied = tiny_qwen2(30, tie_word_embeddings=False)
    untied.save_pretrained(tmp_path / "untied")
    numbered_tokenizer(30).save_pretrained(tmp_path / "untied")
    critic = load_value_model(tmp_path / "untied", torch.float32, "sdpa")
    write_value_model(tmp_path / "critic", critic, numbered_tokenizer(30), dict(critic.state_dict()), FilesOf())
    assert complaint(tmp_path / "critic") == ""
    load_value_model(tmp_path / "critic", torch.float32, "sdpa")
    (tmp_path / "critic" / "value_head.safetensors").unlink()
    assert "lm_head.weight is missing" in complaint(tmp_path / "critic")


def test_an_index_over_several_files_is_read(good: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    tiny_qwen2(30).save_pretrained(folder, max_shard_size="5KB")
    numbered_tokenizer(30).save_pretrained(folder)
    names = set(json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"].values())
    assert len(names) > 1
    assert complaint(folder) == ""
    (folder / sorted(names)[0]).unlink()
    assert "not there" in complaint(folder)
