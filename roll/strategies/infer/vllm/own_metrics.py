"""vLLM's own metrics of one engine, in a registry that is the engine's: vLLM's is one for all engines of a process."""

from __future__ import annotations

from functools import partial
from typing import Any

from roll.core.workers.infer_interface import OwnMetric

PARTS = ("_spec_decoding_cls", "_kv_connector_cls", "_ec_connector_cls", "_perf_metrics_cls")
"""Parts of vLLM's logger that make metrics themselves."""
CREATED = "_created"
"""Ends the names of samples that tell when a counter was made."""


class OwnMetrics:
    """Costs something at each step of the engine, so it is made when somebody asks for the metrics: counters begin then."""

    def __init__(self, vllm_config: Any) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
        from vllm.v1.metrics.loggers import PrometheusStatLogger

        self._registry = CollectorRegistry()
        kinds = {"_gauge_cls": Gauge, "_counter_cls": Counter, "_histogram_cls": Histogram}
        own: dict[str, Any] = {name: partial(kind, registry=self._registry) for name, kind in kinds.items()}
        parts = {name: type(name, (getattr(PrometheusStatLogger, name),), own) for name in PARTS}
        self.record = type("Logger", (PrometheusStatLogger,), own | parts)(vllm_config, [0]).record

    def read(self) -> list[OwnMetric]:
        return [
            {
                "name": family.name,
                "kind": family.type,
                "help": family.documentation,
                "samples": [[each.name, each.labels, each.value] for each in family.samples if not each.name.endswith(CREATED)],
            }
            for family in self._registry.collect()
        ]
