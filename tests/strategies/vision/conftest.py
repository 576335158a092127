from pathlib import Path

import pytest
import tiny_vision
from programs import Programs
from vision_batches import PICTURES


@pytest.fixture(scope="session")
def programs(forks, tmp_path_factory):
    """Starts ranks."""
    return Programs(tmp_path_factory.mktemp("programs"), forks)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    tiny_vision.stored(folder, *PICTURES)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = tiny_vision.MODELS.items()
    return {name: tiny_vision.save(make(seed=3), tmp_path_factory.mktemp(name.replace(".", "_"))) for name, make in made}
