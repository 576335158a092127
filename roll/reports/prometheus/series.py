"""The series that Prometheus fetches: names, types and units by its conventions, and the sources of their values. Pure.

Measurements of a step or a validation are gauges. Counters of groups are those of the run, as `Accounts` serves them; all other
counters are those of this process, and begin at 0 with it, as Prometheus expects it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from roll.core.record.callbacks import MetricsRow
from roll.core.record.run_progress import RunProgress
from roll.core.workers.infer_interface import EngineStats, OwnMetric

MOST = 100
"""Most values of one label."""
MOST_OTHERS = 300
"""Most metrics without a series of their own."""
MOST_OWN = 2_000
"""Most series of an engine's package itself: most are places of histograms."""
Samples = Iterable[tuple[Sequence[str], float]]
"""Values of the labels, and the number."""


class Gauge(NamedTuple):
    """A series made of metrics of metrics.jsonl."""

    name: str
    help: str
    pattern: str
    """Pattern of the whole name; its group is the value of the label."""
    label: str = ""
    scale: float = 1.0


GAUGES = (
    Gauge("staleness_versions", "Lag of the trained samples", r"staleness/(mean|max|token_mean)", "statistic"),
    Gauge("engines_behind_versions", "Trained version minus the oldest one served", r"staleness/engines_behind"),
    Gauge("lookahead_batches", "Batches that rollouts run ahead", r"scheduler/pipeline_depth"),
    Gauge("idle_ratio", "Share of the last step in which a role did not work", r"idle_share/(.+)", "role"),
    Gauge("response_tokens_per_second", "Response tokens trained", r"throughput/response_tokens_per_s"),
    Gauge("step_seconds", "Time of the last step", r"time/step_s"),
    Gauge("running_seconds", "Time since this process began to work, as of the last step", r"time/elapsed_s"),
    Gauge("stage_seconds", "Working time of a stage in the last step", r"time/(.+)_s", "stage"),
    Gauge("reward", "Reward of the last step's samples", r"critic/score/(mean|max|min)", "statistic"),
    Gauge("accuracy_ratio", "Share of right answers in the last validation", r"val_correct/(.+)/mean", "tag"),
    Gauge("response_length_tokens", "Length of the last step's responses", r"tokens/response_length/(mean|max)", "statistic"),
    Gauge("responses_cut_ratio", "Share of responses that end at the length limit", r"tokens/response_length/clip"),
    Gauge("groups_without_signal_ratio", "Share of groups with equal rewards", r"rewards/groups_without_signal"),
    Gauge("gradient_norm", "Norm of the last gradient", r"(actor_train|critic)/grad_norm", "role"),
    Gauge("learning_rate", "Learning rate", r"(actor_train|critic)/lr", "role"),
    Gauge("entropy_nats", "Entropy of the policy, by token", r"actor/entropy"),
    Gauge("effective_sample_ratio", "Effective sample size of the importance weights", r"actor/ess"),
    Gauge("mismatch", "Engines' log-probs against the trainer's", r"actor/(train_infer_.+|engine_.+)", "measure"),
    Gauge("memory_bytes", "Resident memory of a role's largest process", r"memory/(.+)_rss_mb", "role", 2.0**20),
    Gauge("device_memory_peak_bytes", "Peak memory on a device of a role", r"memory/(.+)_device_peak_mb", "role", 2.0**20),
)  # fmt: skip
"""The first one whose pattern fits takes the metric."""
PATTERNS = [re.compile(gauge.pattern) for gauge in GAUGES]


@lru_cache(4_096)
def place_of(metric: str) -> tuple[int, tuple[str, ...]] | None:
    """Returns the place of the metric's gauge, and the value of its label."""
    for place, pattern in enumerate(PATTERNS):
        if (found := pattern.fullmatch(metric)) is not None:
            return place, found.groups()
    return None


class Families:
    """Makes the families of one process. `constant`: labels that all series have."""

    def __init__(self, constant: Mapping[str, str]) -> None:
        self._names, self._values = tuple(constant), tuple(constant.values())

    def gauge(self, name: str, help: str, samples: Samples, labels: Sequence[str] = (), most: int = MOST) -> Iterator[Metric]:
        return self._filled(GaugeMetricFamily(f"roll_{name}", help, labels=(*self._names, *labels)), samples, most)

    def counter(self, name: str, help: str, samples: Samples, labels: Sequence[str] = ()) -> Iterator[Metric]:
        return self._filled(CounterMetricFamily(f"roll_{name}", help, labels=(*self._names, *labels)), samples, MOST)

    def passed_on(self, own: Mapping[int, Sequence[OwnMetric]]) -> Iterator[Metric]:
        """The metrics of the engines' package, by engine; at most so many of each engine and of so many engines."""
        found: dict[str, Metric] = {}
        for engine, metrics in islice(own.items(), MOST):
            left = MOST_OWN
            labels = dict(zip(self._names, self._values, strict=True)) | {"engine": str(engine)}
            for each in metrics:
                family = found.setdefault(each["name"], Metric(each["name"], each["help"], each["kind"]))
                for name, others, value in each["samples"][:left]:
                    family.add_sample(name, {**others, **labels}, value)
                left -= len(each["samples"][:left])
        return (family for family in found.values() if family.samples)

    def _filled(self, family: Any, samples: Samples, most: int) -> Iterator[Metric]:
        """Yields the filled family; nothing for one without samples."""
        for values, number in islice(samples, most):
            family.add_metric((*self._values, *values), number)
        if family.samples:
            yield family


def of_metrics(families: Families, row: MetricsRow) -> Iterator[Metric]:
    """`row`: the newest value of each metric."""
    known: list[list[tuple[Sequence[str], float]]] = [[] for _ in GAUGES]
    others: list[tuple[Sequence[str], float]] = []
    for name in sorted(row):
        if isinstance(value := row[name], int | float) and name != "step":
            found = place_of(name)
            if found is None:
                others.append(((name,), value))
            else:
                known[found[0]].append((found[1], value * GAUGES[found[0]].scale))
    for gauge, samples in zip(GAUGES, known, strict=True):
        yield from families.gauge(gauge.name, gauge.help, samples, (gauge.label,) if gauge.label else ())
    yield from families.gauge("metric", "Every other metric of metrics.jsonl", others, ("name",), MOST_OTHERS)


def of_progress(families: Families, progress: RunProgress) -> Iterator[Metric]:
    yield from families.gauge("step", "Steps of the run that are done", [((), progress.step)])
    yield from families.gauge("steps_planned", "Steps of the whole run", [((), progress.max_steps)])
    yield from families.gauge("staleness_bound_versions", "Largest lag there can be", [((), progress.staleness_bound)])
    states = [((state,), progress.groups[state]) for state in ("buffered", "in_flight") if state in progress.groups]
    yield from families.gauge("groups", "Groups that are not trained or dropped yet", states, ("state",))


def of_accounts(families: Families, counts: Mapping[str, float]) -> Iterator[Metric]:
    """`counts`: see `accounts`."""
    ended = [((status, reason), counts[key]) for key in counts for status, _, reason in [key.partition("/")] if key != REUSED]
    yield from families.counter("groups_total", "Groups by terminal status", ended, ("status", "reason"))
    yield from families.counter("group_reuses_total", "Further steps that trained a group again", [((), counts.get(REUSED, 0))])


REUSED = "reused"


def accounts(groups: Mapping[str, Any]) -> dict[str, float]:
    """Returns numbers of groups: `trained`, `dropped/<reason>`, `reused`. `groups`: as summary.json counts them."""
    dropped = {f"dropped/{reason}": count for reason, count in groups.get("dropped", {}).items()}
    return {"trained": groups.get("trained", 0), REUSED: groups.get("reused", 0), **dropped}


UPDATES = (
    ("weight_updates_total", "Loads of weights", "count"),
    ("weight_update_bytes_total", "Bytes of weights sent to engines", "bytes"),
    ("weight_update_send_seconds_total", "Time spent sending weights", "send_s"),
)
FAILURES = (
    ("reward_errors_total", "Grades that failed", "reward_errors"),
    ("samples_without_reward_total", "Samples dropped for want of a reward", "samples_without_reward"),
    ("rollout_failures_total", "Rollouts of one's own that failed", "rollout_failures"),
    ("environment_failures_total", "Episodes that failed", "environment_failures"),
)
COUNTS = (
    ("engine_restarts_total", "Engines started again", "engine_restarts"),
    ("reward_worker_deaths_total", "Reward workers that died", "reward_worker_deaths"),
    ("environment_worker_deaths_total", "Environment workers that died", "environment_worker_deaths"),
)


def of_summary(families: Families, summary: Mapping[str, Any]) -> Iterator[Metric]:
    updates = summary.get("weight_updates", {})
    for name, help, key in UPDATES:
        yield from families.counter(name, help, [((), updates[key])] if key in updates else [])
    pauses = [((part,), updates[f"pause_s_{part}"]) for part in ("mean", "max") if f"pause_s_{part}" in updates]
    yield from families.gauge("weight_update_pause_seconds", "Pauses of engines at updates", pauses, ("statistic",))
    speed = summary.get("throughput", {})
    samples_per_s = [((), speed["samples_per_s"])] if "samples_per_s" in speed else []
    yield from families.gauge("samples_per_second", "Samples trained, over this process's time", samples_per_s)
    for name, help, key in FAILURES:
        yield from families.counter(name, help, [((str(at),), count) for at, count in summary.get(key, {}).items()], ("kind",))
    for name, help, key in COUNTS:
        yield from families.counter(name, help, [((), summary[key])] if key in summary else [])
    restarts = [((), len(summary.get("trainer_recovery_s", ())))]
    yield from families.counter("trainer_restarts_total", "Restarts of the trainer", restarts)
    for name, help in (("alarms", "Alarms given"), ("warnings", "Warnings")):
        yield from families.gauge(name, help, [((), len(summary.get(name, ())))])
    if best := summary.get("best"):
        yield from families.gauge("best_step", "Step of the best checkpoint", [((), best["step"])])
        yield from families.gauge("best_value", "Its metric (keep_best)", [((), best["value"])])


def of_engines(families: Families, engines: Mapping[int, EngineStats]) -> Iterator[Metric]:
    """`engines`: those that have answered."""
    each = [((str(engine),), stats) for engine, stats in engines.items()]
    by = ("engine",)
    requests = [((*name, state), getattr(stats, state)) for name, stats in each for state in ("running", "queued")]
    yield from families.gauge("engine_requests", "Requests in an engine", requests, ("engine", "state"))
    places = [(name, stats.free_slots) for name, stats in each]
    yield from families.gauge("engine_free_places", "Requests that an engine could run besides", places, by)
    used = [(name, stats.cache_use) for name, stats in each if stats.cache_use is not None]
    yield from families.gauge("engine_kv_cache_used_ratio", "Share of the KV cache in use", used, by)
    versions = [(name, stats.version) for name, stats in each]
    yield from families.gauge("engine_version", "Version that an engine serves", versions, by)
    generated = [(name, stats.generated_tokens) for name, stats in each]
    yield from families.counter("engine_generated_tokens_total", "Tokens generated", generated, by)
    prefilled = [(name, stats.prefill_tokens) for name, stats in each]
    yield from families.counter("engine_prefill_tokens_total", "Tokens of prompts computed", prefilled, by)
    busy = [(name, stats.busy_s) for name, stats in each]
    yield from families.counter("engine_busy_seconds_total", "Time with at least one request", busy, by)
