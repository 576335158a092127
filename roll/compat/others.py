"""The frameworks, besides ROLL, whose files are read."""

from __future__ import annotations

from collections.abc import Mapping

from roll.compat.framework import Framework, words_of
from roll.compat.roll.keys_verl import VERL as PIPELINE
from roll.compat.trinity.translation import TRINITY
from roll.compat.verl.translation import VERL

OTHERS = (TRINITY, VERL)
_PIPELINE = {rule.path for rule in PIPELINE}


def framework_of(mapping: Mapping[str, object]) -> Framework | None:
    return next((each for each in OTHERS if each.owns(mapping)), None)


def their_words(
    framework: Framework | None, moved: Mapping[str, str], written: Mapping[str, object], read: Mapping[str, object]
) -> dict[str, str]:
    """Returns the words for keys here of who wrote the file: of a framework, or of single keys of verl's pipeline."""
    if framework is not None:
        return framework.words(moved, written, read)
    return words_of({ours: theirs for ours, theirs in moved.items() if theirs in _PIPELINE}, written, read, {})
