"""How fast a step was, and where its time went: read off the ledger from step to step. Pure."""

from __future__ import annotations

from roll.metrics.ledger import Ledger

BUSY = "busy"
"""The ledger's state of a stage that works."""
STAGE = "stage."


class StepSpeed:
    def __init__(self, ledger: Ledger, now: float) -> None:
        self._ledger = ledger
        self._before = now
        self._busy: dict[str, float] = {}

    def step(self, response_tokens: int, now: float) -> dict[str, float]:
        """`throughput/response_tokens_per_s` since the step before, and for each stage `time/<stage>_s`: the seconds of that
        time in which it worked, with one lane or many. Stages work side by side, so they do not add up to the step."""
        seconds, self._before = now - self._before, now
        metrics = {"throughput/response_tokens_per_s": response_tokens / seconds} if seconds > 0 else {}
        for name in self._ledger.names():
            if name.startswith(STAGE):
                busy = self._ledger.durations(name, now).get(BUSY, 0.0)
                metrics[f"time/{name.removeprefix(STAGE)}_s"] = busy - self._busy.get(name, 0.0)
                self._busy[name] = busy
        return metrics
