"""Receivers of notices: commands, which get an event as JSON on their standard input, and webhooks, to which it is sent by POST.

`$NAME` is read from the environment when an event is sent. No message shows such a value, or a webhook's address beyond its host.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from string import Template
from tempfile import TemporaryFile
from typing import Any
from urllib.parse import urlsplit

from roll.core.configs.watching import OnEventConfig

MOST_SAID = 200
"""Characters of a failed command's output."""


@dataclass(frozen=True)
class Receiver:
    event: str
    to: str | Sequence[str]
    timeout_s: float

    def send(self, notice: Mapping[str, Any]) -> str:
        """Returns why the receiver did not take the notice, at the latest when the time is over; empty if it did."""
        body = json.dumps(notice).encode()
        if isinstance(self.to, str):
            return self._post(expanded(self.to), body)
        return self._run([expanded(word) for word in self.to], body)

    def _run(self, command: Sequence[str], body: bytes) -> str:
        with TemporaryFile() as said:  # a pipe would be waited for as long as anybody whom the command leaves behind holds it
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True
            )
            try:
                process.communicate(body, self.timeout_s)
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return f"{self.name} was ended after {self.timeout_s:g} s (on_event.timeout_s)"
            if not process.returncode:
                return ""
            said.seek(0)
            last = self.hidden(" ".join(said.read().decode(errors="replace").split()))[-MOST_SAID:]
            return f"{self.name} ended with {process.returncode}: {last}"

    def _post(self, address: str, body: bytes) -> str:
        """On a thread of its own: the client limits the time of each read, not that of all together."""
        import httpx  # most runs need none

        outcome = ["gave no answer in time"]

        def post() -> None:
            try:
                with httpx.stream(
                    "POST", address, content=body, headers={"Content-Type": "application/json"}, timeout=self.timeout_s
                ) as answer:
                    outcome[0] = "" if answer.is_success else f"answered {answer.status_code}"
            except Exception as error:  # boundary: a client, a proxy may raise anything, with the address in its text
                outcome[0] = f"cannot be reached: {type(error).__name__}"

        thread = threading.Thread(target=post, daemon=True)
        thread.start()
        thread.join(self.timeout_s)
        return f"{self.name} {outcome[0]}" if outcome[0] else ""

    def check(self) -> None:
        """Raises `ValueError` if this process could not reach the receiver."""
        if unset := [name for name in self._variables() if name not in os.environ]:
            raise ValueError(f"the environment variable {unset[0]} is not set")
        if isinstance(self.to, str) and not is_address(expanded(self.to)):
            raise ValueError("it is no address http://host... or https://host...")
        if not isinstance(self.to, str) and shutil.which(expanded(self.to[0])) is None:
            raise ValueError(f"there is no command {self.to[0]} here")

    def _variables(self) -> list[str]:
        words = [self.to] if isinstance(self.to, str) else self.to
        return [name for word in words for name in Template(word).get_identifiers()]

    @property
    def name(self) -> str:
        if not isinstance(self.to, str):
            return self.to[0]
        return "the webhook" if "$" in self.to else f"the webhook at {urlsplit(self.to).hostname}"

    def hidden(self, text: str) -> str:
        """Returns the text without the values of the variables."""
        for value in sorted((os.environ.get(name, "") for name in self._variables()), key=len, reverse=True):
            text = text.replace(value, "***") if value else text
        return text


def expanded(text: str) -> str:
    return Template(text).substitute(os.environ)


def receivers_of(config: OnEventConfig) -> Iterator[Receiver]:
    for event, to in config.receivers().items():
        yield Receiver(event, to, config.timeout_s)


def is_address(text: str) -> bool:
    with suppress(ValueError):
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    return False
