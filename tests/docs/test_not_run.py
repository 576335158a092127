"""Where the documentation says that something was not run on a GPU, it says so in the same words."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
OTHER_WORDS = re.compile(r"(has|have|been|was|were)\s+(not\s+|never\s+)?(been\s+)?run\s+on\s+(a\s+|any\s+)?GPU", re.IGNORECASE)
WORDS = re.compile(r"not\s+run\s+on\s+a\s+GPU", re.IGNORECASE)


def test_not_run_is_said_in_one_way():
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    pages = {name: (ROOT / name).read_text() for name in listed}
    assert not [name for name, text in pages.items() if OTHER_WORDS.search(text)]
    said = {name for name, text in pages.items() if WORDS.search(text)}
    assert {"README.md", "CHANGELOG.md", "docs_roll/backends.md", "docs_roll/weights.md", "docs_roll/quickstart.md"} <= said
