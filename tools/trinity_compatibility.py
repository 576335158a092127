"""The page on Trinity-RFT's YAML files: `python tools/trinity_compatibility.py > docs_roll/trinity_compatibility.md`.

Made from the table that loading applies (compat/trinity/keys.py); a test checks it.
"""

from __future__ import annotations

import sys

from compatibility_page import blocks

from roll.compat.trinity.keys import IDENTIFYING, LEFT_OUT, RULES

INTRODUCTION = f"""\
# Trinity-RFT's YAML files

<!-- Made by `python tools/trinity_compatibility.py > docs_roll/trinity_compatibility.md`. -->

A file with one of the blocks {", ".join(f"`{name}`" for name in IDENTIFYING)} is read as Trinity-RFT's, and every key of it is
one of these: **read** as keys of this project, **without effect** here for the reason given, or **refused** with what to do. A
key that is not in the table is refused, never taken for another. `roll check --compat` reports on a whole file; strictly, what
is refused is an error. Keys of this project may stand in the file or on the command line, and count where both say something.
What the processes do: [explorers and a trainer](explorer_trainer.md).
"""


def page() -> str:
    rows = "".join(f"| `{path}` | `{value}` |\n" for path, value in LEFT_OUT.items())
    defaults = f"## Defaults\n\nTrinity's own count where a file leaves these out:\n\n| key | default |\n|---|---|\n{rows}"
    return "\n".join([INTRODUCTION, *blocks(RULES), defaults])


if __name__ == "__main__":
    sys.stdout.write(page())
