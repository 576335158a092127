"""Which completed steps the trainer publishes. Pure.

Versions are counted in steps, so published ones are multiples of n. Between two of them the trainer needs n batches that were
started under one version, which admission grants only if n − 1 <= α (`roll.rollout.admission`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PushInterval:
    steps: int
    """n."""
    last_step: int
    """Published whatever its number: the run ends with all engines on the final weights."""

    def publishes(self, step: int) -> bool:
        return step % self.steps == 0 or step == self.last_step

    def reaches(self, version: int, every: int) -> bool:
        """Whether `version` is the first that could be published at or after a multiple of `every`: what is due every so many
        steps (a validation) waits for the next published version."""
        before = (version - 1) // self.steps * self.steps
        return version // every > before // every
