"""The reports of a run, and its onlookers."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from roll.core.configs.plain import to_mapping
from roll.core.distributed.backend import Backend
from roll.core.distributed.cluster import Cluster
from roll.core.distributed.devices import Inventory
from roll.core.flow.flow import Flow
from roll.core.groups.schedule import StepSchedule
from roll.core.pipeline.prepared import Prepared
from roll.core.pipeline.roles import loss_spec
from roll.core.record.callbacks import Callback, Observers, Reports
from roll.envs.turn_files import KeptTurns
from roll.platform.garbage import watch_growth
from roll.prepare.check import is_watched
from roll.reports.advice import Adviser
from roll.reports.alarms import Alarms
from roll.reports.by_tag import ByTag
from roll.reports.early_stopping import EarlyStopping
from roll.reports.hang_watch import HangWatch
from roll.reports.invalid_actions import InvalidActions
from roll.reports.keep_best import KeepBest, Retention
from roll.reports.learning_curve import LearningCurve
from roll.reports.live_display import LiveDisplay
from roll.reports.notices import Notices
from roll.reports.receivers import receivers_of
from roll.reports.reward_watch import RewardWatch
from roll.reports.rows import process_labels
from roll.reports.spans import SpanExport
from roll.reports.trackers import Trackers
from roll.reports.verdict import Curves
from roll.reports.warnings import Warnings, table

if TYPE_CHECKING:  # most runs serve no figures
    from roll.reports.prometheus.page import MetricsPage


class RunObservers:
    """Observers of one run. Reports and onlookers share the page of its figures, and the exporter of its spans."""

    _page: MetricsPage | None = None
    _spans: SpanExport | None = None

    def reports(self, prepared: Prepared, inventory: Inventory, backend: Backend) -> Observers:
        """Raises `TrackerError`, having changed no file, and `OSError`."""
        made, config = run_observers(prepared, inventory, backend), prepared.config
        if not is_watched(config):
            return made
        if config.metrics_address is not None:
            from roll.reports.prometheus.page import MetricsPage

            self._page = MetricsPage(config, prepared.run_dir, prepared.lock, made.note)
        if config.otlp_endpoint is not None:
            self._spans = SpanExport(config.otlp_endpoint, process_labels(config))
        return made._replace(reports=(*made.reports, *filter(None, (self._page, self._spans))))

    def onlookers(
        self, flow: Flow, clusters: Mapping[str, Cluster], run_dir: Path, reports: Reports
    ) -> list[Coroutine[object, object, None]]:
        more = []
        if self._spans is not None:
            self._spans.follow(reports.record.files.trace)
        if self._page is not None and "actor_infer" in clusters:
            from roll.reports.prometheus.engine_watch import watch_engines

            more = [watch_engines(clusters["actor_infer"], self._page)]
        return [*run_onlookers(flow, clusters, run_dir, reports), *more]


def run_observers(prepared: Prepared, inventory: Inventory, backend: Backend) -> Observers:
    """Raises `TrackerError`, having changed no file, and `OSError`."""
    config, derived, run_dir = prepared.config, prepared.derived, prepared.run_dir
    last_step = prepared.resumed_record["step"] if prepared.resumed_record is not None else -1
    written = prepared.written or to_mapping(config)
    # First: a tracker that cannot start ends this.
    trackers = Trackers(derived.trackers, run_dir, config.exp_name, written, config.tracker_kwargs, last_step)
    curves = Curves()
    display = LiveDisplay(config.logging_steps, curves if config.trains else None)
    picture = LearningCurve(run_dir, config.exp_name, derived.staleness_bound, prepared.lock)
    warnings = Warnings([*table(config, loss_spec(config, derived))] if config.trains else (), prepared.warnings)
    reports: list[Callback] = [trackers, *_watch(prepared, warnings), warnings, InvalidActions(prepared.rules, warnings)]
    best, stopping = _best_steps(prepared)
    reports += filter(None, (best, stopping, curves if config.trains else None))  # the verdict names the best step
    if not prepared.evaluated:
        tags = ByTag(derived.tag_to_domain)
        alarms = Alarms(config.alarms if config.trains else (), run_dir, display)
        adviser = [] if config.from_rows else [Adviser(config, inventory.kind, not backend.isolated, curves)]
        reports += [tags, *adviser, alarms]
    if config.multi_turn and config.has_both_sides:
        reports.append(KeptTurns(run_dir, prepared.checkpoints, config.save_steps))
    retention = Retention(prepared.checkpoints, best)
    receivers = tuple(receivers_of(config.on_event)) if is_watched(config) and not config.only_explores else ()
    notices = [Notices(receivers, config.exp_name, run_dir)] if receivers else []  # last: it tells what the others found
    return Observers((*reports, display, picture, *notices), display.note, retention.spares)


def _watch(prepared: Prepared, warnings: Warnings) -> Iterator[RewardWatch]:
    """Yields the watch over a run's rollouts. Before the warnings: at the end it adds its last findings."""
    config = prepared.config
    if config.reward_watch is not None and is_watched(config):
        is_written = config.has_both_sides and config.rollout_log_per_step != 0
        yield RewardWatch(config.reward_watch, warnings, prepared.run_dir, is_written, prepared.lock)


def _best_steps(prepared: Prepared) -> tuple[KeepBest | None, EarlyStopping | None]:
    """Returns the observers of the best steps of a run that trains."""
    config, best = prepared.config, None
    if config.keep_best is not None and config.trains:
        schedule = StepSchedule(
            last_step=config.max_steps, push_every=config.weight_push_interval, validate_every=config.steps_between_validations
        )
        best = KeepBest(config.keep_best, schedule, prepared.checkpoints, config.max_ckpt_to_keep, prepared.lock)
    return best, EarlyStopping(config.early_stopping) if config.early_stopping is not None and config.trains else None


def run_onlookers(
    flow: Flow, clusters: Mapping[str, Cluster], run_dir: Path, reports: Reports
) -> list[Coroutine[object, object, None]]:
    return [HangWatch(flow, clusters, run_dir / "stacks", reports).run(), watch_growth()]
