"""`USE_MODELSCOPE=1`: names are ModelScope's. Its package is stood in for by a module with the arguments of its own function
(modelscope 1.40), as its hub cannot be reached in tests."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

from roll.data import hub, tables

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


def test_data_sets_by_modelscopes_names_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USE_MODELSCOPE", "true")
    with pytest.raises(ValueError, match="data sets are not fetched from ModelScope"):
        next(tables.rows_of_hub("some-owner/some-data", None, "train", None))
