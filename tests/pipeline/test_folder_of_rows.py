"""Where the prompts of a run lie: not behind a network, whose server would hold up each of them while it is away."""

import os

import pytest

from roll.platform import file_systems
from roll.prepare.row_sets import folder_of_rows


@pytest.mark.parametrize("kind", ["nfs4", "fuse.sshfs", "lustre", "ext4", "overlay"])
def test_prompts_lie_in_the_runs_folder_unless_a_network_is_between(tmp_path, monkeypatch, kind):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"1 0 0:1 / / rw - ext4 /dev/a rw\n2 1 0:2 / {tmp_path} rw - {kind} server:/ rw\n")
    monkeypatch.setattr(file_systems, "MOUNTS", mounts)
    assert folder_of_rows(tmp_path) == (tmp_path if kind in ("ext4", "overlay") else None)


def test_a_folder_in_which_nothing_may_be_written_takes_none(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert folder_of_rows(tmp_path) is None
