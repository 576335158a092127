"""`roll doctor`: what is installed, and what can start on this machine. One line a finding, with the way to mend it."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict

from roll.cli.code_sandbox import code_sandbox
from roll.cli.findings import Finding
from roll.cli.installed import packages
from roll.cli.options import Parser, complain
from roll.cli.starts import engines, ray_starts, torch_starts
from roll.cli.surroundings import surroundings
from roll.configs.problems import ConfigError, Problem
from roll.distributed.machine import this_machine


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 1 if something is missing that every run needs, 2 for bad input, else 0."""
    parser = Parser(prog="roll doctor", description="What is installed here, and what can start.")
    parser.add_argument("--vllm_python", metavar="PATH", help="interpreter that has vLLM (default: this one)")
    parser.add_argument("--sglang_python", metavar="PATH", help="interpreter that has SGLang")
    parser.add_argument("--output_dir", default=".", help="where runs are to be written (default: .)")
    parser.add_argument("--time_limit", type=float, default=60.0, help="seconds that torch and Ray each may take to start (60)")
    parser.add_argument("--json", action="store_true", help="the same as data")
    try:
        options = parser.parse_args(arguments)
        if not (math.isfinite(options.time_limit) and options.time_limit > 0):
            raise ConfigError([Problem("--time_limit", options.time_limit, "must be a number > 0", "e.g. 60")])
    except ConfigError as error:
        complain(error.problems)
        return 2
    machine = this_machine()
    found = [
        *packages(),
        *engines(options.vllm_python, options.sglang_python),
        *surroundings(machine, options.output_dir),
        code_sandbox(),
        torch_starts(machine, options.time_limit),
        ray_starts(options.time_limit),
    ]
    fit = all(finding.state != "missing" for finding in found)
    print(json.dumps({"ok": fit, "findings": [asdict(each) for each in found]}, indent=2) if options.json else as_text(found))
    return 0 if fit else 1


def as_text(found: Sequence[Finding]) -> str:
    width = max(len(finding.name) for finding in found)
    lines = [f"{each.state:<7}  {each.name:<{width}}  {each.text}" + (f"; fix: {each.fix}" if each.fix else "") for each in found]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
