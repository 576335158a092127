"""Additions of a user to the flow of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from roll.core.configs.fields import Bounds, option, required

OnError = Literal["fail", "drop", "skip"]


@dataclass(frozen=True, kw_only=True)
class CustomStageConfig:
    """A stage of your own."""

    after: str | None = option(
        None,
        "The stage that it follows: roll check --flow shows their names; null: it does the work of the stage of its own name.",
    )
    name: str = required("Its name, in messages, the ledger, the trace and roll check --flow.")
    worker: str = required("Dotted path of a function of the item, plain or a coroutine, or of a subclass of Stage.")
    lanes: int | None = option(
        None, "Items that it works on side by side; null means what its class says, or 1.", bounds=Bounds(ge=1)
    )
    args: dict[str, Any] = option({}, "Handed to the function with each item, or to the class when it is made, by keyword.")
    on_error: OnError = option(
        "fail",
        "An error in it ends the run (fail); drops the group, with the reason <name>_failed (drop, for stages of groups); or "
        "leaves the stage out for that item, what it had changed undone (skip). For stages with `after`.",
    )


@dataclass(frozen=True, kw_only=True)
class FlowConfig:
    """Additions of a user to a run: own stages between two others, and callbacks."""

    stages: list[CustomStageConfig] = option([], "Stages of your own. One whose half runs in another process is left out here.")
    callbacks: list[str] = option([], "Dotted paths of your own subclasses of Callback.")
