"""The keys of a file of Trinity-RFT's, or with verl's keys, as its writer knows them: problems are told in these words."""

from __future__ import annotations

from collections.abc import Mapping

from roll.compat.roll.keys_verl import VERL
from roll.compat.roll.rule import value_at
from roll.compat.trinity.keys import LEFT_OUT

_VERL = {rule.path for rule in VERL}
PHRASES = {
    "resume_from_checkpoint: auto": "continue_from_checkpoint: true",
    "resume_from_checkpoint: false": "continue_from_checkpoint: false",
    "resume_from_checkpoint": "continue_from_checkpoint",
    "auto or false": "true or false",
    "output_dir": "checkpoint_root_dir/project",
}
"""Of Trinity's, where a value has another form, too."""


def words_of(
    moved: Mapping[str, str], written: Mapping[str, object], read: Mapping[str, object], of_trinity: bool
) -> dict[str, str]:
    """`moved`: key here -> key there. `written`, `read`: the file before and after. A key whose value was computed keeps its name
    beside the other: the value that is told is its own."""
    words = {}
    for ours, theirs in moved.items():
        if of_trinity or theirs in _VERL:
            given = value_at(written, tuple(theirs.split(".")))
            same = (LEFT_OUT.get(theirs) if given is None else given) == value_at(read, tuple(ours.split(".")))
            words[ours] = theirs if same else f"{ours} (of {theirs})"
    return words | (PHRASES if of_trinity else {})
