"""Which processes of a run are alive, by what each of the others sees. Pure.

Every process counts a number of its own up, its beat. Whoever looks compares it with what it saw before, by its own clock: clocks
that differ or jump change nothing, and a process that was stopped itself looks before it judges.
"""

from __future__ import annotations

from collections.abc import Mapping

BEAT_S = 2.0


class LifeSigns:
    def __init__(self, deadline_s: float) -> None:
        """`deadline_s`: a process whose beat stands still for longer counts as lost."""
        self._deadline_s = deadline_s
        self._seen: dict[str, tuple[object, float]] = {}
        """Process -> its last beat, and when it was seen first."""

    def look(self, beats: Mapping[str, object], now: float) -> list[str]:
        """`beats`: of all processes that are said to be alive, as they are now. Returns the lost ones."""
        self._seen = {
            name: self._seen[name] if name in self._seen and self._seen[name][0] == beat else (beat, now)
            for name, beat in beats.items()
        }
        return [name for name in beats if self.silent_s(name, now) > self._deadline_s]

    def silent_s(self, name: str, now: float) -> float:
        """Seconds since the beat was seen to change."""
        return now - self._seen[name][1] if name in self._seen else 0.0
