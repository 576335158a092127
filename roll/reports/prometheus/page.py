"""`metrics_address`: a page with the run's figures, for Prometheus. Observers leave the newest figures here, and a request makes
text of them, on a thread of its own: a step pays next to nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Metric, ProcessCollector, start_http_server
from prometheus_client.registry import Collector

from roll.core.configs.ppo import PPOConfig
from roll.core.record.callbacks import MetricsRow, Summary
from roll.core.record.run_lock import RunLock
from roll.core.record.run_progress import RunProgress
from roll.core.workers.infer_interface import EngineStats, OwnMetric
from roll.plan.rules.addresses import listening_at
from roll.reports.prometheus.accounts import Accounts
from roll.reports.prometheus.series import Families, accounts, of_accounts, of_engines, of_metrics, of_progress, of_summary
from roll.reports.rows import OfRows, process_labels


class MetricsPage(OfRows, Collector):
    _server: WSGIServer | None = None
    _thread: threading.Thread

    def __init__(self, config: PPOConfig, run_dir: Path, lock: RunLock | None, note: Callable[[str], None]) -> None:
        """Listens from the beginning of the run."""
        assert config.metrics_address is not None
        self._at, self._note = listening_at(config.metrics_address), note
        self._families = Families(process_labels(config))
        self._accounts = Accounts(run_dir, lock) if config.trains else None
        """None where another process keeps them."""
        self._progress: RunProgress | None = None
        self._summary: Mapping[str, object] = {}
        self.engines: Mapping[int, EngineStats] = {}
        self.own: Mapping[int, Sequence[OwnMetric]] = {}
        """Metrics of the engines' package itself."""
        self._row: MetricsRow = {}

    # -- figures come in: each is replaced as a whole, as requests read meanwhile ----------------------------------------------

    def clear(self) -> None:
        self._row = {}

    def add(self, step: int, row: MetricsRow) -> None:
        self._row = {**self._row, **row}

    def on_run_begin(self, step: int, rows: Sequence[MetricsRow]) -> None:
        """Raises `OSError`."""
        super().on_run_begin(step, rows)
        if self._server is None:
            registry = CollectorRegistry(auto_describe=False)
            registry.register(self)
            ProcessCollector(registry=registry)
            host, port = self._at
            self._server, self._thread = start_http_server(port, host, registry)
            shown = f"[{host}]" if ":" in host else host
            self._note(f"figures for Prometheus: http://{shown}:{self._server.server_port}/metrics")

    def on_refresh(self, progress: RunProgress) -> None:
        self._progress = progress

    def on_summary(self, summary: Summary, progress: RunProgress) -> None:
        self._summary = dict(summary)

    def on_run_end(self, summary: Summary) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()

    # -- and go out ------------------------------------------------------------------------------------------------------------

    def collect(self) -> Iterator[Metric]:
        families, progress, summary = self._families, self._progress, self._summary
        yield from of_metrics(families, self._row)
        if progress is not None:
            yield from of_progress(families, progress)
        if self._accounts is not None:  # those of before a resumption at once
            yield from of_accounts(families, self._accounts.serve(accounts(progress.groups if progress is not None else {})))
        yield from of_summary(families, summary)
        yield from of_engines(families, self.engines)
        yield from families.passed_on(self.own)
