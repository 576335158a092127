"""Schedule of a run: steps that publish weights or leave a checkpoint, versions that are validated. Pure.

Versions are counted in steps, so published ones are multiples of n. Between two of them the trainer needs n batches that were
started under one version, which admission grants only if n − 1 <= α (`roll.core.groups.admission`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class StepSchedule:
    last_step: int
    """The last step of the run. An explorer that is a process of its own learns it from the trainer."""
    push_every: int = 1
    """n: steps between two published versions."""
    pull_every: int = 0
    """Groups after which an engine takes newer weights; with 0 all engines take every version immediately."""
    validate_every: int | None = None
    """Steps between two validations; None: there is nothing to validate on."""
    save_every: int = 1
    """Steps between two checkpoints; 0: there is none but the last."""
    validated: frozenset[int] = frozenset()
    """Versions that a run which is resumed has evaluated before."""

    def publishes(self, step: int) -> bool:
        """The last step is published whatever its number: the run ends with all engines on the final weights."""
        return step % self.push_every == 0 or step == self.last_step

    def newest_published(self, step: int) -> int:
        """The newest published version when `step` steps are trained."""
        return step // self.push_every * self.push_every

    def validates(self, version: int) -> bool:
        """True if `version`, which may be published, is to be validated; a validation due between waits for the next."""
        if self.validate_every is None or version in self.validated:
            return False
        before = (version - 1) // self.push_every * self.push_every
        return version // self.validate_every > before // self.validate_every or version == self.last_step

    def saves(self, step: int) -> bool:
        return step == self.last_step or (self.save_every > 0 and step % self.save_every == 0)

    def awaits(self, version: int) -> bool:
        """True if all engines have to serve the version before the next is published."""
        return self.pull_every == 0 or self.validates(version) or version == self.last_step
