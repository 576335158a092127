"""A process that SIGTERM has told to stop is gone when its time is over, whatever cannot be written any more."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys, threading
from pathlib import Path
from roll.core.pipeline.lifecycle import EXIT_CODE, end_within
end_within(0.01, Path(sys.argv[1]), None)
threading.Event().wait(30)
"""


@pytest.mark.parametrize("read", [True, False])
def test_its_end_needs_no_reader_of_its_last_words(tmp_path, read):
    reader, stderr = os.pipe()
    if not read:
        os.close(reader)
    ended = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], stderr=stderr)
    assert ended.returncode == 130
    if read:
        os.close(stderr)
        assert os.read(reader, 1000).startswith(b"stopped by SIGTERM; what it was doing did not end")
