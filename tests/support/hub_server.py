"""A hub of the tests' own: models and data sets that are folders, by the addresses that `huggingface_hub` asks for."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "5" * 40


@contextlib.contextmanager
def hub_server(repos: dict[str, Path]) -> Iterator[tuple[str, list[str]]]:
    """`repos`: models and data sets, folder by name. Yields the address, and the paths of files that were sent."""
    sent: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(body=True)

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

        def _answer(self, body: bool) -> None:
            path = self.path.partition("?")[0]
            if (asked := re.fullmatch(r"/api/(?:models|datasets)/([^/]+/[^/]+)(?:/revision/[^/]+)?", path)) and asked[1] in repos:
                self._describe(repos[asked[1]], body)
            elif (asked := re.fullmatch(r"/api/(?:models|datasets)/([^/]+/[^/]+)/tree/[^/]+/?(.*)", path)) and asked[1] in repos:
                self._list(repos[asked[1]], asked[2], body)
            elif (asked := re.fullmatch(r"(?:/datasets)?/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)) and asked[1] in repos:
                self._file(repos[asked[1]] / asked[3], body)
            else:
                self._send(404, b"{}", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}, body)

        def _describe(self, repo: Path, body: bool) -> None:
            names = sorted(str(path.relative_to(repo)) for path in repo.rglob("*") if path.is_file())
            answer = {"id": "m", "sha": COMMIT, "siblings": [{"rfilename": name} for name in names]}
            self._send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"}, body)

        def _list(self, repo: Path, folder: str, body: bool) -> None:
            answer = [
                {"type": "file" if path.is_file() else "directory", "path": str(path.relative_to(repo)), "oid": "0" * 40}
                | ({"size": path.stat().st_size} if path.is_file() else {})
                for path in sorted((repo / folder).iterdir())
            ]
            self._send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"}, body)

        def _file(self, path: Path, body: bool) -> None:
            if not path.is_file():
                self._send(404, b"", {"X-Error-Code": "EntryNotFound"}, body)
                return
            if body:
                sent.append(path.name)
            content = path.read_bytes()
            etag = hashlib.sha1(content).hexdigest()
            self._send(200, content, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}, body)

        def _send(self, status: int, content: bytes, headers: dict[str, str], body: bool) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if body:
                self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", sent
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
