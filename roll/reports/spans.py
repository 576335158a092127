"""`otlp_endpoint`: spans of groups with their phases and turns, of steps, weight updates and validations, sent by OpenTelemetry.

The run's own trace has them, except for the turns of episodes, which come with a group's samples. Each is made a span of
OpenTelemetry's on a thread here, and its SDK sends them in batches. What comes too fast is left out and counted; an endpoint that
is away costs the spans and one warning. No text of a sample is in them.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from roll.core.configs.redact import redact_text
from roll.core.data.sample import SampleGroup, Turn
from roll.core.record.callbacks import Callback, MetricsRow, Summary
from roll.core.record.trace import Bar, Trace, Track

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

INSTALL = "pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http, or leave it out"
ROWS = {"steps": "step", "weights": "weight update", "publish": "weight update", "validations": "validation"}
"""Rows of the trace -> names of spans. The work of roles and stages in between is in the trace alone."""
CALL, STEP = "policy call", "environment step"
"""Spans of a turn."""
PENDING = 20_000
"""Spans that may wait."""
TURNS, GROUPS = 500, 2_000
"""Turns of a group that have spans, and groups whose turns wait for the end of the group."""
SEND_S, END_S = 5.0, 10.0
"""Limits of one attempt to send, and of the wait for the last spans."""
MODULES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")

logger = logging.getLogger(__name__)


def check_installed() -> None:
    """Raises `ValueError`."""
    for module in MODULES:
        try:
            found = find_spec(module)
        except ImportError:
            found = None
        if found is None:
            raise ValueError(f"needs {module}, which is not installed")


class Played(NamedTuple):
    """A turn: the number of its episode in the group, and its own in the episode."""

    episode: int
    number: int
    turn: Turn


class TurnSpans(NamedTuple):
    """Those of a group, before its track ends."""

    group_id: int
    played: Sequence[Played]


Drawn: TypeAlias = Bar | Track | TurnSpans


def turns_of(group: SampleGroup) -> list[Played]:
    played = []
    for sample in group.samples:
        if (trajectory := sample.trajectory) is not None:
            numbered = enumerate(trajectory.turns, trajectory.first_turn + 1)
            played += [Played(sample.index, number, turn) for number, turn in numbered if turn.times]
    return played


class SpanExport(Callback):
    def __init__(self, endpoint: str, labels: Mapping[str, str]) -> None:
        """`labels`: name the run and the process."""
        self._endpoint, self._labels = endpoint, labels
        self._waiting: queue.Queue[Drawn | None] = queue.Queue(PENDING)
        self._lost = 0
        self._thread: threading.Thread | None = None

    def on_run_begin(self, step: int, rows: Sequence[MetricsRow]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._export, name="spans", daemon=True)
            self._thread.start()

    def on_group(self, group: SampleGroup, reason: str | None) -> None:
        if played := turns_of(group):
            self._lost += len(played[TURNS:])
            self._hear(TurnSpans(group.group_id, played[:TURNS]))

    def follow(self, trace: Trace) -> None:
        """Exports the trace from now on."""
        trace.listeners.append(self._hear)

    def on_run_end(self, summary: Summary) -> None:
        if self._thread is not None:
            self._hear(None)
            self._thread.join(END_S)
        if self._lost:
            logger.warning("otlp_endpoint: %d spans, or turns beyond %d a group, were too many, and left out", self._lost, TURNS)

    def _hear(self, drawn: Drawn | None) -> None:
        try:
            self._waiting.put_nowait(drawn)
        except queue.Full:
            self._lost += 1

    def _export(self) -> None:
        provider = provider_of(self._endpoint, self._labels)
        spans = Spans(provider)
        while (drawn := self._waiting.get()) is not None:
            spans.add(drawn)
        provider.shutdown()


class Spans:
    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer("roll")
        self._zero = time.time() - time.monotonic()
        """Time of the day at which the clock of the trace was 0."""
        self._turns: OrderedDict[int, Sequence[Played]] = OrderedDict()

    def add(self, drawn: Drawn) -> None:
        if isinstance(drawn, TurnSpans):
            self._turns[drawn.group_id] = drawn.played
            if len(self._turns) > GROUPS:
                self._turns.popitem(last=False)
            return
        if isinstance(drawn, Bar):
            if (name := ROWS.get(drawn.span.row)) is not None:
                facts = {"name": drawn.span.name, **drawn.span.args}
                self._span(name, drawn.span.begin, drawn.span.end, facts)
            return
        begin = drawn.phases[0][1]
        group = self._span("group", begin, drawn.end, {"group_id": drawn.group_id, **drawn.facts})
        ends = [*(at for _, at in drawn.phases[1:]), drawn.end]
        for (phase, at), end in zip(drawn.phases, ends, strict=True):
            self._span(f"group {phase}", at, end, {"group_id": drawn.group_id}, group)
        for played in self._turns.pop(drawn.group_id, ()):
            self._turn(drawn.group_id, played, group)

    def _turn(self, group_id: int, played: Played, group: Any) -> None:
        turn = played.turn
        facts = {"group_id": group_id, "episode": played.episode, "turn": played.number}
        of: dict[str, dict[str, object]] = {
            CALL: {"tokens": turn.tokens},
            STEP: {"reward": turn.reward, "is_valid": turn.is_valid},
        }
        for (name, more), (begin, end) in zip(of.items(), pairwise(turn.times), strict=False):
            self._span(name, begin - self._zero, end - self._zero, facts | more, group)

    def _span(self, name: str, begin: float, end: float, facts: Mapping[str, object], parent: Any = None) -> Any:
        """Each step and each group is a trace of its own."""
        from opentelemetry.context import Context
        from opentelemetry.trace import set_span_in_context

        context = Context() if parent is None else set_span_in_context(parent, Context())
        attributes = {f"roll.{key}": _plain(value) for key, value in facts.items() if value is not None}
        span = self._tracer.start_span(name, context, attributes=attributes, start_time=self._nanos(begin))
        span.end(self._nanos(end))
        return span

    def _nanos(self, at: float) -> int:
        return int((self._zero + at) * 1e9)


def _plain(value: object) -> str | bool | int | float:
    return value if isinstance(value, str | bool | int | float) else json.dumps(value, default=str)


def provider_of(endpoint: str, labels: Mapping[str, str]) -> TracerProvider:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult

    class Told(OTLPSpanExporter):
        """Says once that the spans go nowhere; the SDK would log every attempt."""

        said = False

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            result = super().export(spans)
            if result is not SpanExportResult.SUCCESS and not self.said:
                self.said = True
                logger.warning(
                    "otlp_endpoint: nobody takes spans at %s: they are lost while it is so (said once)", redact_text(endpoint)
                )
            return result

    logging.getLogger(OTLPSpanExporter.__module__).setLevel(logging.CRITICAL)
    resource = Resource.create({"service.name": "roll", **{f"roll.{name}": value for name, value in labels.items()}})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    exporter = Told(endpoint=f"{endpoint.rstrip('/')}/v1/traces", timeout=SEND_S)
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=PENDING))
    return provider
