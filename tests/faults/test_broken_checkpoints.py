"""Manifests and states of any shape: one line and exit code 2, never a traceback, and no worker is started."""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from roll.cli.train import main
from roll.platform.local_backend import LocalBackend
from roll.prepare import compose, preparation
from roll.prepare.compose import load_to_start

pytestmark = pytest.mark.slow

WRONG: list[Any] = [None, True, -1, 1.5, 10**400, "x", [], [[1]], {}, {"a": {"b": None}}]
"""In the place of every value there is."""
DEEP = "[" * 100_000 + "]" * 100_000


@pytest.fixture(scope="module")
def finished(world, tmp_path_factory):
    """A run of two steps with a checkpoint."""
    folder = tmp_path_factory.mktemp("finished")
    patch = pytest.MonkeyPatch()
    patch.syspath_prepend(str(world.workers))
    assert main(["--local", *world.arguments(f"output_dir={folder}", "max_steps=2")]) == 0
    patch.undo()
    return folder


@pytest.fixture
def answer(world, finished, no_pictures, tmp_path, monkeypatch, capsys):
    """`answer(wish)`: what the command line says to the checkpoint in `tmp_path`; None if it goes on to start workers."""
    monkeypatch.syspath_prepend(str(world.workers))

    async def start(self, spec):
        raise AssertionError("a worker was started")

    @functools.cache
    def load(folder, name, overrides, compat):
        return load_to_start(folder, name, overrides, compat=compat)

    monkeypatch.setattr(LocalBackend, "start", start)
    # What takes longest is the same for each of hundreds of checkpoints: the configuration, and the model, which stays whole.
    monkeypatch.setattr(preparation, "open_model", functools.cache(preparation.open_model))
    monkeypatch.setattr(
        compose, "load_to_start", lambda folder, name, overrides, compat, pipeline: load(folder, name, tuple(overrides), compat)
    )
    shutil.copytree(finished, tmp_path / "output")

    def run(wish: str = "") -> str | None:
        checkpoint = tmp_path / "output/run/checkpoints/step-2"
        kept = (tmp_path / "output/run/summary.json").read_bytes()
        wish = f"resume_from_checkpoint={wish or checkpoint}"
        code = main(["--local", *world.arguments(f"output_dir={tmp_path / 'output'}", "max_steps=3", wish)])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        if code == 1:
            assert "a worker was started" in err
            return None
        assert code == 2 and len(err.splitlines()) == 1 and err.startswith("error: command line: resume_from_checkpoint = "), err
        assert len(err) < 3000 and "fix: " in err
        assert (tmp_path / "output/run/summary.json").read_bytes() == kept, "a refused start changes nothing"
        return err

    return run


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(min(len(value), 1)):
            yield from places(value[key], (*path, key))


def with_value(tree: Any, path: tuple[Any, ...], value: Any, missing: bool = False) -> Any:
    if not path:
        return value
    tree = copy.deepcopy(tree)
    inner = tree
    for key in path[:-1]:
        inner = inner[key]
    if missing:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return tree


def broken(tree: Any) -> Iterator[tuple[str, Any]]:
    for path in places(tree):
        name = "/".join(map(str, path)) or "all of it"
        if path:
            yield f"{name} missing", with_value(tree, path, None, missing=True)
        for value in WRONG:
            yield f"{name} = {str(value)[:20]}", with_value(tree, path, value)


def write_state(checkpoint: Path, text: str) -> None:
    """A pipeline.json that the manifest vouches for."""
    (checkpoint / "pipeline.json").write_text(text)
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    manifest["files"]["pipeline.json"] = hashlib.sha256(text.encode()).hexdigest()
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.timeout(600)
def test_manifests_of_any_shape(answer, tmp_path):
    path = tmp_path / "output/run/checkpoints/step-2/manifest.json"
    good = json.loads(path.read_text())
    cases = dict(broken(good))
    cases |= {
        f"a file named {name!r}": with_value(good, ("files", name), "0" * 64) for name in ("../x", "/etc/passwd", "", "a\0b")
    }
    texts = {name: json.dumps(case) for name, case in cases.items()}
    texts |= {"empty": "", "deep": DEEP, "half": json.dumps(good)[:-20], "huge number": '{"step": ' + "9" * 10_000 + "}"}
    accepted = []
    for name, text in texts.items():
        path.write_text(text)
        if answer() is None:
            accepted.append(name)
    path.write_bytes(b"\xff\xfe\x00")
    assert answer() is not None
    assert not accepted
    assert len(texts) > 60
    print(len(texts), "broken manifests")


@pytest.mark.timeout(600)
def test_states_of_any_shape(answer, tmp_path):
    checkpoint = tmp_path / "output/run/checkpoints/step-2"
    good = json.loads((checkpoint / "pipeline.json").read_text())
    texts = {name: json.dumps(case) for name, case in broken(good)}
    texts |= {"empty": "", "deep": DEEP, "half": json.dumps(good)[:-20]}
    accepted = []
    for name, text in texts.items():
        write_state(checkpoint, text)
        if answer() is None:
            accepted.append(name)
    print(len(texts), "broken states;", "accepted:", accepted)
    assert len(texts) > 60
    # Other values of the right shape, and what need not be there.
    numbers = ["kl_coef = -1", "kl_coef = 1.5", "mean = -1", "mean = 1.5", "squares = -1", "squares = 1.5"]
    optional = ["dropped/filter_mean_high missing", "dropped/filter_mean_low missing", "samples/0 missing"]
    optional += ["tokens/0 missing", "rewards/even missing", "= {}", "returned = []", "advantages/rewards missing"]
    optional += ["digests/samples = x", "digests/metrics = x"]
    assert all(name.endswith((*numbers, *optional)) for name in accepted), accepted
    assert not {"admission = {}", "record = {}", "cursor = {}", "all of it = {}", "advantages/rewards/even = {}"} & {*accepted}


def test_auto_says_that_there_are_only_bad_ones(answer, tmp_path):
    (tmp_path / "output/run/checkpoints/step-2/manifest.json").write_text(DEEP)
    for wish in ("auto", "true"):
        line = answer(wish)
        assert "step-2: manifest.json is not JSON" in line and "start over with false" in line
