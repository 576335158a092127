"""Engines of one node that receive the same bucket map one copy of it."""

import os
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from safetensors.torch import load_file

from roll.core.weights.bucket import Bucket, checksum
from roll.transports.node_files import node_file, shared_file

ANOTHER_PROCESS = """
import os, sys, torch
from roll.transports.node_files import shared_file
tensors = {"w": torch.full((1000,), float(sys.argv[1]))}
from roll.core.weights.bucket import checksum
print(os.fstat(shared_file(tensors, checksum(tensors))).st_ino, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def own_notes(tmp_path, monkeypatch):
    """Those of this test alone, in other processes, too."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def bucket_of(value):
    tensors = {"w": torch.full((1000,), float(value))}
    return Bucket(tensors, checksum(tensors))


def inode(file):
    return os.fstat(file).st_ino


def content(file):
    return load_file(f"/proc/{os.getpid()}/fd/{file}")["w"]


def test_another_process_maps_the_same_file_and_goes_on_when_the_first_one_is_killed():
    with subprocess.Popen(
        [sys.executable, "-c", ANOTHER_PROCESS, "3"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        theirs = int(other.stdout.readline())
        file = node_file(bucket_of(3))
        assert inode(file) == theirs
        other.send_signal(signal.SIGKILL)
    assert torch.equal(content(file), torch.full((1000,), 3.0))
    late = node_file(bucket_of(3))  # the note leads nowhere
    assert inode(late) != theirs and torch.equal(content(late), content(file))
    os.close(file)
    os.close(late)


def test_who_comes_while_the_first_one_writes_waits_for_it():
    with ThreadPoolExecutor(8) as threads:
        files = list(threads.map(node_file, [bucket_of(3)] * 8))
    assert len({inode(file) for file in files}) == 1 and len({*files}) == 8
    for file in files:
        os.close(file)


def test_a_bucket_with_other_bytes_or_names_has_a_file_of_its_own(monkeypatch):
    """Even if they share a note."""
    monkeypatch.setattr("roll.transports.node_files.NOTES", 1)
    bucket = bucket_of(3)
    renamed = {"v": bucket.tensors["w"]}
    files = [node_file(bucket), node_file(bucket_of(4)), shared_file(renamed, checksum(renamed)), node_file(bucket)]
    assert len({inode(file) for file in files}) == 4
    assert [float(content(file)[0]) for file in (files[0], files[1], files[3])] == [3.0, 4.0, 3.0]
    for file in files:
        os.close(file)


def test_where_no_note_can_be_left_a_bucket_is_not_shared(tmp_path, monkeypatch):
    """Somebody else made the folder first: here it leads elsewhere."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"roll-buckets-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    files = [node_file(bucket_of(3)) for _ in range(2)]
    assert inode(files[0]) != inode(files[1]) and not list((tmp_path / "elsewhere").iterdir())
    for file in files:
        assert torch.equal(content(file), torch.full((1000,), 3.0))
        os.close(file)


def test_a_note_of_a_file_that_was_closed_is_no_file_although_its_number_was_given_again():
    file = node_file(bucket_of(3))
    os.close(file)
    reader, writer = os.pipe()
    os.dup2(reader, file)  # nobody writes: whoever opened it to read would wait
    again = node_file(bucket_of(3))
    assert torch.equal(content(again), torch.full((1000,), 3.0))
    for each in {file, reader, writer, again}:
        os.close(each)
