import json
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from roll.core.errors import CheckpointError
from roll.core.record.checkpoint import MANIFEST, TRAINER, CheckpointStore


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


def test_a_checkpoint_whose_deletion_was_cut_is_gone_at_once_and_its_rest_at_the_next_start(tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    def cut(path, **options):
        for file in (each for each in path.rglob("*") if each.is_file()):
            file.unlink()
            raise Killed

    store = CheckpointStore(tmp_path, keep=1)
    save(store, 5)
    (tmp_path / "step-5" / "more").write_text("x")
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr("roll.core.record.checkpoint.shutil.rmtree", cut)
        save(store, 10)
    assert store.steps() == [10] and [path.name for path in tmp_path.glob("step-*")] == ["step-10"]
    assert (tmp_path / ".step-5.deleted").is_dir()
    lock = SimpleNamespace(token=2, check=lambda: None)
    save(CheckpointStore(tmp_path, keep=1, lock=lock), 20)
    assert [path.name for path in tmp_path.iterdir()] == ["step-20"]


def test_the_one_that_a_run_began_from_stays_for_engines_that_start_anew(tmp_path):
    save(CheckpointStore(tmp_path), 5)
    store = CheckpointStore(tmp_path, keep=2, spares=lambda steps: {5})
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


def damage_change(path):
    (path / TRAINER / "weights").write_text("weights of 21")


def damage_remove(path):
    (path / TRAINER / "weights").unlink()


def damage_manifest(path):
    (path / MANIFEST).write_text("{")


def damage_unlist(path):
    """The weights are there, but nobody vouches for them."""
    manifest = json.loads((path / MANIFEST).read_text())
    del manifest["files"]["trainer/weights"]
    (path / MANIFEST).write_text(json.dumps(manifest))


def damage_add(path):
    (path / TRAINER / "more").write_text("a file that was not saved")


def damage_empty(path):
    (path / MANIFEST).write_text(json.dumps({"step": 20, "files": {}}))


DAMAGES = [damage_change, damage_remove, damage_manifest, damage_unlist, damage_add, damage_empty]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_refused_by_name_and_left_out_otherwise(tmp_path, damage):
    store = CheckpointStore(tmp_path)
    save(store, 10)
    path = save(store, 20)
    damage(path)
    with pytest.raises(CheckpointError, match=r"step-20 is not a complete checkpoint: .*last complete one is .*step-10"):
        store.resolve(str(path))
    for requested in (True, "auto"):
        found = store.resolve(requested)
        assert found.step == 10
        assert len(found.skipped) == 1 and found.skipped[0].startswith("step-20: ")


@pytest.mark.parametrize("requested", [True, "auto"])
def test_bad_checkpoints_alone_are_an_error_never_a_new_start(tmp_path, requested):
    store = CheckpointStore(tmp_path)
    for step, damage in zip((10, 20), (damage_remove, damage_empty), strict=True):
        damage(save(store, step))
    (tmp_path / "step-30").mkdir()
    with pytest.raises(CheckpointError, match=r"step-30: it has no manifest.json; step-20: .*; step-10: .*start over with false"):
        store.resolve(requested)


def test_a_linked_checkpoint_is_replaced_and_removed_as_a_link(tmp_path):
    """Pruning must not reach through a link, nor stumble over it."""
    elsewhere = tmp_path / "elsewhere"
    kept = save(CheckpointStore(elsewhere), 5)
    root = tmp_path / "checkpoints"
    root.mkdir()
    (root / "step-5").symlink_to(kept)
    store = CheckpointStore(root, keep=1)
    assert store.resolve("auto").step == 5
    save(store, 5)
    assert not (root / "step-5").is_symlink() and CheckpointStore(elsewhere).resolve(True).step == 5
    (root / "step-4").symlink_to(kept)
    save(store, 6)
    assert store.steps() == [6] and not (root / "step-4").is_symlink()
    assert CheckpointStore(elsewhere).resolve(True).step == 5


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


def test_whoever_may_read_the_state_may_read_the_weights(tmp_path):
    """safetensors writes files that only their owner can read."""
    store = CheckpointStore(tmp_path)
    partial = store.begin(1)
    save_file({"a": torch.zeros(2)}, partial / TRAINER / "model.safetensors")
    final = store.commit(1, {"step": 1}, [])
    assert {path.stat().st_mode for path in final.rglob("*") if path.is_file()} == {(final / "pipeline.json").stat().st_mode}
