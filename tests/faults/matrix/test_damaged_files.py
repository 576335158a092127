"""Files of a killed run are damaged, and the same command goes on: nothing is lost or doubled, and nobody names a checkpoint.

The database is damaged as a lost page, a bad disk or a wrong copy would: in its write-ahead log, as a crash leaves it, and in the
file itself, with the log folded into it."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from roll.cli.verify import read_run, violations

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

AUTO = ("resume_from_checkpoint=auto", "max_ckpt_to_keep=3")
WAL_HEADER, FRAME_HEADER = 32, 24

Damage = Callable[[Path, Path], None]
"""Of a run's folder, with that of the same run at an earlier moment."""


def page_size(database: Path) -> int:
    """As the write-ahead log says, which has the first page of a young database."""
    return int.from_bytes((database.parent / f"{database.name}-wal").read_bytes()[8:12])


def rewrite(path: Path, change: Callable[[bytearray], bytes | bytearray]) -> None:
    before = path.read_bytes()
    after = change(bytearray(before))
    assert after != before
    path.write_bytes(after)


def flipped(data: bytearray) -> bytearray:
    data[len(data) // 2] ^= 4
    return data


def in_wal(change: Callable[[bytearray, int], bytes | bytearray]) -> Damage:
    """`change` of the log and the size of its frames."""

    def damage(run_dir: Path, _: Path) -> None:
        database = run_dir / "groups.db"
        frame = page_size(database) + FRAME_HEADER
        rewrite(run_dir / "groups.db-wal", lambda data: change(data, frame))

    return damage


def zeroed(data: bytearray, page: int, start: int = 0) -> bytearray:
    """Its middle page."""
    at = start + (len(data) - start) // page // 2 * page
    data[at : at + page] = bytes(page)
    return data


def folded(run_dir: Path) -> Path:
    """The database as one file."""
    with closing(sqlite3.connect(run_dir / "groups.db")) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for end in ("-wal", "-shm"):
        (run_dir / f"groups.db{end}").unlink(missing_ok=True)
    return run_dir / "groups.db"


def in_file(change: Callable[[bytearray], bytes | bytearray]) -> Damage:
    return lambda run_dir, _: rewrite(folded(run_dir), change)


def older_wal(run_dir: Path, earlier: Path) -> None:
    shutil.copyfile(earlier / "groups.db-wal", run_dir / "groups.db-wal")


def older_file(run_dir: Path, earlier: Path) -> None:
    shutil.copyfile(folded(earlier), folded(run_dir))


def flipped_before_the_newest_checkpoint(name: str) -> Damage:
    """A bit of the journal, in a row that all checkpoints know."""

    def damage(run_dir: Path, _: Path) -> None:
        def change(data: bytearray) -> bytearray:
            data[200] ^= 1
            return data

        rewrite(run_dir / f"{name}.jsonl", change)

    return damage


def cut_groups(run_dir: Path, _: Path) -> None:
    """To what the checkpoint before the newest one knows, and a little more."""
    steps = sorted(int(path.name.removeprefix("step-")) for path in (run_dir / "checkpoints").glob("step-*"))
    state = json.loads((run_dir / f"checkpoints/step-{steps[-2]}/pipeline.json").read_text())
    rewrite(run_dir / "groups.jsonl", lambda data: data[: state["record"]["groups"] + 10])


DATABASE: dict[str, Damage] = {
    "WAL: its last frame is lost": in_wal(lambda data, frame: data[:-frame]),
    "WAL: its last frame is torn": in_wal(lambda data, frame: data[: -frame // 2]),
    "WAL: a bit is flipped": in_wal(lambda data, _: flipped(data)),
    "WAL: a page is zeroed": in_wal(lambda data, frame: zeroed(data, frame, WAL_HEADER)),
    "WAL: removed": lambda run_dir, _: (run_dir / "groups.db-wal").unlink(),
    "WAL: an older copy": older_wal,
    "index of the WAL: removed": lambda run_dir, _: (run_dir / "groups.db-shm").unlink(),
    "database: cut in half": in_file(lambda data: data[: len(data) // 2]),
    "database: a page is zeroed": in_file(lambda data: zeroed(data, 4096)),
    "database: its header is zeroed": in_file(lambda data: bytes(100) + data[100:]),
    "database: an older copy": older_file,
    "database: removed": lambda run_dir, _: [path.unlink() for path in run_dir.glob("groups.db*")] and None,
}
JOURNALS: dict[str, Damage] = {
    "samples.jsonl: a bit is flipped": flipped_before_the_newest_checkpoint("samples"),
    "groups.jsonl: cut": cut_groups,
}


NOTES = {
    "it was restored from step-": "the database is restored from the newest checkpoint",
    "and is left out: ": "the newest checkpoint is left out",
    "; the run goes on": "the journal is set aside, in whole or in part",
}
"""What the run says of it -> what the table does."""


@pytest.fixture
def killed(launch, tmp_path) -> Iterator[Callable[..., tuple[Path, Path]]]:
    """`killed(*overrides)`: the folders of a run that was killed behind a checkpoint, and of the same run some steps before."""

    def run(*overrides: str) -> tuple[Path, Path]:
        begun = launch(*AUTO, *overrides)
        begun.wait_for_steps(3)
        begun.signal(signal.SIGSTOP)
        shutil.copytree(begun.dir, tmp_path / "earlier")
        begun.signal(signal.SIGCONT)
        begun.wait_for_checkpoint(6)
        begun.wait_for_steps(7)
        begun.signal(signal.SIGKILL)
        assert begun.end() == -signal.SIGKILL
        begun.wait_for_epitaph()
        shutil.copytree(begun.dir, tmp_path / "killed")
        return tmp_path / "killed", tmp_path / "earlier"

    yield run
    for folder in ("killed", "earlier"):
        shutil.rmtree(tmp_path / folder, ignore_errors=True)


def go_on_after(damages: dict[str, Damage], overrides: tuple[str, ...], launch, killed, row, accounts) -> None:
    whole, earlier = killed(*overrides)
    stuck = {}
    for name, damage in damages.items():
        line = row("rlvr", "driver", name)
        run_dir = whole.parent / "output" / "run"
        shutil.rmtree(run_dir)
        shutil.copytree(whole, run_dir)
        old = whole.parent / "old"
        shutil.copytree(earlier, old)
        damage(run_dir, old)
        shutil.rmtree(old)
        line.begins()
        again = launch(*AUTO, *overrides)
        if again.end() != 0:
            stuck[name] = again.output.splitlines()[-1:]
            line.ends(f"stuck: {stuck[name]}")
            continue
        accounts(again.dir)
        line.ends("; ".join(said for sign, said in NOTES.items() if sign in again.output) or "as if nothing had happened")
    assert not stuck, json.dumps(stuck, indent=1)


def test_a_run_goes_on_from_whatever_is_left_of_its_database(launch, killed, row, accounts, tmp_path):
    go_on_after(DATABASE, (f"groups_database=sqlite:///{tmp_path}/output/run/groups.db",), launch, killed, row, accounts)


def test_a_run_goes_on_from_whatever_is_left_of_its_journals(launch, killed, row, accounts):
    go_on_after(JOURNALS, (), launch, killed, row, accounts)


def test_a_run_goes_on_without_a_row_of_its_metrics_and_the_checker_says_so(launch, killed, row):
    def check(run_dir: Path) -> None:
        assert json.loads((run_dir / "summary.json").read_text())["status"] == "finished"
        found = list(violations(read_run(run_dir)))
        assert found and all("metrics.jsonl: rows before step-" in line for line in found)

    damage = flipped_before_the_newest_checkpoint("metrics")
    go_on_after({"metrics.jsonl: a bit is flipped": damage}, (), launch, killed, row, check)


def test_an_explorer_and_a_trainer_go_on_without_the_database_that_they_had(launch, row, accounts, tmp_path):
    line = row("rlvr", "explorer and trainer", "database: removed beside one")
    apart = ("num_gpus_per_node=1", "member_timeout=5", "model_update_transport=checkpoint_dir", *AUTO)
    trainer_keys = ("mode=train", "actor_train.device_mapping=0", *apart)
    explorer_keys = ("mode=explore", "actor_infer.device_mapping=0", *apart)
    trainer, explorer = launch(*trainer_keys), launch(*explorer_keys)
    trainer.wait_for_checkpoint(4)
    trainer.signal(signal.SIGKILL)
    assert trainer.end() == -signal.SIGKILL
    for path in trainer.dir.glob("groups.db*"):
        path.unlink()
    line.begins()
    assert explorer.end() == 1 and "start it again" in explorer.output, explorer.output
    trainer, explorer = launch(*trainer_keys), launch(*explorer_keys)
    assert (trainer.end(), explorer.end()) == (0, 0), trainer.output + explorer.output
    assert "it was restored from step-" in trainer.output
    accounts(trainer.dir, validated=None)
    line.ends("the explorer says so and ends; started again, both go on to the end")
