import json

import pytest

from roll.pipeline.checkpoint import MANIFEST, TRAINER, CheckpointError, CheckpointStore


def save(store, step):
    partial = store.begin(step)
    (partial / TRAINER / "weights").write_text(f"weights of {step}")
    return store.commit(step, {"step": step}, [{"group": step}])


def test_a_checkpoint_comes_back_as_it_was(tmp_path):
    store = CheckpointStore(tmp_path)
    save(store, 3)
    checkpoint = store.resolve(True)
    assert (checkpoint.step, checkpoint.state, checkpoint.buffer) == (3, {"step": 3}, [{"group": 3}])
    assert (checkpoint.trainer / "weights").read_text() == "weights of 3"


def test_the_newest_are_kept(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    for step in (5, 10, 100):
        save(store, step)
    assert store.steps() == [10, 100]


def test_the_one_that_a_run_began_from_stays_for_engines_that_start_anew(tmp_path):
    save(CheckpointStore(tmp_path), 5)
    store = CheckpointStore(tmp_path, keep=2, spared=5)
    for step in (10, 20, 30):
        save(store, step)
    assert store.steps() == [5, 20, 30]


def test_a_half_written_checkpoint_is_not_seen_and_refused_by_name(tmp_path):
    store = CheckpointStore(tmp_path)
    save(store, 10)
    partial = store.begin(20)
    (partial / TRAINER / "weights").write_text("half")
    assert store.resolve("auto").step == 10
    with pytest.raises(CheckpointError, match=r"no manifest.json; the last complete one is .*step-10"):
        store.resolve(str(partial))


@pytest.mark.parametrize("damage", ["change", "remove", "manifest"])
def test_a_damaged_checkpoint_is_refused_and_the_last_good_one_named(tmp_path, damage):
    store = CheckpointStore(tmp_path)
    save(store, 10)
    path = save(store, 20)
    if damage == "change":
        (path / TRAINER / "weights").write_text("weights of 21")
    elif damage == "remove":
        (path / TRAINER / "weights").unlink()
    else:
        (path / MANIFEST).write_text("{")
    with pytest.raises(CheckpointError, match=r"step-20 is not a complete checkpoint: .*last complete one is .*step-10"):
        store.resolve(True)


def test_wishes_without_a_checkpoint(tmp_path):
    store = CheckpointStore(tmp_path)
    assert store.resolve(False) is None
    assert store.resolve("auto") is None
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        store.resolve(True)
    with pytest.raises(CheckpointError, match="no such folder"):
        store.resolve(str(tmp_path / "nowhere"))


def test_manifest_names_every_file(tmp_path):
    path = save(CheckpointStore(tmp_path), 1)
    files = set(json.loads((path / MANIFEST).read_text())["files"])
    assert files == {"pipeline.json", "buffer.jsonl", "trainer/weights"}
