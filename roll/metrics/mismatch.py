"""Whether an engine samples from the weights that it says it has: its log-probs beside the trainer's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

MEAN_OF_ENGINE = "actor/engine_mismatch/"


def suspects(metrics: Mapping[str, float], alarm: float) -> Iterator[tuple[int, float]]:
    """Engines whose mean |Δ log-prob| of a step, nats a token, is above `alarm`; with that figure. NaN is above."""
    for name, value in metrics.items():
        if name.startswith(MEAN_OF_ENGINE) and not value <= alarm:
            yield int(name.removeprefix(MEAN_OF_ENGINE)), value
