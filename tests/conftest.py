"""What tests of several rooms need, and what takes seconds to make."""

import multiprocessing
import multiprocessing.spawn
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from forked import FORKS, SERVER, Forks, ForkServer, interpreter_of
from made_models import of_all_processes, script
from programs import RUN_IMPORTS, VLLM_ENVIRONMENT, VLLM_IMPORTS, environment

from roll.reports import learning_curve

ADDRESS = "address of the fork server"
STARTED: list[ForkServer] = []
"""By this process; they end after its last test."""


def started(changes: Mapping[str, str], imports: Sequence[str]) -> ForkServer:
    STARTED.append(ForkServer(environment() | changes, imports))
    return STARTED[-1]


def run_server() -> ForkServer:
    return started({"HF_HUB_OFFLINE": "1"}, RUN_IMPORTS)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """pytest-xdist is about to start a process: one server is there for all of them. They begin when its imports are made, and
    find compiled what it has imported."""
    if "not slow" in node.config.option.markexpr:
        return  # none of the other tests needs it (conftest.py)
    if not STARTED:
        run_server().wait_for_imports()
    node.workerinput[ADDRESS] = STARTED[0].address


def pytest_unconfigure() -> None:
    for server in STARTED:
        server.close()


@pytest.fixture(scope="session")
def embedded_task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that make_embedded.py makes, with a model that was taught for a moment only: its answers are any symbols."""
    maker = script("embedded", "make_embedded")
    settings = maker.Settings(learn_steps=3, misprint_steps=1, batch_size=8)
    made: Path = maker.make(of_all_processes(tmp_path_factory) / "embedded" / "cache", settings=settings)
    return made


@pytest.fixture(scope="session")
def forks(pytestconfig: pytest.Config) -> Forks:
    """Starts whole runs, and ranks, as processes that find their imports made."""
    address = getattr(pytestconfig, "workerinput", {}).get(ADDRESS)
    return Forks(address) if address else run_server()


@pytest.fixture
def shared_ray(forks: Forks, monkeypatch: pytest.MonkeyPatch) -> None:
    """`RayBackend`s of this process share a Ray, whose workers are forks. Not for a test that kills or configures Ray."""
    from shared_ray import SharedRay

    monkeypatch.setenv(FORKS, forks.address)
    monkeypatch.setattr("ray._private.ray_constants.SETUP_WORKER_FILENAME", SERVER)
    monkeypatch.setattr("roll.platform.ray_backend.RayInstance", SharedRay)


def end_shared_ray() -> None:
    if "shared_ray" in sys.modules:
        sys.modules["shared_ray"].SharedRay.end()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """No two Rays meet."""
    if item.get_closest_marker("ray") and "shared_ray" not in getattr(item, "fixturenames", ()):
        end_shared_ray()


def pytest_sessionfinish() -> None:
    end_shared_ray()


@pytest.fixture(scope="session")
def vllm_forks() -> ForkServer:
    return started(VLLM_ENVIRONMENT, VLLM_IMPORTS)


@pytest.fixture(scope="module")
def forked_engines(vllm_forks: ForkServer) -> Iterator[None]:
    """The processes that vLLM starts here."""
    before = multiprocessing.spawn.get_executable()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FORKS, vllm_forks.address)
        multiprocessing.set_executable(interpreter_of(vllm_forks.address))
        yield
        multiprocessing.set_executable(before)


@pytest.fixture
def no_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """For runs in this process, of which hundreds would draw a learning curve, in a fifth of a second each. A test that looks at
    the picture asks for `pictures`."""
    if "pictures" not in request.fixturenames:
        monkeypatch.setattr(learning_curve, "plot", lambda *_: False)


@pytest.fixture
def pictures() -> None:
    """Runs draw theirs."""
