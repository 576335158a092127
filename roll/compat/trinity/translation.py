"""Trinity-RFT's YAML files: a mapping as its users write it, turned into keys of this project, with a note on every key. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from roll.compat.framework import Framework
from roll.compat.trinity.keys import BLOCKS, IDENTIFYING, LEFT_OUT, NEEDED, RULES, SCALARS

TRINITY = Framework(
    "Trinity",
    owns=lambda file: any(isinstance(file.get(block), Mapping) for block in IDENTIFYING),
    blocks=BLOCKS,
    scalars=SCALARS,
    rules=RULES,
    left_out=lambda file: LEFT_OUT,
    needed=NEEDED,
    phrases={
        "resume_from_checkpoint: auto": "continue_from_checkpoint: true",
        "resume_from_checkpoint: false": "continue_from_checkpoint: false",
        "resume_from_checkpoint": "continue_from_checkpoint",
        "auto or false": "true or false",
        "output_dir": "checkpoint_root_dir/project",
    },
)
