"""A collector of OpenTelemetry in this process, which keeps what it receives."""

from __future__ import annotations

import contextlib
import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

trace_service = pytest.importorskip(
    "opentelemetry.proto.collector.trace.v1.trace_service_pb2", reason="needs requirements/otlp.txt"
)


class Collector:
    def __init__(self) -> None:
        self.received: list[tuple[str, Any]] = []
        self.address = ""

    @property
    def resources(self) -> list[Any]:
        return [each for _, request in self.received for each in request.resource_spans]

    @property
    def spans(self) -> list[Any]:
        return [span for each in self.resources for scope in each.scope_spans for span in scope.spans]


@contextlib.contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            collector.received.append((self.path, trace_service.ExportTraceServiceRequest.FromString(body)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector.address = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield collector
        server.shutdown()


def values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
