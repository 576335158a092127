"""Runs the tests that failed once more, one after the other: python tools/failed_again.py 3

For CI alone. A machine that other work keeps busy can starve a test of the time that it allows, and one such test of thousands
would hold a change back. What passes only now is named, so that it is mended. More failures than that, and one that fails again,
are failures. The exit code is that of pytest, or 1 if nothing is run again.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

FAILED = Path(__file__).resolve().parents[1] / ".pytest_cache" / "v" / "cache" / "lastfailed"


def without_group(name: str) -> str:
    """pytest-xdist writes the group of a test behind its name."""
    test, bracket, _ = name.rpartition("]")
    return test + bracket or name.partition("@")[0]


def last_failed() -> list[str]:
    return [without_group(name) for name in json.loads(FAILED.read_text())] if FAILED.exists() else []


def main(most: int) -> int:
    failed = last_failed()
    if not 0 < len(failed) <= most:
        print(f"{len(failed)} tests failed; up to {most} are run again", flush=True)
        return 1
    FAILED.unlink()  # a name with its group would stay
    code = subprocess.run([sys.executable, "-m", "pytest", "-q", "-n", "0", *failed]).returncode
    again = (last_failed() or failed) if code else []
    said = ("failed beside others, and passed alone", "failed, and failed again")
    print("\n".join(f"{said[name in again]}: {name}" for name in failed), flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
