"""Where the example configurations and the makers of the embedded models lie: `examples/` of a checkout; a wheel carries both in
`roll/examples/` (setup.py copies the files when the wheel is built, so the repository has one copy of each)."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
EXAMPLES = next(
    (folder for folder in (_PACKAGE / "examples", _PACKAGE.parent / "examples") if (folder / "config").is_dir()),
    _PACKAGE / "examples",
)
