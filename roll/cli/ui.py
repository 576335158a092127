"""`roll ui DIR...`: the page over the runs in some folders, in the browser, or as one HTML file to send and to keep."""

from __future__ import annotations

import argparse
import os
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from roll.core.configs.redact import visible
from roll.core.record.journal import write_atomically


def main(arguments: Sequence[str]) -> int:
    """Returns 0 when it was ended, or 2 if it cannot start."""
    parser = argparse.ArgumentParser(
        prog="roll ui",
        description="A page over runs, running and over: curves, time, groups, tokens, comparison. It reads their files.",
    )
    parser.add_argument("folders", type=Path, nargs="+", metavar="DIR", help="a run, or a folder with runs: <output_dir>")
    parser.add_argument("--port", type=int, default=0, help="of 127.0.0.1 (default: any that is free)")
    parser.add_argument("--no-open", action="store_true", help="print the address, and open no browser")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write it to FILE, data included: it needs no server")
    parser.add_argument("--groups", type=int, default=200, metavar="N", help="--report: groups per run with their rollouts (200)")
    options = parser.parse_args(arguments)
    return _write(options.folders, options.report, options.groups) if options.report else _serve(options)


def _write(folders: list[Path], file: Path, groups: int) -> int:
    from roll.view.page import report
    from roll.view.runs import Runs

    try:
        page = report(Runs(folders), groups)
        write_atomically(file, page)
    except (OSError, ValueError) as error:
        print(f"error: {visible(str(error))}", file=sys.stderr)
        return 2
    print(f"{visible(str(file))}: {len(page) / 1e6:.1f} MB")
    return 0


def _serve(options: argparse.Namespace) -> int:
    for folder in options.folders:
        if not folder.is_dir():
            print(
                f"error: {visible(str(folder))}: there is no such folder; name a run, or the folder that holds runs",
                file=sys.stderr,
            )
            return 2
    try:
        from roll.view.server import Serving
    except ModuleNotFoundError as error:
        print(f"error: roll ui needs {error.name}: pip install starlette uvicorn; --report needs neither", file=sys.stderr)
        return 2
    try:
        serving = Serving(options.folders, options.port)
    except (OSError, OverflowError) as error:
        print(f"error: port {options.port} of 127.0.0.1: {error}; choose another with --port", file=sys.stderr)
        return 2
    print(
        f"{serving.address}\nCtrl-C ends it. From another machine: ssh -L {serving.port}:127.0.0.1:{serving.port} <this machine>",
        flush=True,
    )
    if not options.no_open and (sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        webbrowser.open(serving.address)
    serving.run()
    return 0
