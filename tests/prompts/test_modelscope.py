"""`USE_MODELSCOPE=1`: names are ModelScope's. Its package is stood in for by a module with the arguments of its own function
(modelscope 1.40), as its hub cannot be reached in tests."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from roll.core.configs.arguments import DataArguments
from roll.core.errors import PromptFileError
from roll.prompts import hub, tables
from roll.prompts.prompt_file import read_rows

NAME = "some-owner/some-model@v1"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the package has the model."""

    def snapshot_download(
        model_id: str | None = None,
        revision: str | None = None,
        cache_dir: str | None = None,
        user_agent: str | None = None,
        local_files_only: bool = False,
        *,
        allow_patterns: list[str] | None = None,
    ) -> str:
        assert (model_id, revision, cache_dir, user_agent) == ("some-owner/some-model", "v1", None, None)
        assert allow_patterns is not None and not any(pattern.endswith((".py", ".bin", "*")) for pattern in allow_patterns)
        if local_files_only and not (tmp_path / "fetched").exists():
            raise ValueError("Cannot find the requested files in the cached path")
        (tmp_path / "fetched").mkdir(exist_ok=True)
        return str(tmp_path / "fetched")

    module = ModuleType("modelscope")
    module.snapshot_download = snapshot_download  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "modelscope", module)
    monkeypatch.setenv("USE_MODELSCOPE", "1")
    return tmp_path / "fetched"


def test_names_are_modelscopes_if_that_is_asked_for(folder: Path) -> None:
    assert hub.cached(NAME) is None and hub.where_from(NAME).endswith("a run fetches it from ModelScope")
    assert hub.fetch(NAME) == folder
    assert hub.cached(NAME) == folder


def test_without_its_package_the_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USE_MODELSCOPE", "1")
    monkeypatch.setitem(sys.modules, "modelscope", None)
    with pytest.raises(ValueError, match="USE_MODELSCOPE is set, but its package is not installed: pip install modelscope"):
        hub.fetch(NAME)


@pytest.fixture
def data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the package has a data set, as its hub does: files, and a README.md that says which subset they are."""
    folder = tmp_path / "data"

    def dataset_snapshot_download(
        dataset_id: str | None = None,
        revision: str | None = None,
        cache_dir: str | None = None,
        local_dir: str | None = None,
        allow_file_pattern: list[str] | None = None,
    ) -> str:
        assert (dataset_id, cache_dir, local_dir) == ("some-owner/some-data", None, None) and revision in (None, "v1")
        assert allow_file_pattern is not None and not any(pattern.endswith((".py", "*")) for pattern in allow_file_pattern)
        (folder / "main").mkdir(parents=True, exist_ok=True)
        (folder / "README.md").write_text(README)
        for split in ("train", "test"):
            row = {"question": f"of {split}", "answer": "1+1=2\n#### 2"}
            (folder / "main" / f"{split}.jsonl").write_text(json.dumps(row) + "\n")
        return str(folder)

    module = ModuleType("modelscope")
    module.dataset_snapshot_download = dataset_snapshot_download  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "modelscope", module)
    monkeypatch.setenv("USE_MODELSCOPE", "true")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    return folder


README = """---
configs:
- config_name: main
  data_files:
  - split: train
    path: main/train.jsonl
  - split: test
    path: main/test.jsonl
---
"""


@pytest.mark.parametrize(("split", "revision"), [("train", None), ("test", "v1")])
def test_a_data_set_is_modelscopes_if_that_is_asked_for(data_set: Path, split: str, revision: str | None) -> None:
    """And its rows are those of any other: GSM8K's columns, one tag for all."""
    asked = DataArguments(path="some-owner/some-data", subset_name="main", split=split, revision=revision)
    (row,) = read_rows(replace(asked, prompt="question", ground_truth="answer"), only_tag="math")
    assert (row.prompt, row.ground_truth, row.tag) == (f"of {split}", "1+1=2\n#### 2", "math")


def test_a_data_set_that_is_a_folder_stays_one(data_set: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = sys.modules["modelscope"].dataset_snapshot_download("some-owner/some-data", None, allow_file_pattern=["*.jsonl"])
    monkeypatch.setitem(sys.modules, "modelscope", None)
    assert next(tables.rows_of_hub(folder, "main", "test", None))["question"] == "of test"


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (None, "its package is not installed: pip install modelscope"),
        (ModuleType("modelscope"), "too old: pip install -U modelscope"),
    ],
)
def test_a_data_set_of_a_hub_whose_package_lacks_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType | None, says: str
) -> None:
    monkeypatch.setenv("USE_MODELSCOPE", "true")
    monkeypatch.setitem(sys.modules, "modelscope", module)
    with pytest.raises(PromptFileError, match=f"data_args.path: cannot read some-owner/some-data:main:train.*{says}") as refused:
        next(read_rows(DataArguments(path="some-owner/some-data", subset_name="main")))
    assert "\n" not in str(refused.value)
