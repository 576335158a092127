"""What is wrong with a configuration, one line per problem, all of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MISSING_VALUE = "(missing)"


@dataclass(frozen=True, slots=True)
class Problem:
    key: str
    """Dotted path of the key in the YAML, e.g. `actor_train.training_args.learning_rate`."""
    value: object
    """What the user wrote, or `MISSING_VALUE`."""
    message: str
    """The rule that is broken, with its arithmetic."""
    fix: str = ""
    """What to write instead."""
    where: str = ""
    """`file:line` of the key, or "command line"; empty if unknown."""

    def __str__(self) -> str:
        shown = MISSING_VALUE if self.value is MISSING_VALUE else repr(self.value)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        place = f"{self.where}: " if self.where else ""
        return f"{place}{self.key} = {shown}: {self.message}" + (f"; fix: {self.fix}" if self.fix else "")


class ConfigError(ValueError):
    """A configuration that cannot run. `problems` holds every problem found, the message one line for each."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))
