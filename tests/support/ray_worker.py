"""What Ray starts in place of its own `setup_worker.py` where the driver is a fork (forked.py). The worker is a fork of the same
server; this process stays in its place until the worker has ended. It imports the standard library alone, so as to start soon."""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from pathlib import Path

from forked import FORKS, STANDS_FOR, Forked


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--serialized-runtime-env-context", default="{}")
    parser.add_argument("--language")
    given, command = parser.parse_known_args()
    environment = os.environ | json.loads(given.serialized_runtime_env_context).get("env_vars", {})
    request = {"command": command, "folder": os.getcwd(), "environment": environment}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.connect(os.environ[FORKS])
        worker = Forked.asked_of(server, request, sys.stdout)
    Path("/proc/self/comm").write_text(f"{STANDS_FOR}{worker.pid}")  # for who looks for the driver's family
    code = worker.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
