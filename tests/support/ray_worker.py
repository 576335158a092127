"""What Ray starts in place of its own `setup_worker.py` where the driver is a fork (forked.py). The worker is a fork of the same
server; this process stays in its place until the worker or the raylet has ended, and ends the worker with it. It imports the
standard library alone, so as to start soon."""

from __future__ import annotations

import argparse
import json
import os
import sys

from forked import in_my_place

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--serialized-runtime-env-context", default="{}")
    parser.add_argument("--language")
    given, command = parser.parse_known_args()
    own = json.loads(given.serialized_runtime_env_context).get("env_vars", {})
    sys.exit(in_my_place(command, os.environ | own))
